"""Rules and stores broken for operators: forget of chosen states, ``find``, ``revoke``."""

# ruff: noqa: ARG002 - what is broken is often that an argument is ignored
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from onceonly.stores.memory import MemoryStore
from onceonly.stores.rules import Entry, Rules
from onceonly.testing.broken.stores import FenceRestarts
from onceonly.types import EVERY_STATE, Mark, Query, Record, RecordId, State

PLENTY = 1_000_000


class RevokeKeepsToken(Rules):
    """The owner of a revoked claim completes it as if nothing had been."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        token = entry.token if entry is not None else None
        revoked = super().revoke(entry, now)
        if entry is not None:
            entry.token = token
        return revoked


class RevokeKeepsDeadline(Rules):
    """The next owner waits for the lease, or the not-before, to its end."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        until = entry.until if entry is not None else 0.0
        revoked = super().revoke(entry, now)
        if entry is not None:
            entry.until = until
        return revoked


class RevokeForgetsAttempts(Rules):
    """A revoked claim starts the count again."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        revoked = super().revoke(entry, now)
        if revoked and entry is not None:
            entry.attempt = 0
        return revoked


class RevokeReleases(Rules):
    """A revoked claim looks as if its handler had given it back: nobody asks what it did."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        revoked = super().revoke(entry, now)
        if revoked and entry is not None:
            entry.state = State.FREE
        return revoked


class RevokeMakesOrphans(Rules):
    """A revoked free record becomes an orphan, though its handler said that it failed."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        revoked = super().revoke(entry, now)
        if revoked and entry is not None:
            entry.orphaned = True
        return revoked


class RevokeSettlesTheOrphan(Rules):
    """A revoked free record is no orphan, whatever it was."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        revoked = super().revoke(entry, now)
        if revoked and entry is not None:
            entry.orphaned = False
        return revoked


class RevokeAlwaysTrue(MemoryStore):
    """Tells everybody that a claim was revoked, whatever there was."""

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        return [True for _ in super().revoke(shown, force=force, afresh=afresh)]


class RevokeReopensDone(Rules):
    """A done record can be revoked, and its message takes effect again."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        if entry is not None and entry.state.done:
            entry.state = State.CLAIMED
        return super().revoke(entry, now)


class RevokeForgetsWhoDidIt(Rules):
    """Revoke of a done record takes its token, so its owner's second completion is refused."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        if entry is not None:
            entry.token = None
        return super().revoke(entry, now)


class RevokeKeepsShort(Rules):
    """A revoked record lives one second."""

    def revoke(self, entry: Entry | None, now: float) -> bool:
        revoked = super().revoke(entry, now)
        if revoked and entry is not None:
            entry.expires = now + 1
        return revoked


class RevokeForgetsFence(FenceRestarts):
    """The fence is a count in the record, and a revoke starts it again."""

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        revoked = super().revoke(shown, force=force, afresh=afresh)
        for record, was in zip(shown, revoked, strict=True):
            if was:
                self._entries[record.id].fence = 0
        return revoked


class RevokeIgnoresLiveClaims(MemoryStore):
    """Revoke takes a claim from its running handler, forced or not."""

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        return super().revoke(shown, force=True, afresh=afresh)


class RevokeStopsHalfWay(MemoryStore):
    """Revoke takes what comes before the live claim, then raises."""

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        return [super(RevokeStopsHalfWay, self).revoke([r], force=force, afresh=afresh)[0] for r in shown]


class RevokeTrustsAnything(MemoryStore):
    """Revoke takes whatever has the key by now, not what the operator was shown."""

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        now = self.peek([record.id for record in shown])
        current = [record or old for record, old in zip(now, shown, strict=True)]
        return super().revoke(current, force=force, afresh=afresh)


class RestartKeepsAttempts(Rules):
    """What is to run again is one attempt further, and may be quarantined at once."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        attempt = entry.attempt if entry is not None else 0
        restarted = super().restart(entry, now)
        if restarted and entry is not None:
            entry.attempt = attempt
        return restarted


class RestartKeepsToken(Rules):
    """The last owner of what is to run again releases it once more."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        token = entry.token if entry is not None else None
        restarted = super().restart(entry, now)
        if restarted and entry is not None:
            entry.token = token
        return restarted


class RestartLeavesAnOrphan(Rules):
    """What is to run again is asked about as an orphan."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        restarted = super().restart(entry, now)
        if restarted and entry is not None:
            entry.orphaned = True
        return restarted


class RestartForgetsTheFingerprint(Rules):
    """What is to run again may come with another payload."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        restarted = super().restart(entry, now)
        if restarted and entry is not None:
            entry.fingerprint = None
        return restarted


class RestartTakesProcessed(Rules):
    """What has taken effect can be made to run again."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        if entry is not None and entry.state is State.PROCESSED:
            entry.state = State.FAILED
        return super().restart(entry, now)


class RestartExpires(Rules):
    """What was quarantined is forgotten a while after an operator acted, though it never ran."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        restarted = super().restart(entry, now)
        if restarted and entry is not None:
            entry.expires = min(entry.expires, now + 20)
        return restarted


class RestartOnlyWaits(Rules):
    """Only what is free already can be made to run again."""

    def restart(self, entry: Entry | None, now: float) -> bool:
        free = entry is not None and entry.state is State.FREE
        return free and super().restart(entry, now)


class GroupsComeAsTheyWere(MemoryStore):
    """Groups are listed in the order of their first records."""

    def groups(self) -> list[str]:
        return list(dict.fromkeys(record_id.group for record_id in self._entries))


# --- forget -------------------------------------------------------------------------------------


class ForgetTakesEveryState(MemoryStore):
    """Forget of some states takes every record, live claims and all."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return super().forget(ids, force=force or set(only) != EVERY_STATE)


class ForgetMindsOtherStates(MemoryStore):
    """Forget raises at any live claim, also where claims were not meant."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        with self._lock:
            self._not_live(ids, self._tick(), "wait for it", force=force)
        return super().forget(ids, force=force, only=only)


class ForgetOnlyIsForce(MemoryStore):
    """To name claims among the states counts as force."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return super().forget(ids, force=force or set(only) != EVERY_STATE, only=only)


class ForgetCountsTwice(MemoryStore):
    """A key that comes twice in a call is told as forgotten twice."""

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        gone = super().forget(ids, force=force, only=only)
        forgotten = {record_id for record_id, was in zip(ids, gone, strict=True) if was}
        return [record_id in forgotten for record_id in ids]


# --- find ---------------------------------------------------------------------------------------


class FindShowsHalf(MemoryStore):
    """Found records come without what their handlers left."""

    def find(self, query: Query) -> list[Record]:
        return [replace(record, fingerprint=None, result=None) for record in super().find(query)]


class MarksHaveFences(MemoryStore):
    """A mark counts as a claim, so that millions of them are found."""

    def _mark(self, mark: Mark, now: float) -> bool:
        new = super()._mark(mark, now)
        if new:
            self._entries[mark.id].fence = self._mint()
        return new


class MarkInheritsFence(MemoryStore):
    """A key marked after its claim expired is found as if it were that claim."""

    def _tick(self) -> float:
        return self._clock()  # expired records stay, to inherit from

    def _mark(self, mark: Mark, now: float) -> bool:
        known = self._entries.get(mark.id)
        new = super()._mark(mark, now)
        if new and known is not None:
            self._entries[mark.id].fence = known.fence
        return new


class MarkForgetsClaim(MemoryStore):
    """A mark replaces the record, and nobody finds that there was a claim."""

    def _mark(self, mark: Mark, now: float) -> bool:
        new = super()._mark(mark, now)
        if new:
            self._entries[mark.id].fence = 0
        return new


class FindShowsExpired(MemoryStore):
    """Find shows what waits for cleanup."""

    def _tick(self) -> float:
        return self._clock()

    def find(self, query: Query) -> list[Record]:
        now = self._clock()
        expired = [
            entry.snapshot(record_id, now)
            for record_id, entry in self._entries.items()
            if entry.expires <= now and entry.state in query.states
        ]
        return super().find(query) + expired


class FindIgnoresStates(MemoryStore):
    """Find shows every state."""

    def find(self, query: Query) -> list[Record]:
        return super().find(replace(query, states=EVERY_STATE))


class FindIgnoresGroup(MemoryStore):
    """Find shows other groups' records."""

    def find(self, query: Query) -> list[Record]:
        return super().find(replace(query, group=None))


class FindIgnoresOrphaned(MemoryStore):
    """Find shows running claims among the orphans."""

    def find(self, query: Query) -> list[Record]:
        return super().find(replace(query, orphaned=None))


class FindShowsClaimsOnly(MemoryStore):
    """Who chooses among claims sees claims only."""

    def find(self, query: Query) -> list[Record]:
        found = super().find(query)
        return [record for record in found if query.orphaned is None or record.state is State.CLAIMED]


class FindComesNewestFirst(MemoryStore):
    """The youngest claims come first, and the old ones are cut off."""

    def find(self, query: Query) -> list[Record]:
        return super().find(replace(query, limit=PLENTY))[::-1][: query.limit]


class FindComesByKey(MemoryStore):
    """Find shows records by name, whenever they were claimed."""

    def find(self, query: Query) -> list[Record]:
        return sorted(super().find(query), key=lambda record: record.id)


class FindIgnoresLimit(MemoryStore):
    """Find shows everything, however much there is."""

    def find(self, query: Query) -> list[Record]:
        return super().find(replace(query, limit=PLENTY))


class FindLimitsFirst(MemoryStore):
    """The limit is applied before the states are, so that done records hide the claims."""

    def find(self, query: Query) -> list[Record]:
        found = super().find(replace(query, states=EVERY_STATE))
        return [record for record in found if record.state in query.states]


class FindTouches(MemoryStore):
    """Whatever is looked at lives longer."""

    def find(self, query: Query) -> list[Record]:
        found = super().find(query)
        for record in found:
            self._entries[record.id].expires += 1
        return found
