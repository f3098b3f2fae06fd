"""Promises of the windows that are set in the store: by whom, for what, and that no record follows."""

from __future__ import annotations

from onceonly.testing.conformance.bound import bound
from onceonly.testing.conformance.identity import ODD_KEYS
from onceonly.testing.conformance.subject import (
    B,
    Subject,
    all_unchanged,
    check,
    done,
    equal,
    finished,
    marked,
    one_of_each,
)
from onceonly.testing.harness import Harness
from onceonly.types import ReadWindows, State, StoredWindow

Told = list[tuple[str | None, float | None]]


def _stored(harness: Harness, group: str = "") -> list[StoredWindow]:
    """Those of one group; ``group`` is a suffix of the harness's own."""
    return harness.store.windows([ReadWindows(harness.group + group)])[0]


def _told(harness: Harness, group: str = "") -> Told:
    return [(each.type, each.window) for each in _stored(harness, group)]


def windows_never_set_are_absent(harness: Harness) -> None:
    """Where no window was set, none is told, though the group has records."""
    finished(harness)
    equal(_told(harness), [], "windows of a group that has none")


def window_is_told_as_it_was_set(harness: Harness) -> None:
    """Group, type and seconds are told as they were given, down to parts of a second."""
    wanted: Told = [(None, 86_400.0), ("click", 0.25), ("order.paid", 3_153_600_000.0)]
    for kind, window in wanted:
        harness.store.set_window(harness.group, kind, window)
    equal(_told(harness), wanted, "windows")
    equal({each.group for each in _stored(harness)}, {harness.group}, "group of the windows")


def windows_of_groups_are_apart(harness: Harness) -> None:
    """A window counts for its own group, also when it is cleared in another."""
    harness.store.set_window(harness.group, None, 60.0)
    harness.store.set_window(harness.group + "-x", None, 90.0)
    harness.store.set_window(harness.group + "-x", "click", 5.0)
    equal(_told(harness), [(None, 60.0)], "windows of one group")
    check(harness.store.clear_window(harness.group, None), "clear of a window was told False")
    check(not harness.store.clear_window(harness.group, "click"), "another group's window was cleared")
    equal(_told(harness), [], "windows after they were cleared")
    equal(_told(harness, "-x"), [(None, 90.0), ("click", 5.0)], "windows of the other group")


def windows_of_types_are_apart(harness: Harness) -> None:
    """A type has a window of its own, beside that of the whole group and of other types."""
    set_window, clear_window = harness.store.set_window, harness.store.clear_window
    set_window(harness.group, "click", 5.0)
    equal(_told(harness), [("click", 5.0)], "window of a type alone")
    check(not clear_window(harness.group, None), "the window of a type was cleared with its group's")
    set_window(harness.group, None, 60.0)
    set_window(harness.group, "view", 7.0)
    check(clear_window(harness.group, "click"), "clear of a window was told False")
    equal(_told(harness), [(None, 60.0), ("view", 7.0)], "windows without the one of a type")
    check(clear_window(harness.group, None), "clear of a window was told False")
    equal(_told(harness), [("view", 7.0)], "windows without the one of the group")


def no_dedup_is_a_window(harness: Harness) -> None:
    """None is kept as None, which is not the same as no window."""
    for kind in (None, "click"):
        harness.store.set_window(harness.group, kind, None)
    equal(_told(harness), [(None, None), ("click", None)], "windows that say no dedup")
    check(harness.store.clear_window(harness.group, None), "clear of no dedup was told False")
    equal(_told(harness), [("click", None)], "windows after one was cleared")


def window_set_again_replaces(harness: Harness) -> None:
    """There is one window for a group, and one for a type of it: the one that was set last."""
    for kind in (None, "click"):
        for window in (60.0, 90.0, None, None, 5.0, 5.0):
            harness.store.set_window(harness.group, kind, window)
            told = [each.window for each in _stored(harness) if each.type == kind]
            equal(told, [window], "the window that was set last")


def clear_window_is_true_once(harness: Harness) -> None:
    """Clearing is True where there was a window, and False where there is none any more."""
    for kind in (None, "click"):
        check(not harness.store.clear_window(harness.group, kind), "what was never set was cleared")
        harness.store.set_window(harness.group, kind, 60.0)
        check(harness.store.clear_window(harness.group, kind), "clear of a window was told False")
        equal(_told(harness), [], "windows after they were cleared")
        check(not harness.store.clear_window(harness.group, kind), "a window was cleared twice")


def windows_come_in_order(harness: Harness) -> None:
    """By group, and the one for the whole group before those of its types, by code points."""
    places = [(group, kind) for group in ("-b", "", "-a") for kind in ("b", "\u00e9", None, "B", "a b")]
    for number, (group, kind) in enumerate(places):
        harness.store.set_window(harness.group + group, kind, 60.0 + number)
        harness.advance(harness.unit / 10)
    (everything,) = harness.store.windows([ReadWindows()])
    own = [(each.group, each.type) for each in everything if each.group.startswith(harness.group)]
    expected = [
        (harness.group + group, kind)
        for group in ("", "-a", "-b")
        for kind in (None, "B", "a b", "b", "\u00e9")
    ]
    equal(own, expected, "windows of all groups")
    equal([each.type for each in _stored(harness)], [None, "B", "a b", "b", "\u00e9"], "windows of one group")


def windows_are_answered_in_order(harness: Harness) -> None:
    """One list for each request, in the order of the requests, also where a group is asked for twice."""
    groups = [harness.group + suffix for suffix in ("-b", "-none", "-a", "-b")]
    harness.store.set_window(groups[0], None, 60.0)
    harness.store.set_window(groups[2], None, 90.0)
    answers = harness.store.windows([ReadWindows(group) for group in groups])
    told = [[each.window for each in answer] for answer in answers]
    equal(told, [[60.0], [], [90.0], [60.0]], "windows by request")


def windows_of_odd_names_are_told_apart(harness: Harness) -> None:
    """Group and type are text as it is, told apart where their concatenation is the same."""
    places: list[tuple[str, str | None]] = [("", kind) for kind in ODD_KEYS]
    places += [("-" + name, None) for name in ODD_KEYS if len(name) < 9]
    places += [("-a", "bc"), ("-ab", "c"), ("-a:b", "c"), ("-a", "b:c"), ("-a", "None")]
    numbered = {place: float(number) for number, place in enumerate(places, start=1)}
    for (group, kind), window in numbered.items():
        harness.store.set_window(harness.group + group, kind, window)
    for group in {group for group, _ in places}:
        wanted = {kind: window for (name, kind), window in numbered.items() if name == group}
        told = _told(harness, group)
        equal((dict(told), len(told)), (wanted, len(wanted)), f"windows of group {group!r}")


def window_says_when_it_was_set(harness: Harness) -> None:
    """``updated_at`` is the store's clock, each time anew."""
    for number in range(2):
        before = _now(harness, f"before-{number}") - harness.unit / 4  # who rounds may be a little off
        harness.store.set_window(harness.group, None, 60.0)
        after = _now(harness, f"after-{number}") + harness.unit / 4
        (told,) = _stored(harness)
        check(before <= told.updated_at <= after, f"set between {before} and {after}, not {told.updated_at}")
        harness.advance(2 * harness.unit)


def _now(harness: Harness, key: str) -> float:
    """The store's clock, a little before or after."""
    subject = Subject(harness, key)
    subject.claim()
    subject.complete()
    return subject.record().done_at or 0.0


def window_set_changes_no_record(harness: Harness) -> None:
    """A window that is set or cleared counts for later completions; what is there stays as it is."""
    subjects = one_of_each(harness)
    with all_unchanged([*subjects.values(), marked(harness)]):
        for window in (harness.unit, None):
            harness.store.set_window(harness.group, None, window)
        harness.store.clear_window(harness.group, None)
    harness.store.set_window(harness.group, None, harness.unit)
    harness.advance(3 * harness.unit)
    done(subjects[State.PROCESSED].claim(B))


def windows_stay_until_cleared(harness: Harness) -> None:
    """Neither time nor purge nor forget takes a window."""
    subject = marked(harness)
    harness.store.set_window(harness.group, None, harness.unit)
    harness.store.set_window(harness.group, "click", None)
    harness.store.forget([subject.id])
    subject.wait_until_forgotten()
    harness.store.purge()
    equal(_told(harness), [(None, harness.unit), ("click", None)], "windows after a long time")


def bound_windows_are_those_of_the_store(harness: Harness) -> None:
    """A bound store tells the windows that its store tells, for one group and for another."""
    harness.store.set_window(harness.group, None, 60.0)
    harness.store.set_window(harness.group, "click", None)
    harness.store.set_window(harness.group + "-x", "view", 5.0)
    requests = [ReadWindows(harness.group + suffix) for suffix in ("-x", "", "-none")]
    outside = harness.store.windows(requests)
    with bound(harness) as store:
        equal(store.windows(requests), outside, "windows in a transaction")
    equal([len(windows) for windows in outside], [1, 2, 0], "how many windows there are")


PROMISES = (
    windows_never_set_are_absent,
    window_is_told_as_it_was_set,
    windows_of_groups_are_apart,
    windows_of_types_are_apart,
    no_dedup_is_a_window,
    window_set_again_replaces,
    clear_window_is_true_once,
    windows_come_in_order,
    windows_are_answered_in_order,
    windows_of_odd_names_are_told_apart,
    window_says_when_it_was_set,
    window_set_changes_no_record,
    windows_stay_until_cleared,
)

TRANSACTIONAL_PROMISES = (bound_windows_are_those_of_the_store,)
