"""Rules broken for the owner of a claim: complete, release, renew, and the windows of records."""

# ruff: noqa: ARG002 - what is broken is often that an argument is ignored
from __future__ import annotations

from onceonly.stores.rules import FOREVER, Entry, Rules
from onceonly.types import (
    ClaimRequest,
    Completion,
    Mark,
    Release,
    Renewal,
    State,
    Status,
)


class NoTokenCheckOnComplete(Rules):
    """Anybody may complete a claim."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        token = entry.token if entry and entry.token else completion.token
        return super().complete(entry, completion._replace(token=token), now)


class NoTokenCheckOnRelease(Rules):
    """Anybody may release a claim."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        token = entry.token if entry and entry.token else release.token
        return super().release(entry, release._replace(token=token), now)


class NoTokenCheckOnRenew(Rules):
    """Anybody may renew a claim."""

    def renew(self, entry: Entry | None, renewal: Renewal, now: float) -> bool:
        token = entry.token if entry and entry.token else renewal.token
        return super().renew(entry, renewal._replace(token=token), now)


class TakesOverRunningLease(Rules):
    """A lease counts as over when it is not."""

    def lease_over(self, entry: Entry, now: float) -> bool:
        return True


class TakesOverALittleEarly(Rules):
    """A lease counts as over two seconds before its end."""

    def lease_over(self, entry: Entry, now: float) -> bool:
        return entry.until - 2 <= now


class LeaseNeverEnds(Rules):
    """A dead worker's claim is held for ever."""

    def lease_over(self, entry: Entry, now: float) -> bool:
        return False


class ReleaseForgetsAttempts(Rules):
    """Each release starts the count again: a poison message loops for ever."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        released = super().release(entry, release, now)
        if released and entry is not None:
            entry.attempt = 0
        return released


class ReleaseDeletesTheRecord(Rules):
    """``except: delete(key)``, as the textbook has it."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        released = super().release(entry, release, now)
        if released and entry is not None:
            entry.expires = 0.0
        return released


class ReleaseCountsUnstarted(Rules):
    """``started=False`` is ignored."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        return super().release(entry, release._replace(started=True), now)


class ReleaseCountsTwice(Rules):
    """A release that is sent again takes back an attempt again."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        if entry is not None and entry.state is State.FREE and entry.token == release.token:
            entry.state = State.CLAIMED
        return super().release(entry, release, now)


class ReleaseIgnoresDelay(Rules):
    """There is no not-before."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        return super().release(entry, release._replace(delay=0.0), now)


class ReleaseKeepsShort(Rules):
    """A free record lives one second."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        released = super().release(entry, release, now)
        if released and entry is not None:
            entry.expires = entry.until + 1
        return released


class ReleaseAlwaysTrue(Rules):
    """Tells everybody that a record was released, whoever had it."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        super().release(entry, release, now)
        return True


class ReleaseOnlyWithinLease(Rules):
    """A late owner's release is refused although nobody took the claim."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        if entry is not None and entry.state is State.CLAIMED and entry.until <= now:
            return False
        return super().release(entry, release, now)


class ReleaseOnlyOnce(Rules):
    """A release whose reply was lost is told False when it is sent again."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        if entry is not None and entry.state is State.FREE:
            return False
        return super().release(entry, release, now)


class DoneCanBeReleased(Rules):
    """A done record becomes free again."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        if entry is not None and entry.state.done:
            entry.state = State.FREE
        return super().release(entry, release, now)


class RenewAlwaysTrue(Rules):
    """A stale owner never learns that it is stale."""

    def renew(self, entry: Entry | None, renewal: Renewal, now: float) -> bool:
        super().renew(entry, renewal, now)
        return True


class RenewDoesNothing(Rules):
    """Says True and lets the lease run out."""

    def extend(
        self, entry: Entry, request: ClaimRequest | Renewal, now: float, *, renew: bool = True
    ) -> None:
        return


class RenewKeepsExpiry(Rules):
    """The record expires as if its lease had never been renewed."""

    def renew(self, entry: Entry | None, renewal: Renewal, now: float) -> bool:
        expires = entry.expires if entry is not None else 0.0
        renewed = super().renew(entry, renewal, now)
        if renewed and entry is not None:
            entry.expires = expires
        return renewed


class CompleteAlwaysTrue(Rules):
    """Tells everybody that the record is done."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        super().complete(entry, completion, now)
        return True


class CompleteOnlyOnce(Rules):
    """A completion whose reply was lost is told False when it is sent again."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        if entry is not None and entry.state.done:
            return False
        return super().complete(entry, completion, now)


class CompleteOfDoneSaysTrue(Rules):
    """Done by another is told as done by us."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        return (entry is not None and entry.state.done) or super().complete(entry, completion, now)


class CompleteOfFree(Rules):
    """A claim that was given back can be completed."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        if entry is not None and entry.state is State.FREE:
            entry.state = State.CLAIMED
        return super().complete(entry, completion, now)


class CompleteOnlyWithinLease(Rules):
    """A late owner's completion is refused although nobody took the claim."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        if entry is not None and entry.state is State.CLAIMED and entry.until <= now:
            return False
        return super().complete(entry, completion, now)


class CompleteOverwritesResult(Rules):
    """A completion that is sent again replaces the first result."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        done = super().complete(entry, completion, now)
        if done and entry is not None:
            entry.result = completion.result
        return done


class FalsyResultIsNone(Rules):
    """A result of 0, "" or [] replays as None."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        falsy = completion.result in (b"0", b'""', b"[]", b"null", b"false", b"")
        result = None if falsy else completion.result
        return super().complete(entry, completion._replace(result=result), now)


class FailedIsProcessed(Rules):
    """A stored failure replays as success."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        if completion.status is Status.FAILED:
            completion = completion._replace(status=Status.PROCESSED)
        return super().complete(entry, completion, now)


class QuarantineEnds(Rules):
    """A quarantined record expires like any other."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        done = super().complete(entry, completion, now)
        if done and entry is not None and entry.expires == FOREVER:
            entry.expires = now + completion.window
        return done


class WindowCountsFromClaim(Rules):
    """A slow handler eats the window of its own record."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        expires = entry.expires - 4 if entry is not None else 0.0
        fresh = entry is not None and entry.state is State.CLAIMED
        done = super().complete(entry, completion, now)
        if done and fresh and entry is not None and entry.expires != FOREVER:
            entry.expires = expires
        return done

    def extend(
        self, entry: Entry, request: ClaimRequest | Renewal, now: float, *, renew: bool = True
    ) -> None:
        if renew:
            entry.until = max(entry.until, now + request.lease)


class WindowTooShort(Rules):
    """Done and marked records go an eighth early."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        return super().complete(entry, completion._replace(window=completion.window * 0.875), now)

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark._replace(window=mark.window * 0.875), now)


class WindowTooLong(Rules):
    """Done and marked records stay twice as long."""

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        return super().complete(entry, completion._replace(window=completion.window * 2), now)

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark._replace(window=mark.window * 2), now)


class UnstartedReleaseSettlesTheOrphan(Rules):
    """Giving a take-over back forgets that an earlier run stopped without a word."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        released = super().release(entry, release, now)
        if released and entry is not None:
            entry.orphaned = False
        return released


class OrphanForEver(Rules):
    """A release leaves the record an orphan, whatever ran meanwhile."""

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        orphaned = entry is not None and entry.orphaned
        released = super().release(entry, release, now)
        if entry is not None:
            entry.orphaned = orphaned
        return released
