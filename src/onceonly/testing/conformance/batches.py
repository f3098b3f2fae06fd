"""Promises of a call as a batch: order, size, atomicity."""

from __future__ import annotations

import random

from onceonly.errors import StoreFull
from onceonly.testing.conformance.subject import (
    A,
    B,
    C,
    Subject,
    absent,
    check,
    equal,
    freed,
    lapsed,
    raises,
)
from onceonly.testing.harness import Harness
from onceonly.types import Acquired, Busy, Completion, Done, Mark, Release, Renewal

_MANY = 2000


def _subjects(harness: Harness, count: int) -> list[Subject]:
    """In an order that is neither that of the keys nor of their digests, the same every time."""
    subjects = [Subject(harness, f"key-{number}") for number in range(count)]
    random.Random(17).shuffle(subjects)
    return subjects


def _claimed(harness: Harness) -> list[Subject]:
    """Twenty records, every third claimed by A, the others by B."""
    subjects = _subjects(harness, 20)
    for index, subject in enumerate(subjects):
        subject.claim(_owner(index))
    return subjects


def _owner(index: int) -> bytes:
    return A if index % 3 == 0 else B


def _every_third(answer: list[bool], what: str) -> None:
    equal(answer, [index % 3 == 0 for index in range(20)], what)


def empty_batches_have_no_answers(harness: Harness) -> None:
    """Nothing asked, nothing answered."""
    store = harness.store
    empty: list[object] = [store.mark_seen([]), store.claim([]), store.complete([])]
    empty += [store.release([]), store.renew([]), store.peek([]), store.forget([])]
    empty += [store.revoke([]), store.windows([])]
    equal(empty, [[]] * 9, "answers to empty batches")


def claims_are_answered_in_order(harness: Harness) -> None:
    """One batch of Acquired, Busy and Done; answers come in the order of the requests."""
    subjects = _subjects(harness, 21)
    for index, subject in enumerate(subjects):
        if index % 3:
            subject.claim(A)
        if index % 3 == 2:
            subject.complete(A, result=b"%d" % index)
    answers = harness.store.claim([subject.request(B) for subject in subjects])
    equal([type(a) for a in answers], [Acquired, Busy, Done] * 7, "kinds of answers")
    results = [a.result for a in answers if isinstance(a, Done)]
    equal(results, [b"%d" % index for index in range(2, 21, 3)], "results in order")


def claims_of_one_key_go_to_the_first(harness: Harness) -> None:
    """Concurrent claims are sent together, also of one key: in a batch, too, one of them wins."""
    for make in (absent, freed, lapsed):
        subject, other = make(harness), Subject(harness, "other")
        requests = [subject.request(B), other.request(B), subject.request(C)]
        kinds = [type(answer) for answer in harness.store.claim(requests)]
        equal(kinds, [Acquired, Acquired, Busy], "two claims of one key in a batch")
        equal(
            harness.store.complete([subject.completion(C), subject.completion(B)]),
            [False, True],
            "their owner",
        )
        subject.forget()
        other.forget(force=True)


def completions_are_answered_in_order(harness: Harness) -> None:
    """Ours True, others' False, in the order of the requests."""
    batch = [Completion(s.id, A, s.window) for s in _claimed(harness)]
    _every_third(harness.store.complete(batch), "completions")


def releases_are_answered_in_order(harness: Harness) -> None:
    """Ours True, others' False, in the order of the requests."""
    batch = [Release(s.id, A, s.window) for s in _claimed(harness)]
    _every_third(harness.store.release(batch), "releases")


def renewals_are_answered_in_order(harness: Harness) -> None:
    """Ours True, others' False, in the order of the requests."""
    batch = [Renewal(s.id, A, s.lease, s.window) for s in _claimed(harness)]
    _every_third(harness.store.renew(batch), "renewals")


def marks_are_answered_in_order(harness: Harness) -> None:
    """New True, known False, in the order of the requests."""
    subjects = _subjects(harness, 20)
    harness.store.mark_seen([s.mark_request() for i, s in enumerate(subjects) if i % 3])
    _every_third(harness.store.mark_seen([s.mark_request() for s in subjects]), "marks")


def peeks_are_answered_in_order(harness: Harness) -> None:
    """Each record in its place, None where there is none."""
    subjects = _subjects(harness, 20)
    harness.store.mark_seen([s.mark_request() for i, s in enumerate(subjects) if i % 3 == 0])
    found = harness.store.peek([s.id for s in subjects])
    expected = [s.id if i % 3 == 0 else None for i, s in enumerate(subjects)]
    equal([record and record.id for record in found], expected, "records in order")


def forgets_are_answered_in_order(harness: Harness) -> None:
    """True where there was a record, in the order of the requests."""
    subjects = _subjects(harness, 20)
    harness.store.mark_seen([s.mark_request() for i, s in enumerate(subjects) if i % 3 == 0])
    _every_third(harness.store.forget([s.id for s in subjects]), "forgets")


def large_batches_are_one_call(harness: Harness) -> None:
    """Two thousand keys in any order: claimed, completed and replayed, each for itself."""
    store, subjects = harness.store, _subjects(harness, _MANY)
    # A lease that real time cannot end while the batch is under way.
    requests = [s.request(A)._replace(lease=1000 * s.unit) for s in subjects]
    answers = store.claim(requests)
    check(all(isinstance(answer, Acquired) for answer in answers), "not all were acquired")
    fences = {answer.fence for answer in answers if isinstance(answer, Acquired)}
    equal(len(fences), _MANY, "different fences")
    completions = [Completion(s.id, A, 1000 * s.unit, result=s.id.key.encode()) for s in subjects]
    equal(store.complete(completions), [True] * _MANY, "completions")
    random.Random(4).shuffle(subjects)
    replayed = store.claim([s.request(B) for s in subjects])
    results = [answer.result if isinstance(answer, Done) else None for answer in replayed]
    equal(results, [s.id.key.encode() for s in subjects], "results")


def large_batches_of_marks_are_one_call(harness: Harness) -> None:
    """Two thousand marks, each key twice: the first of each is new."""
    subjects = _subjects(harness, _MANY // 2) * 2
    answers = harness.store.mark_seen([Mark(s.id, 1000 * s.unit) for s in subjects])
    equal(answers, [True] * (_MANY // 2) + [False] * (_MANY // 2), "marks")


def full_store_refuses_whole_batch(harness: Harness) -> None:
    """A batch that does not fit raises StoreFull and changes nothing. Only for bounded stores."""
    if harness.capacity is None:
        return
    fill = [Mark(s.id, s.window) for s in _subjects(harness, harness.capacity - 1)]
    harness.store.mark_seen(fill)
    last, more = Subject(harness, "last"), Subject(harness, "more")
    with raises(StoreFull, "claim of more than there is room for"):
        harness.store.claim([last.request(), more.request()])
    with raises(StoreFull, "mark of more than there is room for"):
        harness.store.mark_seen([last.mark_request(), more.mark_request()])
    last.is_absent()
    more.is_absent()
    check(last.mark(), "there was room for one more")


PROMISES = (
    empty_batches_have_no_answers,
    claims_are_answered_in_order,
    claims_of_one_key_go_to_the_first,
    completions_are_answered_in_order,
    releases_are_answered_in_order,
    renewals_are_answered_in_order,
    marks_are_answered_in_order,
    peeks_are_answered_in_order,
    forgets_are_answered_in_order,
    large_batches_are_one_call,
    large_batches_of_marks_are_one_call,
    full_store_refuses_whole_batch,
)
