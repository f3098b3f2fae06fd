"""Promises about time: windows, unfinished records, and what ``purge`` may remove."""

from __future__ import annotations

from onceonly.testing.conformance.subject import (
    A,
    B,
    Subject,
    acquired,
    busy,
    check,
    done,
    equal,
    finished,
    freed,
    lapsed,
    marked,
    quarantined,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import Mark, State, Status


def _purge(subject: Subject) -> int:
    """Until none is left; the sum. A hundred calls are plenty for what a test leaves."""
    removed = 0
    for _ in range(100):
        count = subject.store.purge()
        removed += count
        if count == 0:
            break
    return removed


def done_is_remembered_for_the_window(harness: Harness) -> None:
    """Processed and failed records answer Done for at least the window."""
    subjects = [finished(harness), Subject(harness, "failed")]
    subjects[1].claim(A)
    subjects[1].complete(A, Status.FAILED)
    subjects[0].wait(15)
    for subject in subjects:
        done(subject.claim(B))


def done_is_forgotten_an_eighth_after_the_window(harness: Harness) -> None:
    """A done record answers for at most an eighth more than the window, with no purge."""
    subject = finished(harness)
    subject.wait(18.5)
    subject.is_absent()
    acquired(subject.claim(B))


def mark_is_remembered_for_the_window(harness: Harness) -> None:
    """A marked key is seen for at least the window."""
    subject = marked(harness)
    subject.wait(15)
    check(not subject.mark(), "a marked key was forgotten within its window")


def mark_is_forgotten_an_eighth_after_the_window(harness: Harness) -> None:
    """A marked key is new again after at most an eighth more than the window, with no purge."""
    subject = marked(harness)
    subject.wait(18.5)
    subject.is_absent()
    check(subject.mark(), "a marked key was seen an eighth after its window")


def window_counts_from_completion(harness: Harness) -> None:
    """However long the handler ran, the window begins when it is done."""
    subject = running(harness)
    subject.wait(3)
    check(subject.renew(A), "renew by the owner")
    subject.wait(3)
    check(subject.complete(A), "complete by the owner")
    subject.wait(15)
    done(subject.claim(B))
    subject.wait(3.5)
    acquired(subject.claim(B))


def window_of_completion_counts(harness: Harness) -> None:
    """A changed window applies to later completions, whatever the claim said."""
    subject = running(harness)
    longer = subject.completion(A)._replace(window=3 * subject.window)
    check(subject.store.complete([longer])[0], "complete by the owner")
    subject.wait(40)
    done(subject.claim(B))


def claim_outlives_its_lease_by_the_window(harness: Harness) -> None:
    """Attempts and orphans are known for at least the window after the lease, also after a purge."""
    subject = running(harness)
    subject.wait(4 + 15)
    subject.store.purge()
    answer = acquired(subject.claim(B))
    equal((answer.attempt, answer.orphaned), (2, True), "attempt and orphaned late in the window")


def renewed_claim_outlives_its_last_lease_by_the_window(harness: Harness) -> None:
    """The window of an unfinished record begins after its last lease."""
    subject = running(harness)
    for _ in range(3):
        subject.wait(3)
        check(subject.renew(A), "renew by the owner")
    subject.wait(4 + 15)
    subject.store.purge()
    equal(acquired(subject.claim(B)).attempt, 2, "attempt late in the window")


def free_record_lives_for_the_window(harness: Harness) -> None:
    """A released record keeps its attempts for at least the window, also after a purge."""
    subject = freed(harness)
    subject.wait(15)
    subject.store.purge()
    equal(acquired(subject.claim(B)).attempt, 2, "attempt late in the window")


def free_record_outlives_its_delay_by_the_window(harness: Harness) -> None:
    """A long not-before does not eat the window."""
    subject = running(harness)
    subject.release(A, delay=20)
    subject.wait(19)
    subject.store.purge()
    busy(subject.claim(B))
    subject.wait(15)
    equal(acquired(subject.claim(B)).attempt, 2, "attempt late in the window")


def quarantined_is_kept_for_good(harness: Harness) -> None:
    """A quarantined record stays until an operator acts, whatever the window and purge."""
    subject = quarantined(harness)
    subject.wait(100)
    subject.store.purge()
    equal(done(subject.claim(B)).status, Status.QUARANTINED, "status")


def purge_removes_expired_of_every_state(harness: Harness) -> None:
    """Claimed, free, processed, failed and marked records all go once they are expired."""
    for number, state in enumerate((State.CLAIMED, State.FREE, State.PROCESSED, State.FAILED)):
        subject = Subject(harness, f"{number}")
        subject.claim(A)
        if state is State.FREE:
            subject.release(A)
        elif state.done:
            subject.complete(A, Status(state.value))
    subject = marked(harness)
    subject.wait_until_forgotten()
    removed = _purge(subject)
    equal(sum(harness.store.stats().groups.get(harness.group, {}).values()), 0, "records left")
    if not harness.store.capabilities.native_ttl:
        check(removed >= 5, f"5 records were expired, purge removed {removed}")
        equal(harness.store.stats().expired, 0, "expired records after purge")


def purge_obeys_its_limit(harness: Harness) -> None:
    """A purge in small steps gets everything; 0 means none is left."""
    subject = Subject(harness)
    harness.store.mark_seen([Mark(subject.id._replace(key=f"{n}"), subject.window) for n in range(50)])
    subject.wait_until_forgotten()
    steps = [harness.store.purge(limit=20)]
    while steps[-1] and len(steps) < 100:
        steps.append(harness.store.purge(limit=20))
    if not harness.store.capabilities.native_ttl:
        check(sum(steps) >= 50, f"50 records were expired, purge removed {sum(steps)}")
        check(max(steps) < 50, f"one purge with limit=20 removed {max(steps)}")


def purge_keeps_live_lease(harness: Harness) -> None:
    """A running claim is not touched."""
    subject = running(harness)
    subject.wait(2)
    with subject.unchanged():
        subject.store.purge()


def purge_keeps_unfinished_within_window(harness: Harness) -> None:
    """Neither a lapsed nor a free record is touched within its window."""
    for make in (lapsed, freed):
        subject = make(harness)
        with subject.unchanged():
            subject.store.purge()
        subject.forget()


def purge_keeps_done_within_window(harness: Harness) -> None:
    """A done record is not touched within its window."""
    subject = finished(harness)
    subject.wait(14)
    with subject.unchanged():
        subject.store.purge()


def purge_changes_no_answer(harness: Harness) -> None:
    """Expiry is judged on read: the same before and after a purge."""
    purged, left = Subject(harness, "purged"), Subject(harness, "left")
    for subject in (purged, left):
        subject.claim(A)
        subject.complete(A)
    purged.wait_until_forgotten()
    first = acquired(left.claim(B))
    _purge(purged)
    second = acquired(purged.claim(B))
    equal(second._replace(fence=0), first._replace(fence=0), "answers before and after purge")
    with left.unchanged():
        _purge(left)


PROMISES = (
    done_is_remembered_for_the_window,
    done_is_forgotten_an_eighth_after_the_window,
    mark_is_remembered_for_the_window,
    mark_is_forgotten_an_eighth_after_the_window,
    window_counts_from_completion,
    window_of_completion_counts,
    claim_outlives_its_lease_by_the_window,
    renewed_claim_outlives_its_last_lease_by_the_window,
    free_record_lives_for_the_window,
    free_record_outlives_its_delay_by_the_window,
    quarantined_is_kept_for_good,
    purge_removes_expired_of_every_state,
    purge_obeys_its_limit,
    purge_keeps_live_lease,
    purge_keeps_unfinished_within_window,
    purge_keeps_done_within_window,
    purge_changes_no_answer,
)
