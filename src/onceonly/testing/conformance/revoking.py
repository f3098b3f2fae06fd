"""Promises of ``revoke``: what an operator takes from owners that are gone, or lets run again."""

from __future__ import annotations

from onceonly.errors import InFlight
from onceonly.testing.conformance.subject import (
    A,
    B,
    C,
    Subject,
    absent,
    acquired,
    all_unchanged,
    busy,
    check,
    equal,
    expired,
    finished,
    freed,
    lapsed,
    marked,
    one_of_each,
    quarantined,
    raises,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import EVERY_STATE, Query, State, Status


def _is_refused(subject: Subject) -> None:
    """Whatever A still writes."""
    with subject.unchanged():
        check(not subject.renew(A), "a revoked owner renewed")
        check(not subject.complete(A), "a revoked owner completed")
        check(not subject.release(A), "a revoked owner released")


def revoke_of_lapsed_refuses_its_owner(harness: Harness) -> None:
    """Nothing that the owner of a revoked claim still writes counts, though nobody took it yet."""
    subject = lapsed(harness)
    check(subject.revoke(), "revoke of a lapsed claim was told False")
    subject.is_state(State.CLAIMED)
    _is_refused(subject)


def revoke_of_lapsed_leaves_an_orphan(harness: Harness) -> None:
    """The next claim of a revoked one is a take-over, also with the token that had it."""
    for token in (A, B):
        subject = running(harness, b"first")
        subject.wait(5)
        before = subject.record().fence
        check(subject.revoke(), "revoke of a lapsed claim was told False")
        answer = acquired(subject.claim(token, b"other"))
        seen = (answer.attempt, answer.orphaned, answer.fingerprint)
        equal(seen, (2, True, b"first"), "attempt, orphaned and fingerprint after a revoke")
        check(answer.fence > before, "the fence did not grow across a revoke")
        subject.forget(force=True)


def revoke_of_free_ends_its_wait(harness: Harness) -> None:
    """A revoked free record can be had before its not-before, as the next attempt and no orphan."""
    subject = running(harness)
    subject.release(A, delay=8)
    busy(subject.claim(B))
    check(subject.revoke(), "revoke of a free record was told False")
    subject.is_state(State.FREE)
    answer = acquired(subject.claim(B))
    equal((answer.attempt, answer.orphaned), (2, False), "attempt and orphaned after a revoke")


def revoke_of_free_leaves_an_orphan_one(harness: Harness) -> None:
    """An orphan that was given back unstarted is still one after a revoke."""
    subject = lapsed(harness)
    acquired(subject.claim(B))
    subject.release(B, delay=8, started=False)
    check(subject.revoke(), "revoke of a free record was told False")
    answer = acquired(subject.claim(C))
    equal((answer.attempt, answer.orphaned), (2, True), "attempt and orphaned after a revoke")


def revoke_of_free_refuses_its_last_owner(harness: Harness) -> None:
    """A release that is sent again after a revoke is told False."""
    subject = freed(harness)
    check(subject.revoke(), "revoke of a free record was told False")
    _is_refused(subject)


def revoke_of_absent_is_false(harness: Harness) -> None:
    """Where nothing is, or everything is over, nothing is revoked or made."""
    for subject in (absent(harness), *expired(harness)):
        check(not subject.revoke(), "revoke of an absent or expired record was told True")
        subject.is_absent()


def revoke_of_done_is_false(harness: Harness) -> None:
    """A done record of any kind stays as it is, and its owner may still be told that it did it."""
    subjects = {state: subject for state, subject in one_of_each(harness).items() if state.done}
    with all_unchanged([*subjects.values(), marked(harness)]):
        for subject in (*subjects.values(), Subject(harness)):
            for force in (False, True):
                check(not subject.revoke(force=force), "revoke of a done record was told True")
    for state, subject in subjects.items():
        check(subject.complete(A), f"a {state} record forgot who completed it")


def revoke_refuses_live_claim(harness: Harness) -> None:
    """A live claim raises InFlight, and nothing else of that call is revoked."""
    other = Subject(harness, "other")
    acquired(other.claim(A))
    other.wait(5)
    live = running(harness)
    records = [live.record(), other.record()]
    for shown, afresh in ((records, False), (records[::-1], False), (records[::-1], True)):
        with live.unchanged(), other.unchanged(), raises(InFlight, "revoke of a live claim"):
            harness.store.revoke(shown, afresh=afresh)
    check(other.complete(A), "a refused revoke took another claim")
    check(live.complete(A), "a refused revoke took the live claim")


def revoke_by_force_ends_live_claim(harness: Harness) -> None:
    """With ``force`` a live claim is an orphan at once: its owner is refused, the next one need not wait."""
    subject = running(harness)
    check(subject.revoke(force=True), "revoke by force was told False")
    check(subject.record().orphaned, "a revoked claim is no orphan")
    equal(harness.store.find(Query(EVERY_STATE, harness.group, orphaned=True)), [subject.record()], "orphans")
    _is_refused(subject)
    answer = acquired(subject.claim(B))
    equal((answer.attempt, answer.orphaned), (2, True), "attempt and orphaned after a revoke")
    busy(subject.claim(A))


def attempts_and_fences_survive_revoke(harness: Harness) -> None:
    """``attempt`` counts starts and the fence grows, however often claims are revoked."""
    subject, fence = absent(harness), 0
    for attempt, token in enumerate((A, B, C), start=1):
        answer = acquired(subject.claim(token))
        equal(answer.attempt, attempt, "attempt after revokes")
        check(answer.fence > fence, "the fence did not grow across a revoke")
        fence = answer.fence
        check(subject.revoke(force=True), "revoke by force was told False")


def revoked_record_lives_for_the_window(harness: Harness) -> None:
    """A revoked record keeps its attempts as long as it would have otherwise, also after a purge."""
    late, live = Subject(harness, "late"), Subject(harness, "live")
    acquired(late.claim(A))
    late.wait(5)
    acquired(live.claim(A))
    shown = [late.record(), live.record()]
    equal(harness.store.revoke(shown, force=True), [True, True], "revoke by force")
    late.wait(14)
    harness.store.purge()
    for subject in (late, live):
        equal(acquired(subject.claim(B)).attempt, 2, "attempt late in the window")


def revokes_are_answered_in_order(harness: Harness) -> None:
    """True where there was an unfinished record, in the order of the requests; the same key again, too."""
    subjects = [Subject(harness, key) for key in "fbdace"]
    for subject in subjects[::2]:
        acquired(subject.claim(A))
    shown = [subject.shown() for subject in (*subjects, subjects[0])]
    equal(harness.store.revoke(shown, force=True), [True, False] * 3 + [True], "revokes")


def revoke_of_what_changed_is_false(harness: Harness) -> None:
    """Who was shown another owner, or another state, revokes nothing, not even by force."""
    subject = lapsed(harness)
    shown = subject.record()
    acquired(subject.claim(B))
    for afresh in (False, True):
        with subject.unchanged():
            (revoked,) = harness.store.revoke([shown], force=True, afresh=afresh)
            check(not revoked, "revoke of another owner's claim was told True")
    shown = subject.record()
    check(subject.release(B), "release by the owner")
    with subject.unchanged():
        equal(harness.store.revoke([shown], afresh=True), [False], "revoke of what was released meanwhile")


# --- afresh -------------------------------------------------------------------------------------


def _waits_for_its_first_run(subject: Subject) -> None:
    record = subject.record()
    equal((record.state, record.attempt, record.result), (State.FREE, 0, None), "record that is to run again")
    _is_refused(subject)
    answer = acquired(subject.claim(B))
    equal((answer.attempt, answer.orphaned), (1, False), "attempt and orphaned of the first run")
    check(answer.fence > record.fence, "the fence did not grow")
    check(subject.complete(B), "the owner lost its claim")


def revoke_afresh_lets_it_run_as_the_first(harness: Harness) -> None:
    """A lapsed claim, a free record, a failure and a quarantined one wait, free, to run from attempt 1."""
    failed = finished(harness, Status.FAILED, b"why")
    check(failed.revoke(afresh=True), "revoke of a failure was told False")
    _waits_for_its_first_run(failed)
    for number, make in enumerate((lapsed, freed, quarantined)):
        subject = make(harness, f"k{number}")
        check(subject.revoke(afresh=True), "revoke was told False")
        _waits_for_its_first_run(subject)


def revoke_afresh_keeps_the_fingerprint(harness: Harness) -> None:
    """What must not change under a key still must not."""
    subject = running(harness, b"first")
    check(subject.complete(A, Status.QUARANTINED), "complete by the owner")
    check(subject.revoke(afresh=True), "revoke was told False")
    equal(acquired(subject.claim(B, b"other")).fingerprint, b"first", "fingerprint")


def revoke_afresh_of_quarantined_is_kept_for_good(harness: Harness) -> None:
    """It was kept until an operator acts, and then until it runs."""
    subject = quarantined(harness)
    check(subject.revoke(afresh=True), "revoke was told False")
    for _ in range(3):
        subject.wait_until_forgotten()
        harness.store.purge()
    subject.is_state(State.FREE)


def revoke_afresh_of_processed_is_false(harness: Harness) -> None:
    """What has taken effect never runs again by it, also where an operator forces it."""
    other = Subject(harness, "other")
    check(other.mark(), "mark of a new key")
    for subject in (finished(harness), other):
        for force in (False, True):
            with subject.unchanged():
                check(not subject.revoke(force=force, afresh=True), "revoke of processed was told True")


def revoke_afresh_by_force_ends_live_claim(harness: Harness) -> None:
    """Its owner is refused, and the next run is the first."""
    subject = running(harness)
    check(subject.revoke(force=True, afresh=True), "revoke by force was told False")
    _waits_for_its_first_run(subject)


PROMISES = (
    revoke_of_lapsed_refuses_its_owner,
    revoke_of_lapsed_leaves_an_orphan,
    revoke_of_free_ends_its_wait,
    revoke_of_free_leaves_an_orphan_one,
    revoke_of_free_refuses_its_last_owner,
    revoke_of_absent_is_false,
    revoke_of_done_is_false,
    revoke_refuses_live_claim,
    revoke_by_force_ends_live_claim,
    attempts_and_fences_survive_revoke,
    revoked_record_lives_for_the_window,
    revokes_are_answered_in_order,
    revoke_of_what_changed_is_false,
    revoke_afresh_lets_it_run_as_the_first,
    revoke_afresh_keeps_the_fingerprint,
    revoke_afresh_of_quarantined_is_kept_for_good,
    revoke_afresh_of_processed_is_false,
    revoke_afresh_by_force_ends_live_claim,
)
