"""``onceonly demo``: payments delivered at least once to workers that die, and what the ledgers say.

``plan`` draws what goes wrong, ``courier`` delivers, ``consumers`` are the three ways to handle a
message, ``faults`` kills, ``judge`` reads the ledgers, ``report`` shows the verdict.
"""
