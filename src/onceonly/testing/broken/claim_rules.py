"""Rules broken for who asks without owning: claims and marks, and what they are told."""

# ruff: noqa: ARG002 - what is broken is often that an argument is ignored
from __future__ import annotations

from collections.abc import Callable

from onceonly.stores.rules import Entry, Rules
from onceonly.types import Acquired, Busy, ClaimAnswer, ClaimRequest, Done, Mark, State

Mint = Callable[[], int]
Claimed = tuple[ClaimAnswer, Entry | None]


class QuarantineCanBeTaken(Rules):
    """A quarantined record is free for all, once its lease would be over or not."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        if entry is not None and entry.state is State.QUARANTINED:
            return self.acquire(entry, request, now, mint), entry
        return super().claim(entry, request, now, mint)

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        if entry is not None and entry.state is State.QUARANTINED:
            entry.state = State.FREE
        return super().mark(entry, mark, now)


class ResultIsText(Rules):
    """A result goes through a text column, and None becomes empty."""

    def done(self, entry: Entry) -> Done:
        result = (entry.result or b"").decode("utf-8", "replace").encode()
        return super().done(entry)._replace(result=result)


class MarkIsAlwaysNew(Rules):
    """A mark never finds anything, not even a live claim."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(None, mark, now)


class MarkOverLiveClaim(Rules):
    """A mark takes a live claim."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        if entry is not None and entry.state is State.CLAIMED:
            entry.until = 0.0
        return super().mark(entry, mark, now)


class MarkSeesUnfinished(Rules):
    """A record that was never finished counts as seen: its message is lost."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(None, mark, now) if entry is None else None


class MarkIsNeverNew(Rules):
    """Everything counts as seen: every message is lost."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return None


class MarkForgetsType(Rules):
    """The type of a mark is dropped."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark._replace(type=None), now)


class MarkForgetsResult(Rules):
    """The result of a mark is dropped."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark._replace(result=None), now)


class EmptyMarkResultIsNone(Rules):
    """An empty result of a mark is taken for none."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark._replace(result=mark.result or None), now)


class LastMarkResultWins(Rules):
    """A mark of what is done replaces the result it has."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        if entry is not None and entry.state.done:
            entry.result = mark.result
        return super().mark(entry, mark, now)


class FirstMarkResultFillsIn(Rules):
    """A mark of what is done gives it a result, where it has none."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        if entry is not None and entry.state.done and entry.result is None:
            entry.result = mark.result
        return super().mark(entry, mark, now)


class MarkOverUnfinishedForgetsResult(Rules):
    """Only a mark of a key that was never seen keeps its result."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        return super().mark(entry, mark if entry is None else mark._replace(result=None), now)


class MarkKeepsToken(Rules):
    """The stale owner of a marked record is told that its completion counted."""

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        token = entry.token if entry is not None else None
        kept = super().mark(entry, mark, now)
        if kept is not None:
            kept.token = token
        return kept


class ResentClaimMintsAnother(Rules):
    """A claim that is sent again is a new claim."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        if entry is not None and entry.state is State.CLAIMED and entry.token == request.token:
            return self.acquire(entry, request, now, mint), entry
        return super().claim(entry, request, now, mint)


class ResentClaimIsBusy(Rules):
    """A claim whose reply was lost waits for itself."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        if entry is not None and entry.token == request.token and self.live(entry, now):
            return Busy(entry.until - now, entry.fingerprint), None
        return super().claim(entry, request, now, mint)


class TakeOverResetsAttempts(Rules):
    """A claim by another starts the count again."""

    def acquire(
        self, entry: Entry, request: ClaimRequest, now: float, mint: Mint, *, orphaned: bool = False
    ) -> Acquired:
        if orphaned:
            entry.attempt = 0
        return super().acquire(entry, request, now, mint, orphaned=orphaned)


class OrphansAreNotTold(Rules):
    """A take-over looks like any other claim."""

    def acquire(
        self, entry: Entry, request: ClaimRequest, now: float, mint: Mint, *, orphaned: bool = False
    ) -> Acquired:
        return super().acquire(entry, request, now, mint)


class OrphanIsToldOnce(Rules):
    """A take-over that is sent again no longer says that it was one."""

    def acquire(
        self, entry: Entry, request: ClaimRequest, now: float, mint: Mint, *, orphaned: bool = False
    ) -> Acquired:
        return super().acquire(entry, request, now, mint)._replace(orphaned=orphaned)


class EveryoneIsOrphaned(Rules):
    """Each claim says that it took over an orphan."""

    def acquire(
        self, entry: Entry, request: ClaimRequest, now: float, mint: Mint, *, orphaned: bool = False
    ) -> Acquired:
        return super().acquire(entry, request, now, mint, orphaned=True)


class ClaimExpiresWithItsLease(Rules):
    """An unfinished record goes with its lease: attempts and orphans are forgotten."""

    def acquire(
        self, entry: Entry, request: ClaimRequest, now: float, mint: Mint, *, orphaned: bool = False
    ) -> Acquired:
        answer = super().acquire(entry, request, now, mint, orphaned=orphaned)
        entry.expires = entry.until + 0.5
        return answer


class RetryAfterIsADeadline(Rules):
    """``retry_after`` is a timestamp instead of a duration."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        answer, kept = super().claim(entry, request, now, mint)
        return (answer._replace(retry_after=now) if isinstance(answer, Busy) else answer), kept


class FingerprintLostOnBusy(Rules):
    """Who has to wait cannot tell another payload."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        answer, kept = super().claim(entry, request, now, mint)
        return (answer._replace(fingerprint=None) if isinstance(answer, Busy) else answer), kept


class FingerprintLostOnDone(Rules):
    """The fast path does not check the payload."""

    def done(self, entry: Entry) -> Done:
        return super().done(entry)._replace(fingerprint=None)


class LastFingerprintWins(Rules):
    """Each claim overwrites the fingerprint, so that no mismatch is ever seen."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        if entry is not None:
            entry.fingerprint = request.fingerprint
        return super().claim(entry, request, now, mint)


class FingerprintOfNothing(Rules):
    """No fingerprint is stored as an empty one."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        fingerprint = request.fingerprint or b""
        return super().claim(entry, request._replace(fingerprint=fingerprint), now, mint)


class DoneForgetsAttempt(Rules):
    """Every done record says attempt 1."""

    def done(self, entry: Entry) -> Done:
        return super().done(entry)._replace(attempt=1)


class DoneRunsAgain(Rules):
    """A done record can be claimed: its message takes effect twice."""

    def claim(self, entry: Entry | None, request: ClaimRequest, now: float, mint: Mint) -> Claimed:
        if entry is not None and entry.state is State.PROCESSED:
            return self.acquire(entry, request, now, mint), entry
        return super().claim(entry, request, now, mint)
