"""Count visits in a click stream: the same user on the same page counts once in five minutes.

Filter mode: one call marks a page of the stream. What was marked is lost if we die before it is counted.
Run it: python examples/filter.py
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from onceonly import Once, near_duplicate


class Click(TypedDict):
    user: str
    page: str
    at: float


same_visit = near_duplicate(fields=["user", "page"])  # no time: the window says how close is the same


def count_visits(once: Once, clicks: list[Click], visits: Counter[str]) -> int:
    """The number of clicks that were dropped."""
    new = once.first_time_many([same_visit(click) for click in clicks])
    visits.update(click["page"] for click, is_new in zip(clicks, new, strict=True) if is_new)
    return new.count(False)


def stream() -> Iterable[list[Click]]:
    """Stands in for a log shipper, which sends a page again when its reply was lost."""
    page: list[Click] = [
        {"user": "ann", "page": "/home", "at": 10.0},
        {"user": "ann", "page": "/home", "at": 10.2},  # a double click
        {"user": "bob", "page": "/home", "at": 11.0},
        {"user": "ann", "page": "/shop", "at": 12.5},
    ]
    return [page, page, [{"user": "eve", "page": "/shop", "at": 13.0}]]


def main() -> None:
    visits = Counter[str]()
    with (
        tempfile.TemporaryDirectory() as directory,
        Once(f"sqlite:///{directory}/clicks.db", group="visits", window="analytics") as once,
    ):
        dropped = [count_visits(once, clicks, visits) for clicks in stream()]
        print("visits:", dict(visits))  # visits: {'/home': 2, '/shop': 2}
        print("dropped:", dropped)  # dropped: [1, 4, 0]
        print("remembered:", once.stats().records)  # remembered: 4


if __name__ == "__main__":
    main()
