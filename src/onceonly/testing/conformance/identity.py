"""Promises about who is who: groups, scopes and keys, and the statistics per group."""

from __future__ import annotations

from collections.abc import Sequence

from onceonly.errors import ConfigurationError
from onceonly.testing.conformance.subject import A, B, Subject, check, equal, marked, raises
from onceonly.testing.harness import Harness
from onceonly.types import Mark, State, Status

ODD_KEYS = (
    "a",
    "A",
    " a",
    "a ",
    "a\n",
    "a:b",
    "a/b",
    "{a}",
    "{a}b",
    "%",
    "_",
    "*",
    "?",
    "'; DROP TABLE onceonly_records; --",
    '"',
    "\\",
    "0",
    "00",
    "None",
    "\u00e9",
    "e\u0301",
    "\U0001f4e8",
    "\U0001f4e8\U0001f3fd",
    "k" * 512,
    "k" * 511 + "l",
    "\U0001f4e8" * 128,
)


def _all_new(subjects: Sequence[Subject]) -> None:
    """Each is new on its own, though all the others are known."""
    for subject in subjects:
        check(subject.mark(), f"{subject.id} was taken for another record")
    for subject in subjects:
        record = subject.record()
        equal(record.id, subject.id, "identity of a record")
        check(not subject.mark(), f"{subject.id} was not remembered")


def groups_are_apart(harness: Harness) -> None:
    """Each consumer group processes a key on its own."""
    _all_new([Subject(harness, group="-x"), Subject(harness, group="-y")])


def scopes_are_apart(harness: Harness) -> None:
    """Each tenant has keys of its own; no scope is a scope, too."""
    _all_new([Subject(harness, scope=scope) for scope in ("", "x", "y")])


def neighbouring_parts_do_not_mix(harness: Harness) -> None:
    """Group, scope and key are told apart where their concatenation is the same."""
    parts = [("-a", "bc", "d"), ("-ab", "c", "d"), ("-a", "b", "cd"), ("-a", "", "bcd"), ("", "-a", "bcd")]
    parts += [("-a:b", "c", "d"), ("-a", "b:c", "d"), ("-a", "b", "c:d"), ("-a", "", "b:c:d")]
    _all_new([Subject(harness, key, scope=scope, group=group) for group, scope, key in parts])


def odd_keys_are_told_apart(harness: Harness) -> None:
    """A key is text as it is: no trimming, folding, normalising, quoting or cutting."""
    _all_new([Subject(harness, key) for key in ODD_KEYS])


def odd_scopes_are_told_apart(harness: Harness) -> None:
    """A scope is text as it is."""
    _all_new([Subject(harness, scope=scope) for scope in ODD_KEYS])


def stats_count_states_per_group(harness: Harness) -> None:
    """Records are counted by group and state, over all scopes; expired ones are not."""
    gone = Subject(harness, "gone")
    gone.mark()
    gone.wait_until_forgotten()
    for key in ("claimed-1", "claimed-2", "free", "processed", "failed", "quarantined"):
        Subject(harness, key, scope=key).claim(A)
    Subject(harness, "free", scope="free").release(A)
    for status in Status:
        Subject(harness, status.value, scope=status.value).complete(A, status)
    Subject(harness, "elsewhere", group="-x").mark()
    groups = harness.store.stats().groups
    expected = dict.fromkeys(State, 1) | {State.CLAIMED: 2}
    equal(dict(groups[harness.group]), expected, "records by state")
    equal(dict(groups[harness.group + "-x"]), {State.PROCESSED: 1}, "records of the other group")


def peek_shows_the_record(harness: Harness) -> None:
    """``peek`` shows state, attempt, fence, type and fingerprint, and changes nothing."""
    subject = Subject(harness)
    request = subject.request(A, b"print")._replace(type="order.paid")
    harness.store.claim([request])
    record = subject.record()
    seen = (record.id, record.state, record.attempt, record.type, record.fingerprint, record.result)
    expected = (subject.id, State.CLAIMED, 1, "order.paid", b"print", None)
    equal(seen, expected, "the record")
    check(record.fence > 0, "the record has no fence")
    subject.complete(A, Status.FAILED, b"why")
    record = subject.record()
    equal((record.state, record.result), (State.FAILED, b"why"), "the done record")


def mark_keeps_its_type(harness: Harness) -> None:
    """The type of a mark is kept for audit."""
    subject = Subject(harness)
    harness.store.mark_seen([Mark(subject.id, subject.window, "click")])
    equal(subject.record().type, "click", "type of a marked record")


def bind_to_wrong_object_is_refused(harness: Harness) -> None:
    """What is no connection of this store, or where no store can be bound, is ConfigurationError."""
    with raises(ConfigurationError, "bind to an object that is no connection"):
        harness.store.bind(object())


def tokens_are_compared_whole(harness: Harness) -> None:
    """Tokens that differ in one byte are different owners."""
    subject = Subject(harness)
    subject.claim(A)
    for token in (A[:-1] + b"\0", b"\0" + A[1:], B):
        check(not subject.complete(token), "a token that only resembles ours was taken for it")


def mark_leaves_others_alone(harness: Harness) -> None:
    """A record is not changed by what happens to another."""
    one, other = marked(harness), Subject(harness, "other")
    with one.unchanged():
        other.claim(A)
        other.complete(A, Status.FAILED, b"x")
        other.forget()


PROMISES = (
    groups_are_apart,
    scopes_are_apart,
    neighbouring_parts_do_not_mix,
    odd_keys_are_told_apart,
    odd_scopes_are_told_apart,
    stats_count_states_per_group,
    peek_shows_the_record,
    mark_keeps_its_type,
    bind_to_wrong_object_is_refused,
    tokens_are_compared_whole,
    mark_leaves_others_alone,
)
