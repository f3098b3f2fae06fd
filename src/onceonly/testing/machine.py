"""Random calls against a store and a model at once. Needs ``hypothesis``.

The model is written from the state × verb table alone and shares no code with any store, so that a
mistake in ``stores/rules.py`` cannot hide in it. Times in the model are units of the harness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onceonly.errors import InFlight
from onceonly.testing.harness import Harness
from onceonly.types import (
    EVERY_STATE,
    Acquired,
    Busy,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Done,
    Mark,
    Marks,
    Query,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Status,
)

LEASE, WINDOW = 4.0, 16.0
NEVER = float("inf")

keys = st.sampled_from(("a", "b", "c"))
batches = st.lists(keys, min_size=1, max_size=3, unique=True)
repeating = st.lists(keys, min_size=1, max_size=3)
tokens = st.sampled_from((b"token of owner A", b"token of owner B", b"token of owner C"))
prints = st.sampled_from((None, b"x", b"y"))
results = st.sampled_from((None, b"0", b'""', b"null", b"", b"42"))
bytes_results = results.map(lambda result: result or b"")
chosen = st.one_of(st.just(EVERY_STATE), st.frozensets(st.sampled_from(State), min_size=1))
limits = st.sampled_from((1, 2, 100))
delays = st.sampled_from((0.0, 0.0, 3.0, 20.0))
durations = st.sampled_from((1.0, 3.0, 4.0, 5.0, 11.0, 15.0, 16.0, 17.0, 20.0, 21.0))


@dataclass
class Known:
    """What the model knows of one record. ``until`` ends a lease or a not-before."""

    state: str
    expires: float
    token: bytes | None = None
    until: float = 0.0
    attempt: int = 0
    fence: int = 0
    orphaned: bool = False
    fingerprint: bytes | None = None
    result: bytes | None = None
    marked: bool = False  # by mark_seen; what attempt and fence ``peek`` shows nobody promises


@dataclass
class Model:
    """The table, with plain dicts."""

    now: float = 0.0
    records: dict[str, Known] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    def get(self, key: str) -> Known | None:
        known = self.records.get(key)
        return known if known is not None and self.now < known.expires else None

    def live(self, key: str) -> bool:
        known = self.get(key)
        return known is not None and known.state == "claimed" and self.now < known.until

    def owned(self, key: str, token: bytes, *states: str) -> Known | None:
        known = self.get(key)
        return known if known is not None and known.token == token and known.state in states else None

    def pop(self, key: str, only: frozenset[State]) -> bool:
        known = self.get(key)
        if known is None or known.state not in only:
            return False
        del self.records[key]
        return True

    def claimed(self, query: Query) -> list[tuple[str, Known]]:
        """What was claimed once, and how the query chooses; by fence."""
        fitting = [(key, k) for key in self.records if (k := self.get(key)) and self._fits(k, query)]
        return sorted(fitting, key=lambda each: each[1].fence)

    def _fits(self, known: Known, query: Query) -> bool:
        if not known.fence or known.state not in query.states:
            return False
        return known.state != "claimed" or query.orphaned in (None, known.until <= self.now)

    def edges(self) -> list[float]:
        """Moments at which some answer changes."""
        return [edge for known in self.records.values() for edge in (known.until, known.expires)]


def _check(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _same(actual: object, expected: object, what: str) -> None:
    _check(actual == expected, f"{what}: the model says {expected!r}, the store {actual!r}")


class StoreMachine(RuleBasedStateMachine):
    """Every answer of a store must be the model's. Subclasses say how to make the harness."""

    exact = True

    def make_harness(self) -> Harness:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.harness = self.make_harness()
        self.store = self.harness.store
        self.model = Model()
        self.looked: dict[str, Record] = {}

    def teardown(self) -> None:
        self.harness.close()

    def _id(self, key: str) -> RecordId:
        return RecordId(self.harness.group, "", key)

    def _seconds(self, units: float) -> float:
        return units * self.harness.unit

    # --- claim --------------------------------------------------------------------------------

    @rule(batch=batches, token=tokens, fingerprint=prints)
    def claim(self, batch: list[str], token: bytes, fingerprint: bytes | None) -> None:
        lease, window = self._seconds(LEASE), self._seconds(WINDOW)
        requests = [ClaimRequest(self._id(key), token, lease, window, fingerprint) for key in batch]
        answers = self.store.claim(requests)
        _same(len(answers), len(batch), "number of answers")
        for key, answer in zip(batch, answers, strict=True):
            self._claimed(key, token, fingerprint, answer)

    def _claimed(self, key: str, token: bytes, fingerprint: bytes | None, answer: ClaimAnswer) -> None:
        known, now = self.model.get(key), self.model.now
        if known is None:
            known = self.model.records[key] = Known("free", NEVER, fingerprint=fingerprint)
        if known.state not in ("claimed", "free"):
            self._answered_done(known, answer)
        elif known.state == "claimed" and known.token == token:
            if now >= known.until:
                known.until, known.expires = now + LEASE, now + LEASE + WINDOW
            expected = Acquired(known.fence, known.attempt, known.orphaned, known.fingerprint)
            _same(answer, expected, f"claim of {key} sent again")
        elif now < known.until:
            self._answered_busy(known, answer)
        else:
            self._answered_acquired(key, known, token, answer)

    def _answered_done(self, known: Known, answer: ClaimAnswer) -> None:
        attempt = known.attempt
        if known.marked and isinstance(answer, Done):
            attempt = answer.attempt
        expected = Done(Status(known.state), known.result, known.fingerprint, attempt)
        _same(answer, expected, "claim of a done record")

    def _answered_busy(self, known: Known, answer: ClaimAnswer) -> None:
        _check(isinstance(answer, Busy), f"the model says Busy, the store {answer!r}")
        if isinstance(answer, Busy):
            left, told = known.until - self.model.now, answer.retry_after / self.harness.unit
            _check(abs(left - told) < (0.001 if self.exact else 0.5), f"{left} left, {told} told")
            _same(answer.fingerprint, known.fingerprint, "fingerprint on Busy")

    def _answered_acquired(self, key: str, known: Known, token: bytes, answer: ClaimAnswer) -> None:
        orphaned = known.state == "claimed" or known.orphaned
        fence = answer.fence if isinstance(answer, Acquired) else 0
        expected = Acquired(fence, known.attempt + 1, orphaned, known.fingerprint)
        _same(answer, expected, f"claim of {key}")
        _check(fence > self.model.fences.get(key, 0), f"the fence of {key} did not grow")
        self.model.fences[key] = known.fence = fence
        known.state, known.token, known.orphaned = "claimed", token, orphaned
        known.attempt += 1
        known.until = self.model.now + LEASE
        known.expires = known.until + WINDOW

    # --- the owner's writes -------------------------------------------------------------------

    @rule(batch=batches, token=tokens, status=st.sampled_from(Status), result=results)
    def complete(self, batch: list[str], token: bytes, status: Status, result: bytes | None) -> None:
        window = self._seconds(WINDOW)
        requests = [Completion(self._id(key), token, window, status, result) for key in batch]
        expected = [self._complete(key, token, status, result) for key in batch]
        _same(self.store.complete(requests), expected, "complete")

    def _complete(self, key: str, token: bytes, status: Status, result: bytes | None) -> bool:
        known = self.model.owned(key, token, "claimed")
        if known is None:
            return self.model.owned(key, token, *Status) is not None
        known.state, known.result = status.value, result
        known.expires = NEVER if status is Status.QUARANTINED else self.model.now + WINDOW
        return True

    @rule(batch=batches, token=tokens, delay=delays, started=st.booleans())
    def release(self, batch: list[str], token: bytes, delay: float, *, started: bool) -> None:
        window, wait = self._seconds(WINDOW), self._seconds(delay)
        requests = [Release(self._id(key), token, window, wait, started) for key in batch]
        expected = [self._release(key, token, delay, started=started) for key in batch]
        _same(self.store.release(requests), expected, "release")

    def _release(self, key: str, token: bytes, delay: float, *, started: bool) -> bool:
        known = self.model.owned(key, token, "claimed")
        if known is None:
            return self.model.owned(key, token, "free") is not None
        known.state, known.until = "free", self.model.now + delay
        known.expires = max(known.expires, known.until + WINDOW)
        known.attempt -= not started
        known.orphaned = known.orphaned and not started
        return True

    @rule(batch=batches, token=tokens)
    def renew(self, batch: list[str], token: bytes) -> None:
        lease, window = self._seconds(LEASE), self._seconds(WINDOW)
        expected = [self._renew(key, token) for key in batch]
        answers = self.store.renew([Renewal(self._id(key), token, lease, window) for key in batch])
        _same(answers, expected, "renew")

    def _renew(self, key: str, token: bytes) -> bool:
        known = self.model.owned(key, token, "claimed")
        if known is None:
            return False
        known.until = self.model.now + LEASE
        known.expires = known.until + WINDOW
        return True

    # --- verbs without a token ----------------------------------------------------------------

    @rule(batch=st.lists(st.tuples(keys, results), min_size=1, max_size=3))
    def mark_seen(self, batch: list[tuple[str, bytes | None]]) -> None:
        window = self._seconds(WINDOW)
        self._mark([Mark(self._id(key), window, result=result) for key, result in batch])

    @rule(batch=st.lists(st.tuples(keys, bytes_results), min_size=1, max_size=3))
    def mark_columns(self, batch: list[tuple[str, bytes]]) -> None:
        names, told = [key for key, _ in batch], [result for _, result in batch]
        self._mark(Marks(self.harness.group, "", names, self._seconds(WINDOW), results=told))

    def _mark(self, marks: Sequence[Mark]) -> None:
        expected = [self._marked(mark.id.key, mark.result) for mark in marks]
        _same(self.store.mark_seen(marks), expected, "mark_seen")

    def _marked(self, key: str, result: bytes | None) -> bool:
        known = self.model.get(key) or Known("free", NEVER)
        if self.model.live(key) or known.state in set(Status):
            return False
        done = Known("processed", self.model.now + WINDOW, result=result, marked=True)
        done.fingerprint, done.fence = known.fingerprint, known.fence
        self.model.records[key] = done
        return True

    @rule(batch=repeating, force=st.booleans(), only=chosen)
    def forget(self, batch: list[str], *, force: bool, only: frozenset[State]) -> None:
        ids = [self._id(key) for key in batch]
        if not force and State.CLAIMED in only and any(self.model.live(key) for key in batch):
            self._refused(lambda: self.store.forget(ids, only=only), "forget")
        else:
            expected = [self.model.pop(key, only) for key in batch]
            _same(self.store.forget(ids, force=force, only=only), expected, f"forget of {only}")

    @rule(key=keys)
    def look(self, key: str) -> None:
        """An operator looks now, and may act on it later."""
        self.looked[key] = self._shown(key)

    def _shown(self, key: str) -> Record:
        return self.store.peek([self._id(key)])[0] or Record(self._id(key), State.CLAIMED, 1, 1, None)

    @rule(batch=repeating, force=st.booleans(), afresh=st.booleans(), late=st.booleans())
    def revoke(self, batch: list[str], *, force: bool, afresh: bool, late: bool) -> None:
        now = {key: self._shown(key) for key in batch}
        shown = [self.looked.get(key, now[key]) if late else now[key] for key in batch]
        if not force and any(self.model.live(key) for key in batch):
            self._refused(lambda: self.store.revoke(shown, afresh=afresh), "revoke")
        else:
            expected = [self._revoked(k, r, afresh=afresh) for k, r in zip(batch, shown, strict=True)]
            _same(self.store.revoke(shown, force=force, afresh=afresh), expected, "revoke")

    def _revoked(self, key: str, shown: Record, *, afresh: bool) -> bool:
        known = self.model.get(key)
        fitting = ("claimed", "free", "failed", "quarantined") if afresh else ("claimed", "free")
        if known is None or known.state not in fitting:
            return False
        if (known.state, known.fence) != (shown.state.value, shown.fence):
            return False
        known.token, known.until = None, 0.0
        if afresh:
            known.state, known.attempt, known.orphaned, known.result = "free", 0, False, None
        return True

    def _refused(self, call: Callable[[], object], verb: str) -> None:
        try:
            call()
        except InFlight:
            return
        _check(False, f"{verb} of a live claim did not raise InFlight")

    @rule()
    def purge(self) -> None:
        """Changes no answer."""
        _check(self.store.purge() >= 0, "purge removed less than nothing")

    @rule(units=durations)
    def advance(self, units: float) -> None:
        """To the edges of leases and windows; around them where time cannot be told exactly."""
        self._pass(units)
        while not self.exact and any(e - 1 < self.model.now < e + 3 for e in self.model.edges()):
            self._pass(1.0)

    def _pass(self, units: float) -> None:
        self.harness.advance(self._seconds(units))
        self.model.now += units

    # --- reading ------------------------------------------------------------------------------

    @invariant()
    def peek(self) -> None:
        """After every step, every record is what the model says."""
        names = ("a", "b", "c")
        for key, record in zip(names, self.store.peek([self._id(key) for key in names]), strict=True):
            known = self.model.get(key)
            if record is None or known is None:
                _same(record, known, f"record {key}")
                continue
            seen = (record.state.value, record.fingerprint, record.result)
            _same(seen, (known.state, known.fingerprint, known.result), f"record {key}")
            if not known.marked:
                counts = (record.attempt, record.fence)
                _same(counts, (known.attempt, known.fence), f"attempt and fence of {key}")

    @rule(states=chosen, orphaned=st.sampled_from((None, True, False)), limit=limits)
    def find(self, *, states: frozenset[State], orphaned: bool | None, limit: int) -> None:
        """Oldest claims first. Two keys may have the same fence, and then either may come first."""
        query = Query(states, self.harness.group, orphaned, limit)
        fitting = {key: (known.state, known.fence) for key, known in self.model.claimed(query)}
        records = self.store.find(query)
        found = {record.id.key: record.state.value for record in records}
        _same(len(records), min(limit, len(fitting)), f"number of records by {query}")
        strangers = [key for key, state in found.items() if key not in fitting or fitting[key][0] != state]
        _check(not strangers, f"{query} found {strangers}, which the model does not")
        expected = [fence for _, fence in fitting.values()][:limit]
        _same([fitting[key][1] for key in found], expected, f"fences by {query}")

    @rule()
    def stats(self) -> None:
        states = [known.state for key in "abc" if (known := self.model.get(key)) is not None]
        expected = {state: states.count(state) for state in states}
        counted = self.store.stats().groups.get(self.harness.group, {})
        _same({state.value: count for state, count in counted.items()}, expected, "stats")


def store_machine(make: Callable[[], Harness], *, exact: bool = True) -> type[StoreMachine]:
    """A state machine for the stores that ``make`` makes; its ``TestCase`` is for unittest and pytest.

    ``exact=False`` is for a store whose clock runs by itself, or that keeps records up to an eighth
    longer: the machine then stays away from the edges of leases and windows.
    """

    class Machine(StoreMachine):
        def make_harness(self) -> Harness:
            return make()

    Machine.exact = exact
    return Machine
