"""Promises of ``bind``: a store's verbs inside the caller's transaction. For transactional stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceonly.errors import InFlight, LeaseLost
from onceonly.protocols import BoundStore
from onceonly.testing.conformance.subject import (
    A,
    B,
    Subject,
    absent,
    acquired,
    busy,
    check,
    done,
    equal,
    expired,
    fail,
    finished,
    freed,
    lapsed,
    marked,
    quarantined,
    raises,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import Release, State, Status


class RollbackError(Exception):
    """Raised in a transaction to have it rolled back."""


@contextmanager
def bound(harness: Harness) -> Iterator[BoundStore]:
    """A bound store in a transaction that commits at the end."""
    if harness.transaction is None:
        fail("a transactional store needs Harness(transaction=...)")
    with harness.transaction() as connection:
        yield harness.store.bind(connection)


@contextmanager
def rolled_back(harness: Harness) -> Iterator[BoundStore]:
    """A bound store in a transaction that is rolled back at the end."""
    try:
        with bound(harness) as store:
            yield store
            raise RollbackError  # noqa: TRY301 - the transaction must see it
    except RollbackError:
        pass


def _first_time(subject: Subject) -> bool:
    with bound(subject.harness) as store:
        return store.mark_seen([subject.mark_request()])[0]


def _is_first(subject: Subject) -> None:
    check(_first_time(subject), "a new key was told seen")
    subject.is_state(State.PROCESSED)
    check(not _first_time(subject), "a marked key was told new")


def _is_known(subject: Subject) -> None:
    with subject.unchanged():
        check(not _first_time(subject), "a known key was told new")


def bound_mark_of_absent_is_new(harness: Harness) -> None:
    """An absent key is new once; what was committed is visible to all."""
    _is_first(absent(harness))


def bound_mark_of_expired_is_new(harness: Harness) -> None:
    """An expired record of any state answers like an absent one."""
    for subject in expired(harness):
        _is_first(subject)


def bound_mark_of_running_raises(harness: Harness) -> None:
    """A live claim raises InFlight, and nothing of that call is marked, even if then committed."""
    live, other = running(harness), Subject(harness, "other")
    marks = [other.mark_request(), live.mark_request(), Subject(harness, "third").mark_request()]
    with live.unchanged(), bound(harness) as store, raises(InFlight, "a bound mark of a live claim"):
        store.mark_seen(marks)
    other.is_absent()
    Subject(harness, "third").is_absent()
    check(live.complete(A), "a refused mark took the claim")


def bound_mark_of_lapsed_is_new(harness: Harness) -> None:
    """A claim whose lease is over does not hold up a mark; its owner is then refused."""
    subject = lapsed(harness)
    _is_first(subject)
    check(not subject.complete(A), "a stale owner completed a marked record")


def bound_mark_of_free_is_new(harness: Harness) -> None:
    """A released record is not done, so it is new."""
    _is_first(freed(harness))


def bound_mark_of_done_is_seen(harness: Harness) -> None:
    """Processed, failed and marked are seen."""
    _is_known(finished(harness))
    _is_known(Subject(harness))
    failed = Subject(harness, "failed")
    failed.claim(A)
    failed.complete(A, Status.FAILED)
    _is_known(failed)


def bound_mark_of_marked_is_seen(harness: Harness) -> None:
    """Marked outside a transaction is seen inside."""
    _is_known(marked(harness))


def bound_mark_of_quarantined_is_seen(harness: Harness) -> None:
    """Quarantined is seen."""
    _is_known(quarantined(harness))


def bound_mark_is_seen_in_same_transaction(harness: Harness) -> None:
    """The same key again, in one call or in the next, is not new."""
    subject, other = Subject(harness), Subject(harness, "other")
    with bound(harness) as store:
        marks = [subject.mark_request(), other.mark_request(), subject.mark_request()]
        equal(store.mark_seen(marks), [True, True, False], "the same key twice in a batch")
        equal(store.mark_seen([other.mark_request()]), [False], "the same key in the next call")


def bound_mark_keeps_its_result(harness: Harness) -> None:
    """The result of a bound mark commits with it, an empty one as empty and none as none."""
    subjects = {result: Subject(harness, repr(result)) for result in (b"7", b"", None)}
    with bound(harness) as store:
        store.mark_seen([subject.mark_request(result) for result, subject in subjects.items()])
    for result, subject in subjects.items():
        equal(done(subject.claim(B)).result, result, "result of a bound mark")


def bound_mark_rolled_back_leaves_nothing(harness: Harness) -> None:
    """What the caller rolls back was never seen."""
    subject = absent(harness)
    with rolled_back(harness) as store:
        check(store.mark_seen([subject.mark_request()])[0], "a new key was told seen")
    subject.is_absent()
    check(subject.mark(), "a mark that was rolled back was told seen")


def bound_mark_is_invisible_before_commit(harness: Harness) -> None:
    """A bound store never commits: others see nothing until the caller does."""
    subject = absent(harness)
    with bound(harness) as store:
        store.mark_seen([subject.mark_request()])
        subject.is_absent()
    subject.is_state(State.PROCESSED)


def bound_claim_and_complete_commit_together(harness: Harness) -> None:
    """Claim and completion in one transaction leave a done record with its result."""
    subject = absent(harness)
    with bound(harness) as store:
        equal(acquired(store.claim([subject.request(A)])[0]).attempt, 1, "attempt")
        equal(store.complete([subject.completion(A, result=b"7")]), [True], "bound complete")
    equal(done(subject.claim(B)).result, b"7", "result of a bound completion")


def bound_claim_and_complete_roll_back_together(harness: Harness) -> None:
    """Rolled back, neither the claim nor its completion ever was."""
    subject = absent(harness)
    with rolled_back(harness) as store:
        store.claim([subject.request(A)])
        store.complete([subject.completion(A)])
    subject.is_absent()


def bound_claim_of_running_is_busy(harness: Harness) -> None:
    """A live claim is busy inside a transaction as it is outside."""
    subject = running(harness)
    with bound(harness) as store:
        busy(store.claim([subject.request(B)])[0])


def bound_complete_rolled_back_leaves_the_claim(harness: Harness) -> None:
    """A completion that was rolled back leaves the claim to its owner."""
    subject = running(harness)
    with subject.unchanged(), rolled_back(harness) as store:
        equal(store.complete([subject.completion(A)]), [True], "bound complete")
    check(subject.complete(A), "the owner lost its claim")


def bound_complete_after_take_over_raises(harness: Harness) -> None:
    """A stale owner gets LeaseLost, so that its work rolls back; the new owner is not disturbed."""
    subject = lapsed(harness)
    acquired(subject.claim(B))
    with subject.unchanged(), bound(harness) as store, raises(LeaseLost, "a stale bound complete"):
        store.complete([subject.completion(A)])


def bound_complete_is_all_or_nothing(harness: Harness) -> None:
    """If one claim of a call is lost, the others of that call are not completed either."""
    ours, other = running(harness), Subject(harness, "other")
    other.claim(B)
    batches = ([ours.completion(A), other.completion(A)], [other.completion(A), ours.completion(A)])
    for batch in batches:
        with ours.unchanged(), bound(harness) as store, raises(LeaseLost, "a stale bound complete"):
            store.complete(batch)


def bound_release_frees_the_claim(harness: Harness) -> None:
    """A release commits with the transaction, and compares the token."""
    subject = running(harness)
    with bound(harness) as store:
        equal(store.release([Release(subject.id, B, subject.window)]), [False], "stale release")
        equal(store.release([Release(subject.id, A, subject.window)]), [True], "bound release")
    equal(acquired(subject.claim(B)).attempt, 2, "attempt after a bound release")


TRANSACTIONAL_PROMISES = (
    bound_mark_of_absent_is_new,
    bound_mark_of_expired_is_new,
    bound_mark_of_running_raises,
    bound_mark_of_lapsed_is_new,
    bound_mark_of_free_is_new,
    bound_mark_of_done_is_seen,
    bound_mark_of_marked_is_seen,
    bound_mark_of_quarantined_is_seen,
    bound_mark_is_seen_in_same_transaction,
    bound_mark_keeps_its_result,
    bound_mark_rolled_back_leaves_nothing,
    bound_mark_is_invisible_before_commit,
    bound_claim_and_complete_commit_together,
    bound_claim_and_complete_roll_back_together,
    bound_claim_of_running_is_busy,
    bound_complete_rolled_back_leaves_the_claim,
    bound_complete_after_take_over_raises,
    bound_complete_is_all_or_nothing,
    bound_release_frees_the_claim,
)
