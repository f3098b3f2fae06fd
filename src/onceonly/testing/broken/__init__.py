"""Stores that each break one promise, to test the tests: a suite that passes them proves nothing.

``NoTokenCheckOnComplete`` and its neighbours are plain ``Rules``, so that a model checker can use them.
"""

from __future__ import annotations

from pathlib import Path

from onceonly.protocols import Clock
from onceonly.stores.memory import MemoryStore
from onceonly.stores.sqlite import SqliteStore
from onceonly.testing.broken.catalogue import BROKEN, BrokenKind
from onceonly.testing.broken.rules import (
    NoTokenCheckOnComplete,
    NoTokenCheckOnRelease,
    NoTokenCheckOnRenew,
    ReleaseForgetsAttempts,
    TakesOverRunningLease,
)

__all__ = [
    "BROKEN",
    "BrokenKind",
    "NoTokenCheckOnComplete",
    "NoTokenCheckOnRelease",
    "NoTokenCheckOnRenew",
    "ReleaseForgetsAttempts",
    "TakesOverRunningLease",
    "build",
]


def build(
    kind: BrokenKind, clock: Clock, path: Path, *, max_records: int = 10_000
) -> MemoryStore | SqliteStore:
    """A store broken in this way. ``path`` is for those that need a file, which are the bound ones."""
    if issubclass(kind, SqliteStore):
        return kind(path, clock=clock)
    if issubclass(kind, MemoryStore):
        return kind(clock=clock, max_records=max_records)
    return MemoryStore(clock=clock, max_records=max_records, rules=kind())
