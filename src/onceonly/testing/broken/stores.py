"""Stores broken where it is not a rule that decides: expiry, fences, order, identity."""

# ruff: noqa: ARG002 - what is broken is often that an argument is ignored
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from onceonly.errors import StoreFull
from onceonly.stores.memory import MemoryStore
from onceonly.stores.rules import FOREVER, Entry
from onceonly.types import (
    EVERY_STATE,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Marks,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Stats,
)

R = TypeVar("R")
T = TypeVar("T")


class ExpiredStillAnswers(MemoryStore):
    """An expired record answers until cleanup ran, as in the textbook."""

    def _tick(self) -> float:
        return self._clock()

    def _find(self, record_id: RecordId, now: float) -> Entry | None:
        return self._entries.get(record_id)

    def _claim(self, request: ClaimRequest, now: float) -> ClaimAnswer:
        known = self._find(request.id, now)
        answer, kept = self._rules.claim(known, request, now, self._mint)
        if kept is not None and kept is not known:
            self._keep(request.id, kept, known)
        return answer

    def _mark(self, mark: Mark, now: float) -> bool:
        known = self._find(mark.id, now)
        kept = self._rules.mark(known, mark, now)
        if kept is not None and kept is not known:
            self._keep(mark.id, kept, known)
        return kept is not None


class ColumnsLoseTheType(MemoryStore):
    """Marks as columns take a short cut that forgets what they have in common."""

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        if isinstance(marks, Marks):
            return super().mark_seen([mark._replace(type=None) for mark in marks])
        return super().mark_seen(marks)


class ColumnsLoseTheResults(MemoryStore):
    """Marks as columns take a short cut that forgets what differs."""

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        if isinstance(marks, Marks):
            return super().mark_seen([mark._replace(result=None) for mark in marks])
        return super().mark_seen(marks)


class ColumnsAreSortedApart(MemoryStore):
    """Marks as columns are sorted by key, and their results are not."""

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        if not isinstance(marks, Marks) or marks.results is None:
            return super().mark_seen(marks)
        by_row = dict(zip(sorted(set(marks.keys)), marks.results, strict=False))
        return super().mark_seen([mark._replace(result=by_row[mark.id.key]) for mark in marks])


class ExpiredResultComesBack(MemoryStore):
    """A mark without a result over an expired record tells the old one's."""

    def _tick(self) -> float:
        return self._clock()  # expired records stay, to be seen

    def _mark(self, mark: Mark, now: float) -> bool:
        known = self._entries.get(mark.id)
        if known is not None and mark.result is None:
            mark = mark._replace(result=known.result)
        return super()._mark(mark, now)


class FenceRestarts(MemoryStore):
    """The fence is a count in the record, so it restarts when the record goes."""

    def _claim(self, request: ClaimRequest, now: float) -> ClaimAnswer:
        known = self._find(request.id, now)
        self._fence = known.fence if known is not None else 0
        return super()._claim(request, now)

    def _mint(self) -> int:
        self._fence += 1
        return self._fence


class FenceIsConstant(MemoryStore):
    """Every owner has the same fence."""

    def _mint(self) -> int:
        return 1


class FenceIsTooLarge(MemoryStore):
    """Fences are nanoseconds, which a double cannot hold."""

    def _mint(self) -> int:
        return super()._mint() * 1000


class _Purging(MemoryStore):
    """Purge removes what ``doomed`` says besides what is expired."""

    def doomed(self, entry: Entry, now: float) -> bool:
        raise NotImplementedError

    def purge(self, *, limit: int = 10_000) -> int:
        with self._lock:
            now = self._clock()
            for entry in self._entries.values():
                if self.doomed(entry, now):
                    entry.expires = 0.0
        return super().purge(limit=limit)


class PurgeRemovesLiveLeases(_Purging):
    """Cleanup takes claims that run."""

    def doomed(self, entry: Entry, now: float) -> bool:
        return self._rules.live(entry, now)


class PurgeRemovesQuarantined(_Purging):
    """Cleanup takes what waits for an operator."""

    def doomed(self, entry: Entry, now: float) -> bool:
        return entry.state is State.QUARANTINED


class PurgeRemovesUnfinished(_Purging):
    """Cleanup takes attempts and orphans."""

    def doomed(self, entry: Entry, now: float) -> bool:
        return not entry.state.done and entry.until <= now


class PurgeRemovesDone(_Purging):
    """Cleanup takes done records within their window."""

    def doomed(self, entry: Entry, now: float) -> bool:
        return entry.state.done and entry.expires != FOREVER


class PurgeLeavesUnfinished(MemoryStore):
    """Cleanup covers done records only, and memory keeps none of its own."""

    capabilities = replace(MemoryStore.capabilities, native_ttl=False)

    def _tick(self) -> float:
        return self._clock()

    def _drop_expired(self, now: float, limit: int) -> None:
        for record_id, entry in list(self._entries.items()):
            if entry.state.done and entry.expires <= now:
                del self._entries[record_id]


class StatsMixGroups(MemoryStore):
    """Statistics know one group only."""

    def stats(self) -> Stats:
        groups = super().stats().groups
        counts: dict[State, int] = {}
        for states in groups.values():
            for state, count in states.items():
                counts[state] = counts.get(state, 0) + count
        return Stats(groups=dict.fromkeys(groups, counts))


class ForgetIgnoresLiveClaims(MemoryStore):
    """Forget removes a claim under its running handler."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return super().forget(ids, force=True, only=only)


class ForgetStopsHalfWay(MemoryStore):
    """Forget removes what comes before the live claim, then raises."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return [super(ForgetStopsHalfWay, self).forget([i], force=force, only=only)[0] for i in ids]


class ForgetDoesNothing(MemoryStore):
    """Forget says True and keeps everything."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return [True] * len(ids)


def _sorted(requests: Sequence[R], call: Callable[[Sequence[R]], list[T]]) -> list[T]:
    return call(sorted(requests, key=repr))


class AnswersInOrderOfKeys(MemoryStore):
    """Batches are sorted, and so are their answers."""

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return _sorted(marks, super().mark_seen)

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return _sorted(requests, super().claim)

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return _sorted(completions, super().complete)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return _sorted(releases, super().release)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return _sorted(renewals, super().renew)

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return _sorted(ids, super().peek)

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        forget = super().forget
        return _sorted(ids, lambda batch: forget(batch, force=force, only=only))

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        revoke = super().revoke
        return _sorted(shown, lambda batch: revoke(batch, force=force, afresh=afresh))


class LastClaimOfABatchWins(MemoryStore):
    """Of two claims of one key in a batch the second is granted."""

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return super().claim(requests[::-1])[::-1]


class EmptyBatchHasAnAnswer(MemoryStore):
    """An empty batch is answered as if one record had been asked for."""

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return super().peek(ids) or [None]


class FullAppliesHalf(MemoryStore):
    """A full store takes what fits of a batch, then raises."""

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return [super(FullAppliesHalf, self).mark_seen([mark])[0] for mark in marks]

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return [super(FullAppliesHalf, self).claim([request])[0] for request in requests]


class FullDropsTheOldest(MemoryStore):
    """A full store forgets silently."""

    def _need_room(self, ids: Sequence[RecordId], now: float) -> None:
        try:
            super()._need_room(ids, now)
        except StoreFull:
            for record_id in list(self._entries)[: len(ids)]:
                del self._entries[record_id]


class _Renaming(MemoryStore):
    """Stores records under another identity."""

    def rename(self, record_id: RecordId) -> RecordId:
        raise NotImplementedError

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return super().mark_seen([mark._replace(id=self.rename(mark.id)) for mark in marks])

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return super().claim([r._replace(id=self.rename(r.id)) for r in requests])

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return super().complete([c._replace(id=self.rename(c.id)) for c in completions])

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return super().release([r._replace(id=self.rename(r.id)) for r in releases])

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        found = super().peek([self.rename(record_id) for record_id in ids])
        return [r and replace(r, id=i) for i, r in zip(ids, found, strict=True)]


class GroupIsIgnored(_Renaming):
    """The second consumer group never sees a message."""

    def rename(self, record_id: RecordId) -> RecordId:
        return record_id._replace(group="")


class ScopeIsIgnored(_Renaming):
    """One tenant sees another's record."""

    def rename(self, record_id: RecordId) -> RecordId:
        return record_id._replace(scope="")


class PartsAreJoined(_Renaming):
    """Group, scope and key are joined without their lengths."""

    def rename(self, record_id: RecordId) -> RecordId:
        return RecordId("", "", ":".join(record_id))


class KeysAreTrimmed(_Renaming):
    """Keys are stripped and cut to 500 characters."""

    def rename(self, record_id: RecordId) -> RecordId:
        return record_id._replace(key=record_id.key.strip()[:500])


class PeekShowsNothing(MemoryStore):
    """Peek never finds a record."""

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return [None] * len(ids)


class TokensAreCut(MemoryStore):
    """Tokens are compared by their first eight bytes."""

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return super().claim([r._replace(token=r.token[:8]) for r in requests])

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return super().complete([c._replace(token=c.token[:8]) for c in completions])


class WritesTouchEverything(MemoryStore):
    """A write to one record lengthens the life of all."""

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        for entry in self._entries.values():
            entry.expires += 1
        return super().complete(completions)
