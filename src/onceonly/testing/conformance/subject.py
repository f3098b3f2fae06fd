"""One record under test, and how to bring it into each state of the table.

A lease is 4 units and a window 16, so that the eighth a store may keep longer is 2 units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from onceonly.protocols import BoundStore, Store
from onceonly.testing.harness import Harness
from onceonly.types import (
    Acquired,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Done,
    Mark,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Status,
)

A = b"token of owner A"
B = b"token of owner B"
C = b"token of owner C"


def fail(message: str) -> NoReturn:
    """As ``assert False``, but also under ``python -O``."""
    raise AssertionError(message)


def check(condition: object, message: str) -> None:
    if not condition:
        fail(message)


def equal(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        fail(f"{what}: expected {expected!r}, got {actual!r}")


@contextmanager
def raises(kind: type[Exception], what: str) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    fail(f"{what}: {kind.__name__} was not raised")


def acquired(answer: ClaimAnswer) -> Acquired:
    return answer if isinstance(answer, Acquired) else fail(f"expected Acquired, got {answer!r}")


def busy(answer: ClaimAnswer) -> Busy:
    return answer if isinstance(answer, Busy) else fail(f"expected Busy, got {answer!r}")


def done(answer: ClaimAnswer) -> Done:
    return answer if isinstance(answer, Done) else fail(f"expected Done, got {answer!r}")


class Subject:
    """One record of a store, with every verb as a call for it alone."""

    def __init__(self, harness: Harness, key: str = "k", *, scope: str = "", group: str = "") -> None:
        self.harness = harness
        self.store: Store = harness.store
        self.unit = harness.unit
        self.lease = 4 * harness.unit
        self.window = 16 * harness.unit
        self.id = RecordId(harness.group + group, scope, key)

    def wait(self, units: float) -> None:
        self.harness.advance(units * self.unit)

    def wait_until_forgotten(self) -> None:
        """Past the longest time that a store may keep a record which is done, or unfinished."""
        self.wait(4 + 16 + 2 + 1)

    # --- requests -----------------------------------------------------------------------------

    def request(self, token: bytes = A, fingerprint: bytes | None = None) -> ClaimRequest:
        return ClaimRequest(self.id, token, self.lease, self.window, fingerprint)

    def completion(
        self, token: bytes = A, status: Status = Status.PROCESSED, result: bytes | None = None
    ) -> Completion:
        return Completion(self.id, token, self.window, status, result)

    def mark_request(self, result: bytes | None = None) -> Mark:
        return Mark(self.id, self.window, result=result)

    # --- verbs --------------------------------------------------------------------------------

    def claim(self, token: bytes = A, fingerprint: bytes | None = None) -> ClaimAnswer:
        return self.store.claim([self.request(token, fingerprint)])[0]

    def complete(
        self, token: bytes = A, status: Status = Status.PROCESSED, result: bytes | None = None
    ) -> bool:
        return self.store.complete([self.completion(token, status, result)])[0]

    def release(self, token: bytes = A, *, delay: float = 0.0, started: bool = True) -> bool:
        """``delay`` is in units."""
        release = Release(self.id, token, self.window, delay * self.unit, started)
        return self.store.release([release])[0]

    def renew(self, token: bytes = A) -> bool:
        return self.store.renew([Renewal(self.id, token, self.lease, self.window)])[0]

    def mark(self, result: bytes | None = None) -> bool:
        return self.store.mark_seen([self.mark_request(result)])[0]

    def forget(self, *, force: bool = False) -> bool:
        return self.store.forget([self.id], force=force)[0]

    def shown(self) -> Record:
        """What an operator saw; where there is nothing, what they may have seen before."""
        return self.peek() or Record(self.id, State.CLAIMED, 1, 1, None)

    def revoke(self, *, force: bool = False, afresh: bool = False) -> bool:
        return self.store.revoke([self.shown()], force=force, afresh=afresh)[0]

    def peek(self) -> Record | None:
        return self.store.peek([self.id])[0]

    def bind(self, connection: object) -> BoundStore:
        return self.store.bind(connection)

    # --- checks -------------------------------------------------------------------------------

    def record(self) -> Record:
        return self.peek() or fail("the record is gone")

    def is_state(self, state: State) -> None:
        equal(self.record().state, state, "state")

    def is_absent(self) -> None:
        equal(self.peek(), None, "peek of an absent record")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Nothing that ``peek`` shows changes, but for what time alone changes."""
        before = self._seen()
        yield
        equal(self._seen(), before, "the record changed")

    def _seen(self) -> object:
        r = self.peek()
        if r is None:
            return None
        times = (r.expires_at, r.lease_until, r.not_before, r.done_at)
        return r.state, r.attempt, r.fence, times, r.type, r.fingerprint, r.result


@contextmanager
def all_unchanged(subjects: Iterable[Subject]) -> Iterator[None]:
    """None of these records changes, and none comes or goes."""
    with ExitStack() as stack:
        for subject in subjects:
            stack.enter_context(subject.unchanged())
        yield


# --- the rows of the table ----------------------------------------------------------------------


def absent(harness: Harness) -> Subject:
    return Subject(harness)


def running(harness: Harness, fingerprint: bytes | None = None, key: str = "k") -> Subject:
    """Claimed by A, its lease running."""
    subject = Subject(harness, key)
    acquired(subject.claim(A, fingerprint))
    return subject


def lapsed(harness: Harness, key: str = "k") -> Subject:
    """Claimed by A, its lease over."""
    subject = running(harness, key=key)
    subject.wait(5)
    return subject


def freed(harness: Harness, key: str = "k") -> Subject:
    """Released by A, to be had at once."""
    subject = running(harness, key=key)
    check(subject.release(A), "release by the owner")
    return subject


def finished(
    harness: Harness, status: Status = Status.PROCESSED, result: bytes | None = b"1", key: str = "k"
) -> Subject:
    """Done by A."""
    subject = running(harness, key=key)
    check(subject.complete(A, status, result), "complete by the owner")
    return subject


def marked(harness: Harness) -> Subject:
    """Done by a mark, which has no token."""
    subject = Subject(harness)
    check(subject.mark(), "mark of a new key")
    return subject


def quarantined(harness: Harness, key: str = "k") -> Subject:
    return finished(harness, Status.QUARANTINED, None, key)


def expired(harness: Harness) -> Iterator[Subject]:
    """A record of each state but quarantined, one after the other, each past its time."""
    for index, state in enumerate((State.CLAIMED, State.FREE, State.PROCESSED, State.FAILED)):
        subject = Subject(harness, f"expired-{index}")
        acquired(subject.claim(A, b"old"))
        if state is State.FREE:
            check(subject.release(A), "release by the owner")
        elif state.done:
            check(subject.complete(A, Status(state.value), b"old"), "complete by the owner")
        subject.wait_until_forgotten()
        yield subject


def one_of_each(harness: Harness) -> dict[State, Subject]:
    """A record of each state, claimed by A a unit apart; the lease of the claim is over, nothing waits."""
    subjects = {state: Subject(harness, state.value) for state in State}
    for state, subject in subjects.items():
        acquired(subject.claim(A, b"print"))
        if state is State.FREE:
            check(subject.release(A), "release by the owner")
        elif state.done:
            check(subject.complete(A, Status(state.value), b"result"), "complete by the owner")
        subject.wait(1)
    return subjects
