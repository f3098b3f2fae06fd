"""Promises of what operators do: forget chosen states, ``find``, ``revoke``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

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
    fail,
    freed,
    lapsed,
    marked,
    one_of_each,
    raises,
    running,
)
from onceonly.testing.harness import Harness
from onceonly.types import EVERY_STATE, Query, Record, State

_PLENTY = 1_000_000


@contextmanager
def _not_refused(what: str) -> Iterator[None]:
    try:
        yield
    except InFlight:
        fail(f"{what}: InFlight was raised")


def _running(harness: Harness) -> Subject:
    """A live claim beside those of ``one_of_each``."""
    subject = Subject(harness, "running")
    acquired(subject.claim(A))
    return subject


# --- forget, of some states only ----------------------------------------------------------------


def forget_only_leaves_other_states(harness: Harness) -> None:
    """With ``only``, records in other states are answered False and left as they are."""
    subjects = one_of_each(harness)
    ids = [subject.id for subject in subjects.values()]
    for only in ({State.CLAIMED}, {State.FREE, State.FAILED}, {State.PROCESSED}, {State.QUARANTINED}):
        others = [subject for state, subject in subjects.items() if state not in only]
        with all_unchanged(others):
            equal(harness.store.forget(ids, only=only), [state in only for state in subjects], f"{only}")


def forget_only_passes_over_live_claim(harness: Harness) -> None:
    """A live claim that is not in ``only`` neither raises nor goes, with force or without."""
    for force in (False, True):
        live, other = running(harness), Subject(harness, "other")
        other.mark()
        with live.unchanged(), _not_refused("forget of what is done"):
            gone = harness.store.forget([live.id, other.id], force=force, only={State.PROCESSED})
        equal(gone, [False, True], "forget beside a live claim")
        other.is_absent()
    check(live.complete(A), "the owner lost its claim")


def forget_only_claims_refuses_live_one(harness: Harness) -> None:
    """A live claim that is in ``only`` raises InFlight, and nothing of that call is forgotten."""
    subjects = [*one_of_each(harness).values(), _running(harness)]
    with all_unchanged(subjects), raises(InFlight, "forget of a live claim"):
        harness.store.forget([subject.id for subject in subjects], only={State.CLAIMED})
    (gone,) = harness.store.forget([subjects[-1].id], force=True, only={State.CLAIMED})
    check(gone, "forget by force was told False")
    subjects[-1].is_absent()


def forget_of_same_key_twice_is_true_once(harness: Harness) -> None:
    """Of two equal keys in one call the first is forgotten, and the second finds nothing."""
    subject = marked(harness)
    equal(harness.store.forget([subject.id, subject.id]), [True, False], "the same key twice in a call")
    subject.is_absent()


# --- find ---------------------------------------------------------------------------------------


def _find(
    harness: Harness,
    states: Collection[State] = EVERY_STATE,
    *,
    orphaned: bool | None = None,
    limit: int = _PLENTY,
) -> list[Record]:
    return harness.store.find(Query(frozenset(states), harness.group, orphaned, limit))


def _keys(records: Collection[Record]) -> list[str]:
    return [record.id.key for record in records]


def find_shows_records_as_peek_does(harness: Harness) -> None:
    """Whatever was claimed once is found, in each state, with all that ``peek`` shows."""
    subjects = one_of_each(harness)
    equal(_find(harness), [subject.record() for subject in subjects.values()], "records that were found")


def find_shows_claim_that_a_mark_ended(harness: Harness) -> None:
    """A record that was claimed once and then marked is found as what it is now."""
    subject = lapsed(harness)
    check(subject.mark(), "a lapsed claim was told seen")
    equal([record.state for record in _find(harness)], [State.PROCESSED], "what was found")


def find_leaves_out_what_was_only_marked(harness: Harness) -> None:
    """A key that was only marked is not found, nor one that was marked after its claim expired."""
    marked(harness)
    for subject in expired(harness):
        check(subject.mark(), "an expired key was told seen")
        equal(_keys(_find(harness)), [], "keys that were only marked")


def find_leaves_out_expired(harness: Harness) -> None:
    """An expired record of any state is not found, purged or not."""
    for subject in expired(harness):
        equal(_keys(_find(harness)), [], f"expired records, among them {subject.id.key}")
    brief = Subject(harness, "brief")
    harness.store.claim([brief.request()._replace(lease=0.2 * brief.unit, window=0.1 * brief.unit)])
    brief.wait(0.4)
    equal(_keys(_find(harness)), [], "a record that expired a moment ago")


def find_chooses_states(harness: Harness) -> None:
    """Only records in one of the states asked for are found."""
    one_of_each(harness)
    for states in ({State.CLAIMED}, {State.FREE}, {State.FAILED, State.QUARANTINED}, {State.PROCESSED}, ()):
        found = {record.state for record in _find(harness, states)}
        equal(found, set(states), "states of what was found")


def find_chooses_group(harness: Harness) -> None:
    """Only records of the group asked for are found; with none asked for, those of all groups."""
    subjects = [Subject(harness, group=group) for group in ("", "-x", "-y")]
    for subject in subjects:
        acquired(subject.claim(A))
        subject.wait(0.5)
    ids = [subject.id for subject in subjects]
    for record_id in ids:
        found = harness.store.find(Query(EVERY_STATE, record_id.group))
        equal([record.id for record in found], [record_id], "records of one group")
    everything = harness.store.find(Query(EVERY_STATE, limit=_PLENTY))
    equal([record.id for record in everything if record.id in ids], ids, "records of all groups")
    equal(harness.store.find(Query(EVERY_STATE, harness.group + "-z")), [], "records of a group without any")


def find_tells_orphans_from_running_claims(harness: Harness) -> None:
    """``orphaned`` chooses among claims by their lease, and leaves records in other states alone."""
    one_of_each(harness)
    _running(harness)
    others = ["free", "processed", "failed", "quarantined"]
    equal(_keys(_find(harness, orphaned=True)), ["claimed", *others], "orphans and the rest")
    equal(_keys(_find(harness, orphaned=False)), [*others, "running"], "running claims and the rest")
    equal(_keys(_find(harness)), ["claimed", *others, "running"], "everything")


def find_comes_oldest_claim_first(harness: Harness) -> None:
    """Found records are in the order of their last claims: who was taken over is young again."""
    subjects = {key: Subject(harness, key) for key in "bdaec"}
    for subject in subjects.values():
        acquired(subject.claim(A))
        subject.wait(0.5)
    subjects["d"].release(A)
    acquired(subjects["d"].claim(B))
    subjects["a"].complete(A)
    equal(_keys(_find(harness)), [*"baecd"], "order of claims")


def find_obeys_its_limit(harness: Harness) -> None:
    """At most ``limit`` records are found: the oldest claims among those asked for."""
    for number in range(6):
        subject = Subject(harness, f"{number}")
        acquired(subject.claim(A))
        if number < 2:
            subject.complete(A)
        subject.wait(0.5)
    for limit in (1, 3, 4, 5):
        found = _keys(_find(harness, {State.CLAIMED}, limit=limit))
        equal(found, [*"2345"][:limit], f"claims with limit={limit}")


def find_changes_nothing(harness: Harness) -> None:
    """Finding is only looking, whatever is asked for."""
    subjects = [*one_of_each(harness).values(), _running(harness)]
    for orphaned in (None, True, False):
        with all_unchanged(subjects):
            _find(harness, orphaned=orphaned)


# --- revoke -------------------------------------------------------------------------------------


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
    for ids in ([live.id, other.id], [other.id, live.id]):
        with live.unchanged(), other.unchanged(), raises(InFlight, "revoke of a live claim"):
            harness.store.revoke(ids)
    check(other.complete(A), "a refused revoke took another claim")
    check(live.complete(A), "a refused revoke took the live claim")


def revoke_by_force_ends_live_claim(harness: Harness) -> None:
    """With ``force`` a live claim is an orphan at once: its owner is refused, the next one need not wait."""
    subject = running(harness)
    check(subject.revoke(force=True), "revoke by force was told False")
    check(subject.record().orphaned, "a revoked claim is no orphan")
    equal(_find(harness, orphaned=True), [subject.record()], "orphans")
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
    equal(harness.store.revoke([late.id, live.id], force=True), [True, True], "revoke by force")
    late.wait(14)
    harness.store.purge()
    for subject in (late, live):
        equal(acquired(subject.claim(B)).attempt, 2, "attempt late in the window")


def revokes_are_answered_in_order(harness: Harness) -> None:
    """True where there was an unfinished record, in the order of the requests; the same key again, too."""
    subjects = [Subject(harness, key) for key in "fbdace"]
    for subject in subjects[::2]:
        acquired(subject.claim(A))
    ids = [subject.id for subject in (*subjects, subjects[0])]
    equal(harness.store.revoke(ids, force=True), [True, False] * 3 + [True], "revokes")


PROMISES = (
    forget_only_leaves_other_states,
    forget_only_passes_over_live_claim,
    forget_only_claims_refuses_live_one,
    forget_of_same_key_twice_is_true_once,
    find_shows_records_as_peek_does,
    find_shows_claim_that_a_mark_ended,
    find_leaves_out_what_was_only_marked,
    find_leaves_out_expired,
    find_chooses_states,
    find_chooses_group,
    find_tells_orphans_from_running_claims,
    find_comes_oldest_claim_first,
    find_obeys_its_limit,
    find_changes_nothing,
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
)
