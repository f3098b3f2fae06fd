"""Promises of ``complete``, and of the results it keeps."""

from __future__ import annotations

from onceonly.testing.conformance.subject import (
    A,
    B,
    Subject,
    absent,
    acquired,
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
from onceonly.types import State, Status


def _refused(subject: Subject, *tokens: bytes) -> None:
    for token in tokens:
        with subject.unchanged():
            check(not subject.complete(token, result=b"stale"), "a stale completion was told True")


def complete_of_absent_is_false(harness: Harness) -> None:
    """A completion makes no record."""
    _refused(absent(harness), A)


def complete_of_expired_is_false(harness: Harness) -> None:
    """An expired record cannot be completed, not even by its owner."""
    for subject in expired(harness):
        _refused(subject, A, B)


def complete_of_running_by_owner_is_true(harness: Harness) -> None:
    """The owner's claim becomes done, with the status and result it says."""
    subject = running(harness)
    check(subject.complete(A, Status.FAILED, b"why"), "the owner's completion was refused")
    record = subject.record()
    equal((record.state, record.result), (State.FAILED, b"why"), "the done record")


def complete_of_running_by_other_is_false(harness: Harness) -> None:
    """A completion compares the token, and changes nothing where it differs."""
    _refused(running(harness), B)


def complete_of_lapsed_by_owner_is_true(harness: Harness) -> None:
    """A late owner may complete as long as nobody took its claim."""
    subject = lapsed(harness)
    check(subject.complete(A), "a late completion was refused although nobody took the claim")
    subject.is_state(State.PROCESSED)


def complete_of_lapsed_by_other_is_false(harness: Harness) -> None:
    """A lapsed claim is for claiming, not for completing, by others."""
    _refused(lapsed(harness), B)


def complete_after_take_over_is_false(harness: Harness) -> None:
    """A stale owner is refused; the new owner is not disturbed."""
    subject = lapsed(harness)
    acquired(subject.claim(B))
    _refused(subject, A)
    check(subject.complete(B), "the new owner's completion was refused")


def complete_of_free_is_false(harness: Harness) -> None:
    """Who released a claim has none to complete."""
    _refused(freed(harness), A, B)


def complete_again_is_true(harness: Harness) -> None:
    """A completion whose reply was lost is sent again and told True; the first one stands."""
    subject = finished(harness, Status.PROCESSED, b"1")
    with subject.unchanged():
        check(subject.complete(A, result=b"2"), "a completion sent again was told False")


def complete_again_is_true_until_lease_would_end(harness: Harness) -> None:
    """The token of a done record is remembered at least until its lease would have ended."""
    subject = finished(harness)
    subject.wait(3.5)
    subject.store.purge()
    check(subject.complete(A), "a completion sent again within its lease was told False")


def complete_of_done_by_other_is_false(harness: Harness) -> None:
    """Done by another is not done by us."""
    _refused(finished(harness), B)


def complete_of_marked_is_false(harness: Harness) -> None:
    """A mark has no owner. One that came after our lease ended our claim."""
    _refused(marked(harness), A)
    subject = Subject(harness, "lapsed")
    acquired(subject.claim(A))
    subject.wait(5)
    check(subject.mark(), "mark of a lapsed claim")
    _refused(subject, A)


def complete_of_quarantined_by_other_is_false(harness: Harness) -> None:
    """A quarantined record is completed by nobody else."""
    _refused(quarantined(harness), B)


def complete_of_quarantined_again_is_true(harness: Harness) -> None:
    """The completion that quarantined a record may be sent again like any other."""
    subject = quarantined(harness)
    with subject.unchanged():
        check(subject.complete(A, Status.QUARANTINED), "a quarantine sent again was told False")


# --- results ------------------------------------------------------------------------------------


def falsy_results_are_kept(harness: Harness) -> None:
    """Presence and value of a result are stored apart: 0, "", [] and null replay as themselves."""
    for index, result in enumerate((b"0", b'""', b"[]", b"null", b"false", b"")):
        subject = Subject(harness, f"result-{index}")
        subject.claim(A)
        subject.complete(A, result=result)
        equal(done(subject.claim(B)).result, result, "result")


def binary_results_are_kept(harness: Harness) -> None:
    """A result is bytes, whatever they are, and may be long."""
    result = bytes(range(256)) * 256
    equal(done(finished(harness, result=result).claim(B)).result, result, "result")


def bare_record_has_no_result(harness: Harness) -> None:
    """Done without a result is told as None."""
    equal(done(finished(harness, result=None).claim(B)).result, None, "result of a bare record")


PROMISES = (
    complete_of_absent_is_false,
    complete_of_expired_is_false,
    complete_of_running_by_owner_is_true,
    complete_of_running_by_other_is_false,
    complete_of_lapsed_by_owner_is_true,
    complete_of_lapsed_by_other_is_false,
    complete_after_take_over_is_false,
    complete_of_free_is_false,
    complete_again_is_true,
    complete_again_is_true_until_lease_would_end,
    complete_of_done_by_other_is_false,
    complete_of_marked_is_false,
    complete_of_quarantined_by_other_is_false,
    complete_of_quarantined_again_is_true,
    falsy_results_are_kept,
    binary_results_are_kept,
    bare_record_has_no_result,
)
