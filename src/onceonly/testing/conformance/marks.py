"""Promises of ``mark_seen`` and ``forget``: the verbs without a token."""

from __future__ import annotations

from onceonly.errors import InFlight
from onceonly.testing.conformance.subject import (
    A,
    Subject,
    absent,
    check,
    equal,
    expired,
    finished,
    freed,
    lapsed,
    quarantined,
    raises,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import Marks, State, Status


def _is_new(subject: Subject) -> None:
    check(subject.mark(), "a new key was told seen")
    subject.is_state(State.PROCESSED)
    check(not subject.mark(), "a marked key was told new")


def _is_seen(subject: Subject) -> None:
    with subject.unchanged():
        check(not subject.mark(), "a known key was told new")


def mark_of_absent_is_new(harness: Harness) -> None:
    """An absent key is new once, and done from then on."""
    _is_new(absent(harness))


def mark_of_expired_is_new(harness: Harness) -> None:
    """An expired record of any state answers like an absent one."""
    for subject in expired(harness):
        _is_new(subject)


def mark_of_running_is_seen(harness: Harness) -> None:
    """A live claim is not new, and stays its owner's to complete."""
    subject = running(harness)
    _is_seen(subject)
    check(subject.complete(A), "a mark took a live claim")


def mark_of_lapsed_is_new(harness: Harness) -> None:
    """A claim whose lease is over does not hold up a mark."""
    _is_new(lapsed(harness))


def mark_of_free_is_new(harness: Harness) -> None:
    """A released record is not done, so it is new."""
    _is_new(freed(harness))


def mark_of_done_is_seen(harness: Harness) -> None:
    """Processed is seen; its result stays."""
    _is_seen(finished(harness))


def mark_of_failed_is_seen(harness: Harness) -> None:
    """Failed for good is seen; the failure stays."""
    _is_seen(finished(harness, Status.FAILED))


def mark_of_quarantined_is_seen(harness: Harness) -> None:
    """Quarantined is seen, and stays quarantined."""
    _is_seen(quarantined(harness))


def mark_of_same_key_twice_is_new_once(harness: Harness) -> None:
    """Of two equal keys in one call the first is new and the second is not."""
    one, other = Subject(harness, "one"), Subject(harness, "other")
    marks = [one.mark_request(), other.mark_request(), one.mark_request()]
    equal(harness.store.mark_seen(marks), [True, True, False], "the same key twice in a batch")


def marks_given_as_columns_are_marks(harness: Harness) -> None:
    """``Marks`` answers and leaves what the same marks one by one would, with a type or without."""
    one = Subject(harness, "one").mark_request()
    group, scope, key = one.id
    for kind in (None, "order.paid"):
        keys = [f"{key}-{kind}", "first", f"{key}-{kind}", f"last-{kind}"]
        columns = Marks(group, scope, keys, one.window, kind)
        new = [True, kind is None, False, True]
        equal(harness.store.mark_seen(columns), new, "marks as columns")
        equal(harness.store.mark_seen(columns[1:]), [False] * 3, "the same marks again")
        (record,) = harness.store.peek([columns[3].id])
        equal(record and (record.state, record.type), (State.PROCESSED, kind), "what was left")
    harness.advance(one.window * 1.25)  # past the eighth that a store may keep longer
    equal(harness.store.mark_seen(columns), [True, True, False, True], "marks as columns, expired")


# --- forget -------------------------------------------------------------------------------------


def forget_removes_any_record_that_is_not_live(harness: Harness) -> None:
    """Done, quarantined, free and lapsed records go, and answer like absent ones."""
    for make in (finished, quarantined, freed, lapsed):
        subject = make(harness)
        check(subject.forget(), "forget of a record was told False")
        subject.is_absent()
        check(subject.mark(), "a forgotten key was told seen")
        subject.forget()


def forget_of_absent_is_false(harness: Harness) -> None:
    """Where nothing is, or everything is over, nothing is forgotten."""
    check(not absent(harness).forget(), "forget of an absent record was told True")
    for subject in expired(harness):
        check(not subject.forget(), "forget of an expired record was told True")


def forget_refuses_live_claim(harness: Harness) -> None:
    """A live claim raises InFlight, and nothing else of that call is forgotten."""
    live, other = running(harness), Subject(harness, "other")
    other.mark()
    for ids in ([live.id, other.id], [other.id, live.id]):
        with live.unchanged(), other.unchanged(), raises(InFlight, "forget of a live claim"):
            harness.store.forget(ids)


def forget_by_force_removes_live_claim(harness: Harness) -> None:
    """``force`` is for a worker that is surely gone: its writes are then refused."""
    subject = running(harness)
    check(subject.forget(force=True), "forget by force was told False")
    subject.is_absent()
    check(not subject.complete(A), "a forgotten claim was completed")


PROMISES = (
    mark_of_absent_is_new,
    mark_of_expired_is_new,
    mark_of_running_is_seen,
    mark_of_lapsed_is_new,
    mark_of_free_is_new,
    mark_of_done_is_seen,
    mark_of_failed_is_seen,
    mark_of_quarantined_is_seen,
    mark_of_same_key_twice_is_new_once,
    marks_given_as_columns_are_marks,
    forget_removes_any_record_that_is_not_live,
    forget_of_absent_is_false,
    forget_refuses_live_claim,
    forget_by_force_removes_live_claim,
)
