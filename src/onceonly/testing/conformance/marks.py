"""Promises of ``mark_seen`` and ``forget``: the verbs without a token."""

from __future__ import annotations

from onceonly.errors import InFlight
from onceonly.testing.conformance.subject import (
    A,
    B,
    Subject,
    absent,
    check,
    done,
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


# --- results ------------------------------------------------------------------------------------

RESULTS = (b"7", b"0", b'""', b"null", b"\x00\xff", b"")


def _told(subject: Subject) -> bytes | None:
    return done(subject.claim(B)).result


def mark_keeps_its_result(harness: Harness) -> None:
    """The result of a mark is told to whoever claims it, and shown; one without has none."""
    subject = absent(harness)
    check(subject.mark(b"17"), "a new key was told seen")
    equal(subject.record().result, b"17", "result of a marked record")
    answer = done(subject.claim(B))
    equal((answer.status, answer.result), (Status.PROCESSED, b"17"), "claim of a record marked with a result")
    other = Subject(harness, "other")
    other.mark()
    equal(_told(other), None, "result of a mark without one")


def results_of_marks_are_kept_as_they_are(harness: Harness) -> None:
    """Falsy and binary results of marks are told byte by byte, the empty one too."""
    subjects = {result: Subject(harness, repr(result)) for result in RESULTS}
    harness.store.mark_seen([subject.mark_request(result) for result, subject in subjects.items()])
    for result, subject in subjects.items():
        equal(_told(subject), result, "result of a mark")


def result_of_first_mark_stays(harness: Harness) -> None:
    """A mark of what is done changes nothing about its result, in the same call or later."""
    one, other = Subject(harness, "one"), Subject(harness, "other")
    marks = [one.mark_request(b"first"), one.mark_request(b"second"), other.mark_request()]
    equal(harness.store.mark_seen(marks), [True, False, True], "the same key twice in a batch")
    completed = finished(harness, result=b"17")
    for subject in (one, other, completed):
        with subject.unchanged():
            check(not subject.mark(b"late"), "a known key was told new")
    equal([_told(subject) for subject in (one, other, completed)], [b"first", None, b"17"], "results")


def mark_over_unfinished_keeps_its_result(harness: Harness) -> None:
    """Where a mark ends a lapsed claim or a released record, its own result is kept."""
    for make in (lapsed, freed):
        subject = make(harness)
        check(subject.mark(b"17"), "an unfinished record was told seen")
        equal(_told(subject), b"17", "result of a mark over an unfinished record")
        subject.forget()


def mark_over_expired_keeps_its_result(harness: Harness) -> None:
    """The result of an expired record is gone: the mark's counts, or none."""
    for subject, result in zip(expired(harness), (None, b"1", None, b""), strict=True):
        check(subject.mark(result), "an expired key was told seen")
        equal(_told(subject), result, "result of a mark over an expired record")


def marks_given_as_columns_keep_their_results(harness: Harness) -> None:
    """``Marks`` with results leaves each key the result in its row, with a type or without."""
    subject = Subject(harness)
    group, scope, _ = subject.id
    results = [*RESULTS, b"again"]
    for kind in (None, "order.paid"):
        keys = [f"{kind}-{number}" for number in (4, 1, 5, 0, 3, 2, 5)]
        columns = Marks(group, scope, keys, subject.window, kind, results=results)
        equal(harness.store.mark_seen(columns[1:]), [True] * 5 + [False], "a part of the marks")
        equal(harness.store.mark_seen(columns), [True] + [False] * 6, "all of them")
        records = harness.store.peek([mark.id for mark in columns[:-1]])
        equal([record and record.result for record in records], list(RESULTS), "results by row")


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
    mark_keeps_its_result,
    results_of_marks_are_kept_as_they_are,
    result_of_first_mark_stays,
    mark_over_unfinished_keeps_its_result,
    mark_over_expired_keeps_its_result,
    marks_given_as_columns_keep_their_results,
    forget_removes_any_record_that_is_not_live,
    forget_of_absent_is_false,
    forget_refuses_live_claim,
    forget_by_force_removes_live_claim,
)
