"""What the conformance suite needs to know about a store under test.

One suite tests sync and async stores: ``SyncView`` shows an async store as a sync one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from onceonly.protocols import AsyncBoundStore, AsyncStore, BoundStore, Store
from onceonly.types import (
    EVERY_STATE,
    Capabilities,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Query,
    ReadWindows,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Stats,
    StoredWindow,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Harness:
    """A store and the means to test it.

    advance: lets seconds pass for the store; moves a ManualClock, or sleeps if the clock is a server's ·
    unit: seconds of the shortest comfortable duration; 1.0 with a ManualClock, 0.05 to 0.2 with a
    server · transaction: commits at the end, rolls back on an exception, and gives the connection for
    ``store.bind``; only for transactional stores · capacity: how many records a bounded store holds ·
    group: new for every harness, so that one server may serve many tests.
    """

    store: Store
    advance: Callable[[float], None]
    unit: float = 1.0
    transaction: Callable[[], AbstractContextManager[object]] | None = None
    capacity: int | None = None
    group: str = field(default_factory=lambda: f"test-{uuid4().hex}")

    def close(self) -> None:
        self.store.close()


def sqlite_transactions(path: str | Path) -> Callable[[], AbstractContextManager[object]]:
    """Transactions on connections of their own to a SQLite file, as an application has them."""

    @contextmanager
    def transaction() -> Iterator[object]:
        connection = sqlite3.connect(path, timeout=5.0)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    return transaction


class SyncView:
    """An async store as a sync one: its coroutines run on one event loop, in the calling thread."""

    def __init__(self, store: AsyncStore, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._store = store
        self._loop = loop or asyncio.new_event_loop()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run anything on the store's loop, for example what opens a connection for ``bind``."""
        return self._loop.run_until_complete(work)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self.run(self._store.mark_seen(marks))

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self.run(self._store.claim(requests))

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self.run(self._store.complete(completions))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self.run(self._store.release(releases))

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return self.run(self._store.renew(renewals))

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return self.run(self._store.peek(ids))

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return self.run(self._store.forget(ids, force=force, only=only))

    def purge(self, *, limit: int = 10_000) -> int:
        return self.run(self._store.purge(limit=limit))

    def stats(self) -> Stats:
        return self.run(self._store.stats())

    def find(self, query: Query) -> list[Record]:
        return self.run(self._store.find(query))

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        return self.run(self._store.revoke(shown, force=force, afresh=afresh))

    def groups(self) -> list[str]:
        return self.run(self._store.groups())

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self.run(self._store.windows(requests))

    def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        self.run(self._store.set_window(group, type, window))

    def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return self.run(self._store.clear_window(group, type))

    def bind(self, connection: object) -> BoundStore:
        return SyncBoundView(self._store.bind(connection), self)

    def close(self) -> None:
        """Close the store, then the loop."""
        if not self._loop.is_closed():
            self.run(self._store.close())
            self._loop.close()

    def after_fork(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._store.after_fork()


class SyncBoundView:
    """An async bound store as a sync one, on the loop of its store's view."""

    def __init__(self, bound: AsyncBoundStore, view: SyncView) -> None:
        self._bound = bound
        self._view = view

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._view.run(self._bound.mark_seen(marks))

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._view.run(self._bound.claim(requests))

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._view.run(self._bound.complete(completions))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._view.run(self._bound.release(releases))

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._view.run(self._bound.windows(requests))
