"""Records in this process's memory: bounded, gone with the process.

Time is the host's monotonic clock set to wall time once, at start, so that a jump of the wall clock
neither ends a lease nor forgets a record. Expired records leave by whole time slices: each record
stands in exactly one slice, so expiry costs O(1) per record over its life.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import NoReturn

from onceonly.errors import ConfigurationError, StoreFull
from onceonly.protocols import Clock
from onceonly.stores.rules import FOREVER, FORGET_HINT, REVOKE_HINT, Entry, Rules, refuse_live
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

_SCAN_PAUSE = 1e-6  # seconds per record between two scans of a full store
_SLICE = 1.0  # seconds; how late memory is given back, never how late a record expires


def steady_clock() -> Clock:
    """Wall time that cannot jump."""
    offset = time.time() - time.monotonic()
    monotonic = time.monotonic
    return lambda: offset + monotonic()


class MemoryStore:
    """A bounded store in memory, safe for threads. Full is an error, never a silent drop."""

    capabilities = Capabilities(
        durable=False, shared=False, transactional=False, server_clock=False, native_ttl=True
    )

    def __init__(
        self,
        *,
        max_records: int = 1_000_000,
        clock: Clock | None = None,
        rules: Rules | None = None,
    ) -> None:
        if max_records < 1:
            msg = f"max_records={max_records} must be at least 1"
            raise ConfigurationError(msg)
        self._max = max_records
        self._clock = clock or steady_clock()
        self._rules = rules or Rules()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._entries: dict[RecordId, Entry] = {}
        self._slices: dict[int, list[RecordId]] = {}
        self._order: list[int] = []  # heap of the slices there are
        self._due = FOREVER  # end of the first slice
        self._fence = 0
        self._now = 0.0
        self._stale = 0  # forgotten records that still stand in a slice
        self._next_scan = 0.0
        self._windows: dict[tuple[str, str | None], StoredWindow] = {}

    # --- verbs --------------------------------------------------------------------------------

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        with self._lock:
            now = self._tick()
            if len(self._entries) + len(marks) > self._max:
                self._need_room([mark.id for mark in marks], now)
            return [self._mark(mark, now) for mark in marks]

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        with self._lock:
            now = self._tick()
            if len(self._entries) + len(requests) > self._max:
                self._need_room([request.id for request in requests], now)
            if len(requests) == 1:
                return [self._claim(requests[0], now)]
            return [self._claim(request, now) for request in requests]

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        with self._lock:
            now, rule, find = self._tick(), self._rules.complete, self._find
            return [rule(find(c.id, now), c, now) for c in completions]

    def release(self, releases: Sequence[Release]) -> list[bool]:
        with self._lock:
            now, rule, find = self._tick(), self._rules.release, self._find
            return [rule(find(r.id, now), r, now) for r in releases]

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        with self._lock:
            now, rule, find = self._tick(), self._rules.renew, self._find
            return [rule(find(r.id, now), r, now) for r in renewals]

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        with self._lock:
            now = self._tick()
            found = [self._find(record_id, now) for record_id in ids]
            return [None if e is None else e.snapshot(i, now) for i, e in zip(ids, found, strict=True)]

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        with self._lock:
            now, answers = self._tick(), []
            for record_id, chosen in zip(
                ids, self._not_live(ids, now, FORGET_HINT, force=force, only=only), strict=True
            ):
                kept = chosen is None and self._find(record_id, now) is not None
                gone = None if kept else self._entries.pop(record_id, None)  # an expired one goes, untold
                self._stale += gone is not None
                answers.append(chosen is not None and gone is not None)
            if self._stale > self._max:
                self._refile()
            return answers

    def purge(self, *, limit: int = 10_000) -> int:
        with self._lock:
            before = len(self._entries)
            self._drop_expired(self._tick(), limit)
            return before - len(self._entries)

    def stats(self) -> Stats:
        with self._lock:
            now = self._tick()
            groups: dict[str, Counter[State]] = defaultdict(Counter)
            expired = 0
            for record_id, entry in self._entries.items():
                if entry.expires <= now:
                    expired += 1
                else:
                    groups[record_id.group][entry.state] += 1
        return Stats(groups={g: dict(c) for g, c in groups.items()}, expired=expired)

    def find(self, query: Query) -> list[Record]:
        with self._lock:
            now = self._tick()
            found = [
                entry.snapshot(record_id, now)
                for record_id, entry in self._entries.items()
                if entry.fence and entry.expires > now and entry.state in query.states
            ]
        chosen = [
            record
            for record in found
            if query.group in (None, record.id.group)
            and (
                query.orphaned is None
                or record.state is not State.CLAIMED
                or record.orphaned is query.orphaned
            )
        ]
        return sorted(chosen, key=lambda record: record.fence)[: query.limit]

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        rule = self._rules.restart if afresh else self._rules.revoke
        with self._lock:
            now = self._tick()
            found = self._not_live([record.id for record in shown], now, REVOKE_HINT, force=force)
            return [
                entry is not None and entry.is_still(record) and rule(entry, now)
                for record, entry in zip(shown, found, strict=True)
            ]

    def groups(self) -> list[str]:
        with self._lock:
            return sorted({record_id.group for record_id in self._entries})

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        with self._lock:
            in_order = sorted(self._windows.values(), key=lambda w: (w.group, w.type or ""))
        return [[w for w in in_order if request.group in (None, w.group)] for request in requests]

    def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        with self._lock:
            self._windows[group, type] = StoredWindow(group, type, window, self._tick())

    def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        with self._lock:
            return self._windows.pop((group, type), None) is not None

    def bind(self, connection: object) -> NoReturn:
        msg = (
            f"memory:// has no transactions to bind {type(connection).__name__} to; "
            "use sqlite:/// or another transactional store"
        )
        raise ConfigurationError(msg)

    def close(self) -> None:
        """Nothing to give back: records stay readable."""

    def after_fork(self) -> None:
        """A child process starts with a copy of the records and a lock of its own."""
        if self._pid != os.getpid():  # else another engine on this store was first
            self._pid = os.getpid()
            self._lock = threading.Lock()

    # --- under the lock -----------------------------------------------------------------------

    def _find(self, record_id: RecordId, now: float) -> Entry | None:
        entry = self._entries.get(record_id)
        return entry if entry is not None and entry.expires > now else None

    def _not_live(
        self,
        ids: Sequence[RecordId],
        now: float,
        hint: str,
        *,
        force: bool,
        only: Collection[State] = EVERY_STATE,
    ) -> list[Entry | None]:
        """The records in these states, unless one of them is a live claim."""
        known = [self._find(record_id, now) for record_id in ids]
        found = [entry if entry is not None and entry.state in only else None for entry in known]
        for record_id, entry in zip(ids, found, strict=True):
            if not force and entry is not None and self._rules.live(entry, now):
                refuse_live(record_id, entry.until - now, hint)
        return found

    def _claim(self, request: ClaimRequest, now: float) -> ClaimAnswer:
        known = self._entries.get(request.id)
        live = known if known is not None and known.expires > now else None
        answer, kept = self._rules.claim(live, request, now, self._mint)
        if kept is not None and kept is not known:
            self._keep(request.id, kept, known)
        return answer

    def _mark(self, mark: Mark, now: float) -> bool:
        known = self._entries.get(mark.id)
        live = known if known is not None and known.expires > now else None
        kept = self._rules.mark(live, mark, now)
        if kept is not None and kept is not known:
            self._keep(mark.id, kept, known)
        return kept is not None

    def _keep(self, record_id: RecordId, entry: Entry, replaced: Entry | None) -> None:
        self._entries[record_id] = entry
        if replaced is None:  # else its slice has it already
            self._file(record_id, entry.expires)

    def _mint(self) -> int:
        self._fence = fence = max(self._fence + 1, int(self._now * 1e6))
        return fence

    # --- expiry and the bound -----------------------------------------------------------------

    def _tick(self) -> float:
        self._now = now = self._clock()
        if now >= self._due:
            self._sweep(now)
        return now

    def _file(self, record_id: RecordId, expires: float) -> None:
        if expires == FOREVER:
            return
        number = int(expires // _SLICE)
        members = self._slices.get(number)
        if members is None:
            members = self._slices[number] = []
            heapq.heappush(self._order, number)
            self._due = (self._order[0] + 1) * _SLICE
        members.append(record_id)

    def _sweep(self, now: float) -> None:
        """Drop what expired in the slices that are over; refile what was extended meanwhile."""
        while self._order and (self._order[0] + 1) * _SLICE <= now:
            for record_id in self._slices.pop(heapq.heappop(self._order)):
                entry = self._entries.get(record_id)
                if entry is None:
                    continue
                if entry.expires <= now:
                    del self._entries[record_id]
                else:
                    self._file(record_id, entry.expires)
        self._due = (self._order[0] + 1) * _SLICE if self._order else FOREVER

    def _drop_expired(self, now: float, limit: int) -> None:
        expired = [i for i, e in self._entries.items() if e.expires <= now][:limit]
        for record_id in expired:
            del self._entries[record_id]
        if expired:
            self._refile()

    def _refile(self) -> None:
        self._slices, self._order, self._due, self._stale = {}, [], FOREVER, 0
        for record_id, entry in self._entries.items():
            self._file(record_id, entry.expires)

    def _need_room(self, ids: Sequence[RecordId], now: float) -> None:
        new = len({record_id for record_id in ids if record_id not in self._entries})
        if len(self._entries) + new > self._max and now >= self._next_scan:
            self._next_scan = now + len(self._entries) * _SCAN_PAUSE  # a full store must not only scan
            self._drop_expired(now, self._max)
        if len(self._entries) + new > self._max:
            msg = (
                f"the memory store holds its limit of {self._max} records and {new} more do not "
                "fit: raise max_records, shorten the window, or use a durable store"
            )
            raise StoreFull(msg)


class AsyncMemoryStore:
    """:class:`MemoryStore` behind ``await``; nothing ever waits."""

    capabilities = MemoryStore.capabilities

    def __init__(
        self,
        *,
        max_records: int = 1_000_000,
        clock: Clock | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._store = MemoryStore(max_records=max_records, clock=clock, rules=rules)

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._store.mark_seen(marks)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._store.claim(requests)

    async def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._store.complete(completions)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._store.release(releases)

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return self._store.renew(renewals)

    async def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return self._store.peek(ids)

    async def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return self._store.forget(ids, force=force, only=only)

    async def purge(self, *, limit: int = 10_000) -> int:
        return self._store.purge(limit=limit)

    async def stats(self) -> Stats:
        return self._store.stats()

    async def find(self, query: Query) -> list[Record]:
        return self._store.find(query)

    async def revoke(
        self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False
    ) -> list[bool]:
        return self._store.revoke(shown, force=force, afresh=afresh)

    async def groups(self) -> list[str]:
        return self._store.groups()

    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._store.windows(requests)

    async def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        self._store.set_window(group, type, window)

    async def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return self._store.clear_window(group, type)

    def bind(self, connection: object) -> NoReturn:
        self._store.bind(connection)

    async def close(self) -> None:
        self._store.close()

    def after_fork(self) -> None:
        self._store.after_fork()
