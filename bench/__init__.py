"""What a message costs, beside the textbook, a peer and the raw limit. ``python -m bench --help``"""
