"""Promises of ``claim``: the first column of the table, fences, attempts and fingerprints."""

from __future__ import annotations

from onceonly.testing.conformance.subject import (
    A,
    B,
    C,
    Subject,
    absent,
    acquired,
    busy,
    check,
    done,
    equal,
    expired,
    finished,
    freed,
    lapsed,
    marked,
    quarantined,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import Acquired, State, Status


def claim_of_absent_is_acquired(harness: Harness) -> None:
    """An absent record is acquired, as attempt 1 and no orphan."""
    subject = absent(harness)
    answer = acquired(subject.claim(A))
    equal((answer.attempt, answer.orphaned), (1, False), "attempt and orphaned of a new claim")
    subject.is_state(State.CLAIMED)


def claim_of_expired_is_acquired_as_new(harness: Harness) -> None:
    """An expired record of any state answers like an absent one."""
    for subject in expired(harness):
        answer = acquired(subject.claim(B, b"new"))
        equal(answer, Acquired(answer.fence, 1, False, b"new"), "claim of an expired record")


def claim_again_by_owner_is_same_lease(harness: Harness) -> None:
    """The same token again gives the same lease again, with no new deadline."""
    subject = absent(harness)
    first = subject.claim(A)
    with subject.unchanged():
        equal(subject.claim(A), first, "claim sent again")


def claim_of_running_by_other_is_busy(harness: Harness) -> None:
    """At most one live claim per key."""
    subject = running(harness)
    with subject.unchanged():
        busy(subject.claim(B))


def claim_is_not_taken_before_lease_is_over(harness: Harness) -> None:
    """A lease holds to its end."""
    subject = running(harness)
    subject.wait(3)
    busy(subject.claim(B))


def busy_says_when_lease_ends(harness: Harness) -> None:
    """``retry_after`` is what is left of the lease."""
    subject = running(harness)
    subject.wait(1)
    left = busy(subject.claim(B)).retry_after / subject.unit
    check(1.5 <= left <= 3.01, f"3 of 4 units are left, retry_after says {left}")


def claim_of_lapsed_by_owner_is_same_claim(harness: Harness) -> None:
    """Its owner gets a claim whose lease is over back: same fence and attempt, new deadline."""
    subject = absent(harness)
    first = subject.claim(A)
    subject.wait(5)
    equal(subject.claim(A), first, "claim sent again after its lease")
    busy(subject.claim(B))


def claim_of_lapsed_by_other_is_take_over(harness: Harness) -> None:
    """A claim whose lease is over may be taken; it is then the next attempt, and orphaned."""
    subject = lapsed(harness)
    answer = acquired(subject.claim(B))
    equal((answer.attempt, answer.orphaned), (2, True), "attempt and orphaned of a take-over")
    busy(subject.claim(A))


def orphaned_is_said_again(harness: Harness) -> None:
    """A take-over sent again is answered the same, orphaned included."""
    subject = lapsed(harness)
    equal(subject.claim(B), subject.claim(B), "take-over sent again")


def claim_of_free_is_next_attempt(harness: Harness) -> None:
    """A released record is the next attempt, and no orphan."""
    answer = acquired(freed(harness).claim(B))
    equal((answer.attempt, answer.orphaned), (2, False), "attempt and orphaned after a release")


def claim_of_free_waits_for_not_before(harness: Harness) -> None:
    """Nobody, not even the last owner, gets a released record before its delay is over."""
    subject = running(harness)
    check(subject.release(A, delay=6), "release by the owner")
    for token in (A, B):
        left = busy(subject.claim(token)).retry_after / subject.unit
        check(4.5 <= left <= 6.01, f"the delay is 6 units, retry_after says {left}")
    subject.wait(4.5)
    busy(subject.claim(B))
    subject.wait(2)
    equal(acquired(subject.claim(B)).attempt, 2, "attempt after the delay")


def claim_of_done_by_owner_is_done(harness: Harness) -> None:
    """Done is done, also for the token that did it."""
    subject = finished(harness, Status.PROCESSED, b"17")
    with subject.unchanged():
        answer = done(subject.claim(A))
    equal((answer.status, answer.result), (Status.PROCESSED, b"17"), "claim of a done record")


def claim_of_done_by_other_is_done(harness: Harness) -> None:
    """Another token gets status and result, and changes nothing."""
    subject = finished(harness, Status.PROCESSED, b"17")
    with subject.unchanged():
        answer = done(subject.claim(B))
    equal((answer.status, answer.result), (Status.PROCESSED, b"17"), "claim of a done record")


def claim_of_failed_is_done(harness: Harness) -> None:
    """A stored failure is replayed as one."""
    answer = done(finished(harness, Status.FAILED, b"why").claim(B))
    equal((answer.status, answer.result), (Status.FAILED, b"why"), "claim of a failed record")


def claim_of_marked_is_done(harness: Harness) -> None:
    """A mark is a done record without a result."""
    answer = done(marked(harness).claim(B))
    equal((answer.status, answer.result), (Status.PROCESSED, None), "claim of a marked record")


def claim_of_quarantined_is_done(harness: Harness) -> None:
    """A quarantined record is nobody's to run."""
    subject = quarantined(harness)
    with subject.unchanged():
        for token in (A, B):
            equal(done(subject.claim(token)).status, Status.QUARANTINED, "status")


# --- fences -------------------------------------------------------------------------------------


def _fence(subject: Subject, token: bytes) -> int:
    return acquired(subject.claim(token)).fence


def fence_is_positive_and_below_2_53(harness: Harness) -> None:
    """A fence fits in a double, which is what JSON and Lua have."""
    fence = _fence(absent(harness), A)
    check(0 < fence < 2**53, f"fence {fence} is not between 0 and 2^53")


def fence_grows_across_take_over(harness: Harness) -> None:
    """A new owner after a lapse has a larger fence."""
    subject = absent(harness)
    first = _fence(subject, A)
    subject.wait(5)
    check(_fence(subject, B) > first, "the fence did not grow across a take-over")


def fence_grows_across_release(harness: Harness) -> None:
    """A new owner after a release has a larger fence, also when no time passed."""
    subject = absent(harness)
    first = _fence(subject, A)
    subject.release(A)
    check(_fence(subject, B) > first, "the fence did not grow across a release")


def fence_grows_across_expiry(harness: Harness) -> None:
    """The first owner after expiry has a larger fence than any before."""
    subject = absent(harness)
    first = _fence(subject, A)
    subject.complete(A)
    subject.wait_until_forgotten()
    check(_fence(subject, B) > first, "the fence did not grow across expiry")


def fence_grows_across_purge(harness: Harness) -> None:
    """The first owner after a purge has a larger fence than any before."""
    subject = absent(harness)
    first = _fence(subject, A)
    subject.complete(A)
    subject.wait_until_forgotten()
    subject.store.purge()
    check(_fence(subject, B) > first, "the fence did not grow across a purge")


def fence_grows_across_forget(harness: Harness) -> None:
    """The first owner after ``forget`` has a larger fence, also when no time passed."""
    subject = absent(harness)
    first = _fence(subject, A)
    subject.forget(force=True)
    check(_fence(subject, B) > first, "the fence did not grow across a forget")


# --- attempts -----------------------------------------------------------------------------------


def attempts_survive_release(harness: Harness) -> None:
    """``attempt`` counts starts, however often the record is released."""
    subject = absent(harness)
    for attempt, token in enumerate((A, B, C), start=1):
        equal(acquired(subject.claim(token)).attempt, attempt, "attempt after releases")
        check(subject.release(token), "release by the owner")


def attempts_survive_take_over(harness: Harness) -> None:
    """``attempt`` counts starts, however often the record is taken over."""
    subject = absent(harness)
    for attempt, token in enumerate((A, B, C), start=1):
        equal(acquired(subject.claim(token)).attempt, attempt, "attempt after take-overs")
        subject.wait(5)


def unstarted_attempt_does_not_count(harness: Harness) -> None:
    """A claim released with ``started=False`` was no start."""
    subject = freed(harness)
    equal(acquired(subject.claim(B)).attempt, 2, "attempt after one start")
    check(subject.release(B, started=False), "release by the owner")
    equal(acquired(subject.claim(C)).attempt, 2, "attempt after a release that never started")


def done_keeps_its_attempt(harness: Harness) -> None:
    """A done record tells which attempt did it."""
    subject = freed(harness)
    subject.claim(B)
    check(subject.complete(B), "complete by the owner")
    equal(done(subject.claim(C)).attempt, 2, "attempt of a done record")


# --- fingerprints -------------------------------------------------------------------------------


def fingerprint_is_told_on_acquired(harness: Harness) -> None:
    """A claim tells its fingerprint, or None if it has none."""
    equal(acquired(Subject(harness, "with").claim(A, b"first")).fingerprint, b"first", "fingerprint")
    equal(acquired(Subject(harness, "without").claim(A)).fingerprint, None, "fingerprint")


def fingerprint_is_told_on_busy(harness: Harness) -> None:
    """Who is told to wait is told the fingerprint of what runs."""
    subject = running(harness, b"first")
    equal(busy(subject.claim(B, b"other")).fingerprint, b"first", "fingerprint on Busy")
    subject.release(A, delay=2)
    equal(busy(subject.claim(B, b"other")).fingerprint, b"first", "fingerprint until not-before")


def fingerprint_is_told_on_done(harness: Harness) -> None:
    """Who comes too late is told the fingerprint of what was done."""
    subject = running(harness, b"first")
    check(subject.complete(A), "complete by the owner")
    equal(done(subject.claim(B, b"other")).fingerprint, b"first", "fingerprint on Done")


def first_fingerprint_wins(harness: Harness) -> None:
    """A record keeps its first fingerprint across re-send, release and take-over."""
    subject = running(harness, b"first")
    equal(acquired(subject.claim(A, b"other")).fingerprint, b"first", "fingerprint on a re-send")
    subject.release(A)
    equal(acquired(subject.claim(B, b"other")).fingerprint, b"first", "fingerprint after release")
    subject.wait(5)
    equal(acquired(subject.claim(C, b"other")).fingerprint, b"first", "fingerprint after take-over")


PROMISES = (
    claim_of_absent_is_acquired,
    claim_of_expired_is_acquired_as_new,
    claim_again_by_owner_is_same_lease,
    claim_of_running_by_other_is_busy,
    claim_is_not_taken_before_lease_is_over,
    busy_says_when_lease_ends,
    claim_of_lapsed_by_owner_is_same_claim,
    claim_of_lapsed_by_other_is_take_over,
    orphaned_is_said_again,
    claim_of_free_is_next_attempt,
    claim_of_free_waits_for_not_before,
    claim_of_done_by_owner_is_done,
    claim_of_done_by_other_is_done,
    claim_of_failed_is_done,
    claim_of_marked_is_done,
    claim_of_quarantined_is_done,
    fence_is_positive_and_below_2_53,
    fence_grows_across_take_over,
    fence_grows_across_release,
    fence_grows_across_expiry,
    fence_grows_across_purge,
    fence_grows_across_forget,
    attempts_survive_release,
    attempts_survive_take_over,
    unstarted_attempt_does_not_count,
    done_keeps_its_attempt,
    fingerprint_is_told_on_acquired,
    fingerprint_is_told_on_busy,
    fingerprint_is_told_on_done,
    first_fingerprint_wins,
)
