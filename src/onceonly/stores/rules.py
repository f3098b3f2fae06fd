"""The state × verb table, once, for stores whose code runs under a lock: memory and SQLite.

| record ↓ / verb →        | claim                      | complete      | release       | renew | mark_seen |
|--------------------------|----------------------------|---------------|---------------|-------|-----------|
| absent or expired        | Acquired, attempt 1        | False         | False         | False | True→done |
| claimed, running, ours   | same lease again           | True → done   | True → free   | True  | –         |
| claimed, running, other  | Busy                       | False         | False         | False | False     |
| claimed, over, ours      | same fence, new deadline   | True → done   | True → free   | True  | –         |
| claimed, over, other     | Acquired, attempt+1, orphan| False         | False         | False | True→done |
| free                     | Acquired, attempt+1, or    | False         | True if ours  | False | True→done |
|                          | Busy until not-before;     |               |               |       |           |
|                          | orphan if an orphan was    |               |               |       |           |
|                          | given back unstarted       |               |               |       |           |
| done, by us              | Done                       | True (again)  | False         | False | False     |
| done, by another         | Done                       | False         | False         | False | False     |
| quarantined              | Done(quarantined)          | as done       | False         | False | False     |

Each method is given the live record (never an expired one) and the time, changes the record in
place and returns the answer. The caller holds the lock, finds the record and keeps the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from onceonly.errors import InFlight
from onceonly.types import (
    Acquired,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Done,
    Mark,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Status,
)

FOREVER = float("inf")

# An enum's attribute costs 100 ns to look up, and these are looked up for every message.
_CLAIMED, _FREE = State.CLAIMED, State.FREE
_PROCESSED, _QUARANTINED = State.PROCESSED, State.QUARANTINED

_STATE_OF = {
    Status.PROCESSED: State.PROCESSED,
    Status.FAILED: State.FAILED,
    Status.QUARANTINED: State.QUARANTINED,
}
_STATUS_OF = {state: status for status, state in _STATE_OF.items()}


class Entry:
    """One record, changeable. ``until`` is the end of the lease, or the not-before once free.

    ``expires`` is when the record becomes as good as absent.
    """

    __slots__ = (
        "attempt",
        "done_at",
        "expires",
        "fence",
        "fingerprint",
        "orphaned",
        "result",
        "state",
        "token",
        "type",
        "until",
    )

    def __init__(self, state: State, token: bytes | None, expires: float) -> None:
        self.state = state
        self.token = token
        self.expires = expires
        self.until = 0.0
        self.fence = 0
        self.attempt = 0
        self.orphaned = False
        self.done_at: float | None = None
        self.type: str | None = None
        self.fingerprint: bytes | None = None
        self.result: bytes | None = None

    def is_still(self, shown: Record) -> bool:
        """Nothing happened to it since but time, and its owner's renewals."""
        return (self.state, self.fence) == (shown.state, shown.fence)

    def snapshot(self, record_id: RecordId, now: float) -> Record:
        claimed = self.state is _CLAIMED
        return Record(
            id=record_id,
            state=self.state,
            attempt=self.attempt,
            fence=self.fence,
            expires_at=None if self.expires == FOREVER else self.expires,
            lease_until=self.until if claimed else None,
            not_before=self.until if self.state is _FREE else None,
            done_at=self.done_at,
            orphaned=claimed and self.until <= now,
            type=self.type,
            fingerprint=self.fingerprint,
            result=self.result,
        )


class Rules:
    """The table. Broken variants in ``onceonly.testing.broken`` override one rule each."""

    def claim(
        self, entry: Entry | None, request: ClaimRequest, now: float, mint: Callable[[], int]
    ) -> tuple[ClaimAnswer, Entry | None]:
        """The answer, and the record to keep, or None where nothing changed."""
        if entry is None:
            entry = Entry(_CLAIMED, None, 0.0)
            entry.fingerprint = request.fingerprint
            entry.type = request.type
            return self.acquire(entry, request, now, mint), entry
        if entry.state is _CLAIMED:
            if entry.token == request.token:
                self.extend(entry, request, now, renew=entry.until <= now)
                answer = Acquired(entry.fence, entry.attempt, entry.orphaned, entry.fingerprint)
                return answer, entry
            if not self.lease_over(entry, now):
                return Busy(entry.until - now, entry.fingerprint), None
            return self.acquire(entry, request, now, mint, orphaned=True), entry
        if entry.state is _FREE:
            if entry.until > now:
                return Busy(entry.until - now, entry.fingerprint), None
            return self.acquire(entry, request, now, mint, orphaned=entry.orphaned), entry
        return self.done(entry), None

    def acquire(
        self,
        entry: Entry,
        request: ClaimRequest,
        now: float,
        mint: Callable[[], int],
        *,
        orphaned: bool = False,
    ) -> Acquired:
        entry.state = _CLAIMED
        entry.token = request.token
        entry.until = until = now + request.lease
        entry.expires = until + request.window
        entry.fence = fence = mint()
        entry.attempt = attempt = entry.attempt + 1
        entry.orphaned = orphaned
        return Acquired(fence, attempt, orphaned, entry.fingerprint)

    def extend(
        self, entry: Entry, request: ClaimRequest | Renewal, now: float, *, renew: bool = True
    ) -> None:
        if renew:
            entry.until = max(entry.until, now + request.lease)
            entry.expires = max(entry.expires, entry.until + request.window)

    def lease_over(self, entry: Entry, now: float) -> bool:
        return entry.until <= now

    def done(self, entry: Entry) -> Done:
        status = _STATUS_OF[entry.state]
        return Done(status, entry.result, entry.fingerprint, entry.attempt)

    def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
        if entry is None or entry.token != completion.token:
            return False
        if entry.state is _CLAIMED:
            entry.state = state = _STATE_OF[completion.status]
            entry.expires = FOREVER if state is _QUARANTINED else now + completion.window
            entry.result = completion.result
            entry.done_at = now
            return True
        return entry.state is not _FREE

    def release(self, entry: Entry | None, release: Release, now: float) -> bool:
        if entry is None or entry.token != release.token:
            return False
        if entry.state is _CLAIMED:
            entry.state = _FREE
            entry.until = now + release.delay
            entry.expires = max(entry.expires, entry.until + release.window)
            if release.started:
                entry.orphaned = False
            else:  # as if this claim had never been: what it found stays to be found
                entry.attempt -= 1
            return True
        return entry.state is _FREE

    def renew(self, entry: Entry | None, renewal: Renewal, now: float) -> bool:
        if entry is None or entry.token != renewal.token or entry.state is not _CLAIMED:
            return False
        self.extend(entry, renewal, now)
        return True

    def revoke(self, entry: Entry | None, now: float) -> bool:
        """As if its lease, or its not-before, had ended. Without a token nobody's write fits any more."""
        if entry is None or entry.state.done:
            return False
        entry.token = None
        entry.until = min(entry.until, now)
        return True

    def restart(self, entry: Entry | None, now: float) -> bool:
        """As if no attempt had been. It waits as a free record: nobody forgets that it has yet to run."""
        if entry is None or entry.state is _PROCESSED:
            return False
        entry.state, entry.token, entry.until = _FREE, None, now
        entry.attempt, entry.orphaned = 0, False
        entry.result = entry.done_at = None
        return True

    def mark(self, entry: Entry | None, mark: Mark, now: float) -> Entry | None:
        """The done record to keep, or None when the key is not new."""
        if entry is None:
            entry = Entry(_PROCESSED, None, now + mark.window)
            entry.type = mark.type
            entry.done_at = now
            entry.result = mark.result
            return entry
        if entry.state.done or self.live(entry, now):
            return None
        entry.state = _PROCESSED
        entry.token = None
        entry.expires = now + mark.window
        entry.done_at = now
        entry.result = mark.result
        return entry

    def live(self, entry: Entry, now: float) -> bool:
        """Is this a claim whose lease is running?"""
        return entry.state is _CLAIMED and not self.lease_over(entry, now)


REVOKE_HINT = "wait until its lease ends, or pass force=True if its worker is surely gone"
FORGET_HINT = "wait for it, or pass force=True if its worker is surely gone"
MARK_HINT = "roll back, and deliver it again later"


def refuse_live(record_id: RecordId, retry_after: float, hint: str) -> NoReturn:
    """Say that a record is in flight, and what to do about it."""
    msg = f"{record_id.key!r} of group {record_id.group!r} is being processed by a leased claim; {hint}"
    raise InFlight(msg, retry_after=retry_after)
