"""Promises of what operators do: forget chosen states, ``find``, ``groups``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from onceonly.errors import InFlight
from onceonly.testing.conformance.subject import (
    A,
    B,
    Subject,
    acquired,
    all_unchanged,
    check,
    equal,
    expired,
    fail,
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


def groups_are_listed(harness: Harness) -> None:
    """Every group that has a record is told by its name, in order, whatever its records are."""
    names = sorted(harness.group + suffix for suffix in ("", "-a", "-ä", "-b c"))
    for name in reversed(names):
        subject = Subject(harness, group=name.removeprefix(harness.group))
        check(subject.mark(), "a new key was told seen")
    listed = harness.store.groups()
    equal([name for name in listed if name in names], names, "groups")
    equal(listed, sorted(listed), "the order of groups")


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
    groups_are_listed,
)
