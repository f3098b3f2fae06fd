"""The operator's commands on a store: what is in it, what is unfinished, and what to do about it.

``shown`` and ``wording`` turn records into tables, lines and JSON; ``acting`` asks before something is
changed and reports what came of it; the other modules are one command each.
"""
