"""Import rows a batch at a time: one round trip claims them all, one completes them.

Leased mode. No row's failure stops the others; what failed for good is stored, and told to every repeat.
Run it: python examples/batch.py
"""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import TypedDict

from onceonly import Once, Verdict


class Row(TypedDict):
    id: str
    sku: str
    count: int


class Warehouse:
    """Stands in for another service. Its first call for chairs times out."""

    def __init__(self) -> None:
        self.stock = Counter[str]()
        self._slow = {"chair"}

    def add(self, row: Row) -> int:
        if row["count"] < 0:
            raise ValueError("a negative count")
        if row["sku"] in self._slow:
            self._slow.remove(row["sku"])
            raise TimeoutError
        self.stock[row["sku"]] += row["count"]
        return self.stock[row["sku"]]


def import_rows(once: Once, warehouse: Warehouse, rows: list[Row], report: list[str]) -> list[Row]:
    """The rows that must not be acknowledged yet."""
    again = []
    outcomes = once.process_many(warehouse.add, rows, key="$.id")
    for row, outcome in zip(rows, outcomes, strict=True):
        if not outcome.ack:  # failed this time, or in flight elsewhere
            again.append(row)
        elif outcome.verdict is Verdict.FAILED:  # for good: store_failure said so
            report.append(f"{row['id']} rejected")
        else:  # processed now, or a duplicate with the stored result
            report.append(f"{row['id']} {outcome.verdict}: {outcome.result}")
    return again


def is_final(error: Exception) -> bool:
    return isinstance(error, ValueError)


def main() -> None:
    warehouse, report = Warehouse(), list[str]()
    rows: list[Row] = [
        {"id": "r-1", "sku": "table", "count": 2},
        {"id": "r-2", "sku": "table", "count": -5},
        {"id": "r-3", "sku": "chair", "count": 8},
        {"id": "r-1", "sku": "table", "count": 2},
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        Once(f"sqlite:///{directory}/stock.db", group="import", store_failure=is_final) as once,
    ):
        while rows:  # what was not acknowledged comes again
            rows = import_rows(once, warehouse, rows, report)
    print(sorted(report))  # ['r-1 duplicate: 2', 'r-1 processed: 2', 'r-2 rejected', 'r-3 processed: 8']
    print(dict(warehouse.stock))  # {'table': 2, 'chair': 8}


if __name__ == "__main__":
    main()
