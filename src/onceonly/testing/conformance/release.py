"""Promises of ``release`` and ``renew``: what the owner of a claim may do besides completing it."""

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
    equal,
    expired,
    finished,
    freed,
    lapsed,
    quarantined,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import State


def _not_released(subject: Subject, *tokens: bytes) -> None:
    for token in tokens:
        with subject.unchanged():
            check(not subject.release(token, delay=2), "a stale release was told True")


def release_of_absent_is_false(harness: Harness) -> None:
    """A release makes no record."""
    _not_released(absent(harness), A)


def release_of_expired_is_false(harness: Harness) -> None:
    """An expired record cannot be released, not even by its owner."""
    for subject in expired(harness):
        _not_released(subject, A, B)


def release_of_running_by_owner_is_true(harness: Harness) -> None:
    """A released record is free: kept, and to be had by anybody at once."""
    subject = running(harness)
    check(subject.release(A), "the owner's release was refused")
    subject.is_state(State.FREE)
    acquired(subject.claim(B))


def release_of_running_by_other_is_false(harness: Harness) -> None:
    """A release compares the token, and changes nothing where it differs."""
    _not_released(running(harness), B)


def release_of_lapsed_by_owner_is_true(harness: Harness) -> None:
    """A late owner may release as long as nobody took its claim; it is then no orphan."""
    subject = lapsed(harness)
    check(subject.release(A), "a late release was refused although nobody took the claim")
    equal(acquired(subject.claim(B)).orphaned, False, "orphaned after a release")


def release_of_lapsed_by_other_is_false(harness: Harness) -> None:
    """A lapsed claim is not released by others: it would hide an orphan."""
    _not_released(lapsed(harness), B)


def release_after_take_over_is_false(harness: Harness) -> None:
    """A stale owner cannot give away the new owner's claim."""
    subject = lapsed(harness)
    acquired(subject.claim(B))
    _not_released(subject, A)
    check(subject.renew(B), "the new owner lost its claim")


def release_again_is_true(harness: Harness) -> None:
    """A release whose reply was lost is sent again and told True, and counts once."""
    subject = freed(harness)
    acquired(subject.claim(B))
    check(subject.release(B, started=False), "release by the owner")
    with subject.unchanged():
        check(subject.release(B, started=False), "a release sent again was told False")


def release_of_free_by_other_is_false(harness: Harness) -> None:
    """Who did not own it did not release it."""
    _not_released(freed(harness), B)


def release_of_done_by_owner_is_false(harness: Harness) -> None:
    """Done stays done, also for its owner."""
    _not_released(finished(harness), A)


def release_of_done_by_other_is_false(harness: Harness) -> None:
    """Done stays done."""
    _not_released(finished(harness), B)


def release_of_quarantined_is_false(harness: Harness) -> None:
    """Quarantined stays quarantined, for everybody."""
    _not_released(quarantined(harness), A, B)


# --- renew --------------------------------------------------------------------------------------


def _not_renewed(subject: Subject, *tokens: bytes) -> None:
    for token in tokens:
        with subject.unchanged():
            check(not subject.renew(token), "a stale renewal was told True")


def renew_of_absent_is_false(harness: Harness) -> None:
    """A renewal makes no record."""
    _not_renewed(absent(harness), A)


def renew_of_expired_is_false(harness: Harness) -> None:
    """An expired record cannot be renewed, not even by its owner."""
    for subject in expired(harness):
        _not_renewed(subject, A, B)


def renew_of_running_by_owner_is_true(harness: Harness) -> None:
    """A renewed lease runs from now: others wait longer, fence and attempt stay."""
    subject = running(harness)
    before = subject.record()
    subject.wait(3)
    check(subject.renew(A), "the owner's renewal was refused")
    subject.wait(3)
    busy(subject.claim(B))
    after = subject.record()
    equal((after.fence, after.attempt), (before.fence, before.attempt), "fence and attempt")


def renew_of_running_by_other_is_false(harness: Harness) -> None:
    """A renewal compares the token, and changes nothing where it differs."""
    _not_renewed(running(harness), B)


def renew_of_lapsed_by_owner_is_true(harness: Harness) -> None:
    """A late owner may renew as long as nobody took its claim; its lease runs again."""
    subject = lapsed(harness)
    check(subject.renew(A), "a late renewal was refused although nobody took the claim")
    busy(subject.claim(B))


def renew_of_lapsed_by_other_is_false(harness: Harness) -> None:
    """A lapsed claim is not renewed by others."""
    _not_renewed(lapsed(harness), B)


def renew_after_take_over_is_false(harness: Harness) -> None:
    """A stale owner learns from its renewal that it is stale."""
    subject = lapsed(harness)
    acquired(subject.claim(B))
    _not_renewed(subject, A)


def renew_of_free_is_false(harness: Harness) -> None:
    """Who released a claim has none to renew."""
    _not_renewed(freed(harness), A, B)


def renew_of_done_by_owner_is_false(harness: Harness) -> None:
    """A done record has no lease."""
    _not_renewed(finished(harness), A)


def renew_of_done_by_other_is_false(harness: Harness) -> None:
    """A done record has no lease."""
    _not_renewed(finished(harness), B)


def renew_of_quarantined_is_false(harness: Harness) -> None:
    """A quarantined record has no lease."""
    _not_renewed(quarantined(harness), A, B)


def release_unstarted_leaves_an_orphan_one(harness: Harness) -> None:
    """Whoever gives a take-over back without having run leaves it as it was; whoever ran, settles it."""
    subject = lapsed(harness)
    check(acquired(subject.claim(B)).orphaned, "a take-over was not told an orphan")
    subject.release(B, started=False)
    check(acquired(subject.claim(C)).orphaned, "an orphan given back unstarted was forgotten")
    subject.release(C)
    check(not acquired(subject.claim(A)).orphaned, "an orphan whose handler ran and raised stayed one")


PROMISES = (
    release_unstarted_leaves_an_orphan_one,
    release_of_absent_is_false,
    release_of_expired_is_false,
    release_of_running_by_owner_is_true,
    release_of_running_by_other_is_false,
    release_of_lapsed_by_owner_is_true,
    release_of_lapsed_by_other_is_false,
    release_after_take_over_is_false,
    release_again_is_true,
    release_of_free_by_other_is_false,
    release_of_done_by_owner_is_false,
    release_of_done_by_other_is_false,
    release_of_quarantined_is_false,
    renew_of_absent_is_false,
    renew_of_expired_is_false,
    renew_of_running_by_owner_is_true,
    renew_of_running_by_other_is_false,
    renew_of_lapsed_by_owner_is_true,
    renew_of_lapsed_by_other_is_false,
    renew_after_take_over_is_false,
    renew_of_free_is_false,
    renew_of_done_by_owner_is_false,
    renew_of_done_by_other_is_false,
    renew_of_quarantined_is_false,
)
