"""Every store keeps every promise; and for every promise there is a broken store that fails it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from onceonly.errors import ConfigurationError
from onceonly.protocols import Store
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import Harness, ManualClock, SyncView, sqlite_transactions
from onceonly.testing.broken import BROKEN, BrokenKind, build
from onceonly.testing.conformance import PROMISES, TRANSACTIONAL_PROMISES, Promise
from onceonly.types import Mark, RecordId

CAPACITY = 3000  # room for the largest batch of the suite, little enough to be filled


def _memory(path: Path) -> Harness:
    clock = ManualClock()
    store = MemoryStore(clock=clock, max_records=CAPACITY)
    return Harness(store, clock.advance, capacity=CAPACITY)


def _async_memory(path: Path) -> Harness:
    clock = ManualClock()
    store = SyncView(AsyncMemoryStore(clock=clock, max_records=CAPACITY))
    return Harness(store, clock.advance, capacity=CAPACITY)


def _sqlite(path: Path) -> Harness:
    clock = ManualClock()
    store = SqliteStore(path, clock=clock)
    return Harness(store, clock.advance, transaction=sqlite_transactions(path))


def _async_sqlite(path: Path) -> Harness:
    clock = ManualClock()
    store = SyncView(AsyncSqliteStore(path, clock=clock))
    return Harness(store, clock.advance, transaction=sqlite_transactions(path))


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value)).strip("_")


@pytest.mark.parametrize("make", [_memory, _async_memory, _sqlite, _async_sqlite], ids=_name)
@pytest.mark.parametrize("promise", PROMISES, ids=_name)
def test_store_keeps_promise(make: Callable[[Path], Harness], promise: Promise, tmp_path: Path) -> None:
    harness = make(tmp_path / "store.db")
    promise(harness)
    harness.close()


@pytest.mark.parametrize("make", [_sqlite, _async_sqlite], ids=_name)
@pytest.mark.parametrize("promise", TRANSACTIONAL_PROMISES, ids=_name)
def test_bound_store_keeps_promise(make: Callable[[Path], Harness], promise: Promise, tmp_path: Path) -> None:
    harness = make(tmp_path / "store.db")
    promise(harness)
    harness.close()


def test_bound_sqlite_store_is_refused_once_its_transaction_is_over(tmp_path: Path) -> None:
    """Where the caller writes BEGIN itself, its COMMIT would leave a bound store that is a filter."""
    store = SqliteStore(tmp_path / "store.db")
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    record = RecordId("group", "", "key")
    connection.execute("BEGIN")
    bound = store.bind(connection)
    connection.execute("COMMIT")
    with pytest.raises(ConfigurationError):
        bound.mark_seen([Mark(record, 60.0)])
    assert store.peek([record]) == [None]
    connection.close()
    store.close()


@pytest.mark.parametrize(
    ("kind", "promise"),
    [(kind, name) for kind, names in BROKEN for name in sorted(names)],
    ids=_name,
)
def test_broken_store_is_caught(kind: BrokenKind, promise: str, tmp_path: Path) -> None:
    by_name = {function.__name__: function for function in PROMISES + TRANSACTIONAL_PROMISES}
    clock, path = ManualClock(), tmp_path / "store.db"
    store: Store = build(kind, clock, path, max_records=CAPACITY)
    bounded = isinstance(store, MemoryStore)
    harness = Harness(
        store,
        clock.advance,
        transaction=None if bounded else sqlite_transactions(path),
        capacity=CAPACITY if bounded else None,
    )
    with pytest.raises(AssertionError):
        by_name[promise](harness)
    harness.close()


def test_every_promise_is_broken_by_some_store() -> None:
    """A promise that no broken store fails might be checking nothing."""
    broken = frozenset[str]().union(*(names for _, names in BROKEN))
    promised = {promise.__name__ for promise in PROMISES + TRANSACTIONAL_PROMISES}
    assert promised == broken


def test_promises_are_listed_once_and_documented() -> None:
    everything = PROMISES + TRANSACTIONAL_PROMISES
    assert len(set(everything)) == len(everything)
    assert [promise.__name__ for promise in everything if not promise.__doc__] == []
