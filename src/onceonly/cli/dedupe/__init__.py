"""``onceonly dedupe``: a filter for streams and files that remembers what it has passed on.

``reading`` finds lines, ``formats`` makes records of them, ``filtering`` passes each new one on once,
``outputs`` keeps files that can be cut back after a crash, ``command`` is what a user types.
"""
