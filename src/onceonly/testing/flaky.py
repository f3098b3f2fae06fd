"""A store whose requests and replies get lost when a plan says so."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Sized
from typing import Literal, TypeVar

from onceonly.errors import StoreUnavailable
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

B = TypeVar("B")
T = TypeVar("T")

Fault = Literal["ok", "before", "after"]
Plan = Mapping[str, Iterable[Fault]] | Callable[[str, int], Fault]
"""What happens to each call of a verb, in order; when a list ends, all is well again.

"before": the request is lost, nothing changes · "after": the reply is lost, the change is made.
A callable is asked with the verb and the number of the call, from 0.
"""


class Faults:
    """Counts calls and items per verb and says which fault comes next."""

    def __init__(self, plan: Plan | None) -> None:
        self.calls: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        if plan is None or callable(plan):
            self._ask = plan or (lambda _verb, _number: "ok")
        else:
            lists = {verb: list(faults) for verb, faults in plan.items()}
            self._ask = lambda verb, number: dict(enumerate(lists.get(verb, ()))).get(number, "ok")

    def before(self, verb: str, batch: Sized) -> Fault:
        """Count this call; raise if its request is lost."""
        fault = self._ask(verb, self.calls[verb])
        self.calls[verb] += 1
        self.items[verb] += len(batch)
        if fault == "before":
            msg = f"{verb}: the request was lost, as planned"
            raise StoreUnavailable(msg)
        return fault

    def after(self, verb: str, fault: Fault) -> None:
        """Raise if the reply is lost."""
        if fault == "after":
            msg = f"{verb}: the reply was lost, as planned"
            raise StoreUnavailable(msg, unknown=True)


class FlakyStore:
    """A store that fails as planned. ``delay`` seconds of real sleep stand for the network."""

    def __init__(self, store: Store, plan: Plan | None = None, *, delay: float = 0.0) -> None:
        self._store = store
        self._faults = Faults(plan)
        self._delay = delay

    @property
    def calls(self) -> Counter[str]:
        return self._faults.calls

    @property
    def items(self) -> Counter[str]:
        return self._faults.items

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._do("mark_seen", marks, self._store.mark_seen)

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._do("claim", requests, self._store.claim)

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._do("complete", completions, self._store.complete)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._do("release", releases, self._store.release)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return self._do("renew", renewals, self._store.renew)

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return self._do("peek", ids, self._store.peek)

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return self._do("forget", ids, lambda batch: self._store.forget(batch, force=force, only=only))

    def purge(self, *, limit: int = 10_000) -> int:
        return self._do("purge", (), lambda _: self._store.purge(limit=limit))

    def stats(self) -> Stats:
        return self._do("stats", (), lambda _: self._store.stats())

    def find(self, query: Query) -> list[Record]:
        return self._do("find", (), lambda _: self._store.find(query))

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        revoke = self._store.revoke
        return self._do("revoke", shown, lambda batch: revoke(batch, force=force, afresh=afresh))

    def groups(self) -> list[str]:
        return self._do("groups", (), lambda _: self._store.groups())

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._do("windows", requests, self._store.windows)

    def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        self._do("set_window", (), lambda _: self._store.set_window(group, type, window))

    def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return self._do("clear_window", (), lambda _: self._store.clear_window(group, type))

    def bind(self, connection: object) -> BoundStore:
        return self._store.bind(connection)

    def close(self) -> None:
        self._store.close()

    def after_fork(self) -> None:
        self._store.after_fork()

    def _do(self, verb: str, batch: Sequence[B], call: Callable[[Sequence[B]], T]) -> T:
        if self._delay:
            time.sleep(self._delay)
        fault = self._faults.before(verb, batch)
        answer = call(batch)
        self._faults.after(verb, fault)
        return answer


class AsyncFlakyStore:
    """:class:`FlakyStore` for async code."""

    def __init__(self, store: AsyncStore, plan: Plan | None = None, *, delay: float = 0.0) -> None:
        self._store = store
        self._faults = Faults(plan)
        self._delay = delay

    @property
    def calls(self) -> Counter[str]:
        return self._faults.calls

    @property
    def items(self) -> Counter[str]:
        return self._faults.items

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return await self._do("mark_seen", marks, self._store.mark_seen)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return await self._do("claim", requests, self._store.claim)

    async def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return await self._do("complete", completions, self._store.complete)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        return await self._do("release", releases, self._store.release)

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return await self._do("renew", renewals, self._store.renew)

    async def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return await self._do("peek", ids, self._store.peek)

    async def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return await self._do("forget", ids, lambda batch: self._store.forget(batch, force=force, only=only))

    async def purge(self, *, limit: int = 10_000) -> int:
        return await self._do("purge", (), lambda _: self._store.purge(limit=limit))

    async def stats(self) -> Stats:
        return await self._do("stats", (), lambda _: self._store.stats())

    async def find(self, query: Query) -> list[Record]:
        return await self._do("find", (), lambda _: self._store.find(query))

    async def revoke(
        self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False
    ) -> list[bool]:
        revoke = self._store.revoke
        return await self._do("revoke", shown, lambda batch: revoke(batch, force=force, afresh=afresh))

    async def groups(self) -> list[str]:
        return await self._do("groups", (), lambda _: self._store.groups())

    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return await self._do("windows", requests, self._store.windows)

    async def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        await self._do("set_window", (), lambda _: self._store.set_window(group, type, window))

    async def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return await self._do("clear_window", (), lambda _: self._store.clear_window(group, type))

    def bind(self, connection: object) -> AsyncBoundStore:
        return self._store.bind(connection)

    async def close(self) -> None:
        await self._store.close()

    def after_fork(self) -> None:
        self._store.after_fork()

    async def _do(self, verb: str, batch: Sequence[B], call: Callable[[Sequence[B]], Awaitable[T]]) -> T:
        if self._delay:
            await asyncio.sleep(self._delay)
        fault = self._faults.before(verb, batch)
        answer = await call(batch)
        self._faults.after(verb, fault)
        return answer
