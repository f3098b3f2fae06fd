"""``Once`` as a user meets it, on real stores."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import pytest

from onceonly import (
    ConfigurationError,
    Happened,
    InFlight,
    InvalidKey,
    LeaseLost,
    NotRecorded,
    Once,
    PayloadMismatch,
    Quarantined,
    Record,
    State,
    StoredFailure,
    StoreUnavailable,
    Verdict,
    content_key,
    current_claim,
)
from onceonly.events import Event, FailedOpen, Raised, ResultDropped, Settled
from onceonly.stores.memory import MemoryStore
from onceonly.stores.sqlite import SqliteStore
from onceonly.testing import FlakyStore, ManualClock
from onceonly.types import ClaimRequest, RecordId
from tests.forking import in_child

LEASE, WINDOW = 10, 100
ID = RecordId("billing", "", "k")


class Handler:
    """Returns, or raises, what it was given, once per entry and the last for ever; counts its runs."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results or (None,))
        self.runs: list[Any] = []

    def __call__(self, message: Any = None) -> Any:
        result = self.results[min(len(self.runs), len(self.results) - 1)]
        self.runs.append(message)
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path, clock):
    if request.param == "memory":
        yield MemoryStore(clock=clock)
        return
    store = SqliteStore(tmp_path / "once.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def engine(store):
    """Makes engines of one group on one store, unless told otherwise."""
    engines: list[Once] = []

    def make(over: Any = None, **options: Any) -> Once:
        settings: Any = {"group": "billing", "lease": LEASE, "window": WINDOW, **options}
        engines.append(Once(over or store, **settings))
        return engines[-1]

    yield make
    for once in engines:
        once.close()


def claim_elsewhere(store: Any, key: str = "k", fingerprint: bytes | None = None) -> None:
    """Another worker is at it."""
    store.claim([ClaimRequest(RecordId("billing", "", key), b"another worker", LEASE, WINDOW, fingerprint)])


def orphan(store: Any, clock: ManualClock) -> None:
    """Another worker was at it, and died."""
    claim_elsewhere(store)
    clock.advance(LEASE + 1)


def known(once: Once, key: str = "k", **more: Any) -> Record:
    record = once.peek(key, **more)
    assert record is not None
    return record


# --- the decorator ----------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, 0, "", False, [], {}, 0.0, {"charge": 17}, "text"])
def test_a_guarded_function_runs_once_and_replays_its_result_as_itself(engine, result):
    handler = Handler(result)
    charge = engine().handler(key=lambda m: m["id"])(handler)
    for _ in range(3):
        again = charge({"id": "k"})
        assert again == result
        assert type(again) is type(result)
    assert len(handler.runs) == 1


def test_other_keys_run_by_themselves(engine):
    handler = Handler(1, 2)
    charge = engine().handler(key=lambda m: m["id"])(handler)
    assert [charge({"id": "a"}), charge({"id": "b"}), charge({"id": "a"})] == [1, 2, 1]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("$.order.id", {"order": {"id": "k"}}),
        ("$.order.id", '{"order": {"id": "k"}}'),
        ("header:message-id", {"headers": {"Message-Id": "k"}}),
        ("attr:properties.message_id", SimpleNamespace(properties=SimpleNamespace(message_id="k"))),
        (lambda m: m[1], ("x", "k")),
    ],
)
def test_a_key_is_found_where_told(engine, key, message):
    once, handler = engine(), Handler(5)
    charge = once.handler(key=key)(handler)
    assert (charge(message), charge(message), len(handler.runs)) == (5, 5, 1)
    assert once.seen("k")


def test_a_number_and_its_text_are_one_key(engine):
    handler = Handler(5)
    charge = engine().handler(key="$.id")(handler)
    charge({"id": 17})
    charge({"id": "17"})
    assert len(handler.runs) == 1


def test_a_missing_id_is_an_invalid_key_and_nothing_runs(engine):
    handler = Handler()
    charge = engine().handler(key="$.id")(handler)
    with pytest.raises(InvalidKey, match="fallback"):
        charge({"amount": 5})
    assert handler.runs == []


@pytest.mark.parametrize("key", ["$.id", lambda m: m["id"]], ids=["path", "function"])
def test_a_fallback_makes_the_key_only_where_the_id_is_missing(engine, key):
    handler = Handler()
    charge = engine().handler(key=key, fallback=content_key())(handler)
    for message in ({"amount": 5}, {"amount": 5}, {"amount": 6}, {"id": "k"}, {"id": "k", "amount": 7}):
        charge(message)
    assert handler.runs == [{"amount": 5}, {"amount": 6}, {"id": "k"}]


def test_a_fallback_works_for_a_keyword_argument_too(engine):
    handler = Handler(5)
    charge = engine().handler(key=lambda message: message["id"], fallback=lambda message: "k")(handler)
    assert charge(message={"amount": 5}) == 5


def test_a_key_function_gets_what_the_handler_gets(engine):
    runs = []

    @engine().handler(key=lambda order, *, line: f"{order}/{line}")
    def ship(order, *, line):
        runs.append((order, line))
        return [order, line]

    assert [ship(1, line=2), ship(1, line=2), ship(1, line=3)] == [[1, 2], [1, 2], [1, 3]]
    assert runs == [(1, 2), (1, 3)]


def test_a_place_to_find_the_key_is_looked_up_in_the_message_however_it_is_passed(engine):
    charge = engine().handler(key="$.id")(Handler(1, 2))
    assert (charge({"id": "k"}), charge(message={"id": "k"})) == (1, 1)
    with pytest.raises(ConfigurationError, match="called without it"):
        charge()


def test_a_guarded_function_keeps_its_name(engine):
    @engine().handler(key="$.id")
    def charge(message):
        """Charges."""

    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")


def test_a_handler_may_have_options_of_its_own(engine):
    once, handler = engine(), Handler(5)
    forgetful = once.handler(key="$.id", keep_result=False)(handler)
    assert (forgetful({"id": "k"}), forgetful({"id": "k"})) == (5, None)
    with pytest.raises(ConfigurationError, match="lease"):
        once.handler(key="$.id", lease=WINDOW + 1)


async def charge_async(message):
    raise AssertionError


def test_an_async_function_is_refused_by_the_decorator(engine):
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        engine().handler(key="$.id")(charge_async)


@pytest.mark.parametrize(
    "deliver",
    [
        lambda once: once.process(charge_async, {"id": "k"}, key="k"),
        lambda once: once.process_many(charge_async, [{"id": "k"}], key="$.id"),
    ],
    ids=["one", "many"],
)
def test_an_async_function_is_refused_everywhere_because_nobody_would_await_it(engine, deliver):
    once = engine()
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        deliver(once)
    assert not once.seen("k")
    assert once.process(Handler(5), {}, key="k").result == 5


def test_in_flight_is_raised_by_the_decorator_with_the_time_to_wait(engine, store):
    claim_elsewhere(store)
    with pytest.raises(InFlight, match="'k'") as raised:
        engine().handler(key="$.id")(Handler())({"id": "k"})
    assert raised.value.retry_after == pytest.approx(LEASE)


def test_quarantined_is_raised_by_the_decorator(engine, store, clock):
    orphan(store, clock)
    charge = engine(on_orphan="quarantine").handler(key="$.id")(Handler())
    for _ in range(2):
        with pytest.raises(Quarantined, match="'k'"):
            charge({"id": "k"})


def test_a_stored_failure_is_raised_first_as_itself_then_as_stored_failure(engine):
    handler = Handler(ValueError("card expired"))
    charge = engine(store_failure=lambda e: isinstance(e, ValueError)).handler(key="$.id")(handler)
    with pytest.raises(ValueError, match="card expired"):
        charge({"id": "k"})
    with pytest.raises(StoredFailure, match="card expired") as raised:
        charge({"id": "k"})
    assert (raised.value.kind, raised.value.message) == ("ValueError", "card expired")
    assert len(handler.runs) == 1


# --- process ----------------------------------------------------------------------------------


def test_process_tells_a_consumer_all_it_needs(engine):
    once, handler = engine(), Handler({"ok": 1})
    first, second = (once.process(handler, {"id": "k"}, key="k") for _ in range(2))
    assert first == (Verdict.PROCESSED, {"ok": 1}, 1, 0.0, None, False)
    assert second == (Verdict.DUPLICATE, {"ok": 1}, 1, 0.0, None, False)
    assert first.ack
    assert second.ack
    assert handler.runs == [{"id": "k"}]


def test_process_finds_the_key_with_a_function(engine):
    once = engine()
    once.process(Handler(), {"id": 17}, key=lambda m: m["id"])
    assert once.seen("17")


@pytest.mark.parametrize("key", ["", "x" * 513, 17, None, b"k", "$.id", "header:x", "\ud800"])
def test_what_cannot_be_a_key_is_refused_before_anything_happens(engine, store, key):
    handler, counted = Handler(), FlakyStore(store)
    with pytest.raises(InvalidKey):
        engine(counted).process(handler, {"id": "k"}, key=key)
    assert (handler.runs, counted.calls) == ([], {})


def test_one_message_costs_one_claim_and_one_complete(engine, store):
    counted = FlakyStore(store)
    once = engine(counted)
    once.process(Handler(5), {}, key="k")
    assert counted.calls == {"windows": 1, "claim": 1, "complete": 1}
    once.process(Handler(5), {}, key="j")
    assert counted.calls == {"windows": 1, "claim": 2, "complete": 2}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_process_raises_what_the_handler_raised_and_the_next_delivery_runs(engine, error):
    once, handler = engine(), Handler(error, "paid")
    with pytest.raises(type(error)) as raised:
        once.process(handler, {}, key="k")
    assert raised.value is error
    assert known(once).state is State.FREE
    again = once.process(handler, {}, key="k")
    assert (again.verdict, again.result, again.attempt) == (Verdict.PROCESSED, "paid", 2)


def test_a_retry_waits_for_the_retry_delay(engine, clock):
    once, handler = engine(retry_delay=7), Handler(ValueError(), "paid")
    with pytest.raises(ValueError):  # noqa: PT011
        once.process(handler, {}, key="k")
    early = once.process(handler, {}, key="k")
    assert (early.verdict, early.ack, early.retry_after) == (Verdict.IN_FLIGHT, False, pytest.approx(7))
    clock.advance(7)
    assert once.process(handler, {}, key="k").verdict is Verdict.PROCESSED


def test_a_store_failure_is_final_and_acked_when_it_comes_again(engine):
    once, handler = engine(store_failure=lambda e: isinstance(e, ValueError)), Handler(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        once.process(handler, {}, key="k")
    again = once.process(handler, {}, key="k")
    assert (again.verdict, again.ack, again.final) == (Verdict.FAILED, True, True)
    assert isinstance(again.error, StoredFailure)
    assert len(handler.runs) == 1


def test_a_failure_that_is_not_final_is_tried_again(engine):
    once, handler = engine(store_failure=lambda e: isinstance(e, ValueError)), Handler(OSError(), 5)
    with pytest.raises(OSError):  # noqa: PT011
        once.process(handler, {}, key="k")
    assert once.process(handler, {}, key="k").result == 5


def test_the_window_ends_the_memory(engine, clock):
    once, handler = engine(), Handler(1, 2)
    once.process(handler, {}, key="k")
    clock.advance(WINDOW - 1)
    assert once.process(handler, {}, key="k").result == 1
    clock.advance(WINDOW / 8 + 2)
    assert once.process(handler, {}, key="k") == (Verdict.PROCESSED, 2, 1, 0.0, None, False)


def test_without_a_window_everything_runs_and_the_store_is_only_asked_for_windows(engine, store):
    handler, counted = Handler(5), FlakyStore(store)
    once = engine(counted, window=None)
    assert [once.process(handler, {}, key="k").verdict for _ in range(2)] == [Verdict.PROCESSED] * 2
    assert [o.result for o in once.process_many(handler, [{"id": 1}] * 2, key="$.id")] == [5, 5]
    assert once.first_time("k")
    assert once.first_time("k")
    assert once.first_time_many(["k", "k"]) == [True, True]
    with once.claim("k") as claim:
        assert (claim.fresh, claim.fence) == (True, None)
    assert (len(handler.runs), counted.calls) == (4, {"windows": 1})


@pytest.mark.parametrize("policy", ["scope", "argument"])
def test_a_scope_keeps_tenants_apart(engine, policy):
    once, handler = engine(scope=(lambda m: m["tenant"]) if policy == "scope" else None), Handler()
    for tenant in ("a", "b", "a"):
        scope = tenant if policy == "argument" else None
        once.process(handler, {"tenant": tenant}, key="k", scope=scope)
    assert [m["tenant"] for m in handler.runs] == ["a", "b"]
    assert known(once, scope="b").id == RecordId("billing", "b", "k")
    assert once.peek("k", scope="") is None


def test_a_scope_made_from_the_message_must_be_named_where_there_is_only_a_key(engine):
    once = engine(scope=lambda m: m["tenant"])
    asks: list[Callable[[], object]] = [
        lambda: once.first_time("k"),
        lambda: once.first_time_many(["k"]),
        lambda: once.seen("k"),
        lambda: once.forget("k"),
        lambda: once.claim("k"),
    ]
    for ask in asks:
        with pytest.raises(ConfigurationError, match="message"):
            ask()
    with once.claim("k", message={"tenant": "a"}) as claim:
        assert claim.fresh
    assert once.seen("k", scope="a")


def test_a_constant_scope_is_everywhere_the_same(engine):
    once = engine(scope="eu")
    once.process(Handler(), {}, key="k")
    assert known(once).id.scope == "eu"
    assert (once.first_time("k"), once.first_time_many(["k"])) == (False, [False])
    assert once.forget("k")


def test_groups_do_not_meet(engine):
    handler = Handler()
    for group in ("billing", "mail"):
        engine(group=group).process(handler, {}, key="k")
    assert len(handler.runs) == 2


@pytest.mark.parametrize("policy", ["type", "argument"])
def test_the_type_is_kept_for_the_audit(engine, policy):
    once = engine(type=(lambda m: m["type"]) if policy == "type" else None)
    kind = "order.paid" if policy == "argument" else None
    once.process(Handler(), {"type": "order.paid"}, key="k", type=kind)
    assert known(once).type == "order.paid"


def test_keep_result_false_remembers_that_but_not_what(engine):
    once, handler = engine(keep_result=False), Handler(5)
    assert [once.process(handler, {}, key="k").result for _ in range(2)] == [5, None]
    assert known(once).result is None


@pytest.mark.parametrize(
    "result", ["x" * 100, {1, 2}, float("nan"), object()], ids=lambda r: type(r).__name__
)
def test_a_result_that_cannot_be_kept_is_dropped_with_an_event_and_never_runs_again(engine, result):
    events: list[Event] = []
    once = engine(max_result_bytes=100, on_event=events.append)
    handler = Handler(result)
    first, second = (once.process(handler, {}, key="k") for _ in range(2))
    assert (first.verdict, first.result) == (Verdict.PROCESSED, result)
    assert (second.verdict, second.result) == (Verdict.DUPLICATE, None)
    assert len(handler.runs) == 1
    assert [e.id for e in events if isinstance(e, ResultDropped)] == [ID]
    assert once.stats().results_dropped == 1


def test_a_result_of_just_the_largest_size_is_kept(engine):
    once, handler = engine(max_result_bytes=100), Handler("x" * 98)
    assert [once.process(handler, {}, key="k").result for _ in range(2)] == ["x" * 98] * 2


def test_events_tell_the_story_and_a_listener_that_raises_costs_nothing(engine):
    events: list[Event] = []

    def listener(event):
        events.append(event)
        raise RuntimeError

    once, error = engine(on_event=listener), ValueError()
    with pytest.raises(ValueError):  # noqa: PT011
        once.process(Handler(error), {}, key="k")
    once.process(Handler(), {}, key="k")
    once.process(Handler(), {}, key="k")
    assert events == [
        Raised(ID, 1, error, final=False),
        Settled(ID, Verdict.PROCESSED, 2),
        Settled(ID, Verdict.DUPLICATE, 2),
    ]


# --- in flight --------------------------------------------------------------------------------


class Slow:
    """A handler in a thread of its own that is done when told so."""

    def __init__(self, once: Once, result: Any) -> None:
        self.started, self.go = threading.Event(), threading.Event()
        self._once, self._result = once, result
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            self.outcome = self._once.process(self._run, {}, key="k")
        except ValueError as error:
            self.outcome = error

    def _run(self, _message: object) -> Any:
        self.started.set()
        assert self.go.wait(10)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._thread.join(10)


def test_in_flight_is_rejected_and_not_acked(engine):
    once, handler = engine(), Handler()
    with Slow(once, 5) as slow:
        rejected = once.process(handler, {}, key="k")
    assert (rejected.verdict, rejected.ack, rejected.result) == (Verdict.IN_FLIGHT, False, None)
    assert 0 < rejected.retry_after <= LEASE
    assert slow.outcome.verdict is Verdict.PROCESSED
    assert once.process(handler, {}, key="k").result == 5
    assert handler.runs == []


@pytest.mark.parametrize(
    ("result", "verdict", "runs"), [(5, Verdict.DUPLICATE, 0), (ValueError(), Verdict.PROCESSED, 1)]
)
def test_a_waiter_gets_the_result_or_takes_over_what_failed(engine, store, result, verdict, runs):
    counted = FlakyStore(store)
    once, handler = engine(counted, on_in_flight="wait"), Handler(5)

    def let_go_when_asked_twice():
        asked = threading.Event()
        while counted.calls["claim"] < 3:  # the owner's, and two of the waiter's
            asked.wait(0.001)
        slow.go.set()

    with Slow(once, result) as slow:
        threading.Thread(target=let_go_when_asked_twice).start()
        waited = once.process(handler, {}, key="k")
    assert (waited.verdict, waited.result, len(handler.runs)) == (verdict, 5, runs)


def test_a_waiter_gives_up_after_its_timeout(engine):
    once, handler = engine(on_in_flight="wait", wait_timeout=0.05), Handler()
    with Slow(once, 5):
        waited = once.process(handler, {}, key="k")
    assert (waited.verdict, waited.ack, handler.runs) == (Verdict.IN_FLIGHT, False, [])


def test_hundred_threads_with_one_key_run_it_once(engine):
    once, handler = engine(on_in_flight="wait", wait_timeout=20), Handler(5)
    barrier, outcomes = threading.Barrier(100), []

    def deliver():
        barrier.wait()
        outcomes.append(once.process(handler, {}, key="k"))

    threads = [threading.Thread(target=deliver) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handler.runs) == 1
    assert {o.result for o in outcomes} == {5}
    assert sorted(o.verdict for o in outcomes) == [Verdict.DUPLICATE] * 99 + [Verdict.PROCESSED]


# --- attempts and orphans ---------------------------------------------------------------------


def test_max_attempts_counts_starts_then_quarantines_until_an_operator_acts(engine, clock):
    once, handler = engine(max_attempts=2), Handler(ValueError())
    for _ in range(2):
        with pytest.raises(ValueError):  # noqa: PT011
            once.process(handler, {}, key="k")
    third = once.process(handler, {}, key="k")
    assert (third.verdict, third.ack) == (Verdict.QUARANTINED, False)
    clock.advance(10 * WINDOW)
    once.purge()
    assert once.process(handler, {}, key="k").verdict is Verdict.QUARANTINED
    assert len(handler.runs) == 2
    assert once.forget("k")
    assert once.process(Handler(5), {}, key="k").result == 5


def test_a_worker_that_died_counts_as_an_attempt(engine, store, clock):
    orphan(store, clock)
    handler = Handler()
    assert engine(max_attempts=1).process(handler, {}, key="k").verdict is Verdict.QUARANTINED
    assert handler.runs == []


class Orphaned(NamedTuple):
    on_orphan: Any
    verdict: Verdict
    result: Any = None
    runs: int = 0
    state: State = State.PROCESSED


ORPHANED = {
    "retry": Orphaned("retry", Verdict.PROCESSED, "ran", runs=1),
    "quarantine": Orphaned("quarantine", Verdict.QUARANTINED, state=State.QUARANTINED),
    "it happened": Orphaned(lambda m: True, Verdict.DUPLICATE),
    "it did not": Orphaned(lambda m: False, Verdict.PROCESSED, "ran", runs=1),
    "nobody knows": Orphaned(lambda m: None, Verdict.QUARANTINED, state=State.QUARANTINED),
    "with a result": Orphaned(lambda m: Happened(m["amount"]), Verdict.DUPLICATE, 7),
    "without one": Orphaned(lambda m: Happened(), Verdict.DUPLICATE),
}


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("case", ORPHANED.values(), ids=list(ORPHANED))
def test_an_orphan_is_handled_as_told(engine, store, clock, case, many):
    orphan(store, clock)
    once, handler, message = engine(on_orphan=case.on_orphan), Handler("ran"), {"id": "k", "amount": 7}
    if many:
        (outcome,) = once.process_many(handler, [message], key="$.id")
    else:
        outcome = once.process(handler, message, key="k")
    assert (outcome.verdict, outcome.result, outcome.attempt) == (case.verdict, case.result, 2)
    assert known(once).state is case.state
    again = once.process(handler, message, key="k")
    assert (again.result, len(handler.runs)) == (case.result, case.runs)


def test_a_probe_that_raises_gives_the_orphan_back_uncounted(engine, store, clock):
    orphan(store, clock)
    once, handler = engine(on_orphan=lambda m: 1 / 0), Handler()
    with pytest.raises(ZeroDivisionError):
        once.process(handler, {}, key="k")
    assert (known(once).state, known(once).attempt, handler.runs) == (State.FREE, 1, [])


def test_a_probe_is_given_what_the_handler_is_given(engine, store, clock):
    orphan(store, clock)
    asked = []

    @engine(on_orphan=lambda *args, **kwargs: asked.append((args, kwargs))).handler(key=lambda *a, **k: "k")
    def charge(a, *, b): ...

    with pytest.raises(Quarantined):
        charge(1, b=2)
    assert asked == [((1,), {"b": 2})]


def test_a_probe_of_a_claim_by_hand_is_given_the_key(engine, store, clock):
    orphan(store, clock)
    with engine(on_orphan=Happened).claim("k") as claim:
        assert (claim.fresh, claim.result) == (False, "k")


def test_a_released_record_is_no_orphan(engine):
    once, handler = engine(on_orphan="quarantine"), Handler(ValueError(), 5)
    with pytest.raises(ValueError):  # noqa: PT011
        once.process(handler, {}, key="k")
    assert once.process(handler, {}, key="k").result == 5


# --- fingerprints -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["done", "in flight", "released"])
def test_the_same_key_with_another_payload_is_a_mismatch_wherever_it_meets_a_record(engine, state):
    once, handler = engine(fingerprint=lambda m: m["amount"], max_attempts=2), Handler()
    mine = {"id": "k", "amount": 5}

    def meet(_message: object = None) -> None:
        with pytest.raises(PayloadMismatch, match="'k'"):
            once.process(handler, {"id": "k", "amount": 6}, key="k")
        (many,) = once.process_many(handler, [{"id": "k", "amount": 6}], key="$.id")
        assert (many.verdict, many.ack, type(many.error)) == (Verdict.FAILED, False, PayloadMismatch)
        if state == "released":
            raise ValueError

    if state == "in flight":
        once.process(meet, mine, key="k")
    elif state == "done":
        once.process(Handler(), mine, key="k")
        meet()
    else:
        with pytest.raises(ValueError):  # noqa: PT011
            once.process(meet, mine, key="k")
        for _ in range(3):  # does not use up attempts
            with pytest.raises(PayloadMismatch):
                once.process(handler, {"id": "k", "amount": 6}, key="k")
        assert once.process(Handler(1), mine, key="k").result == 1
    assert handler.runs == []


def test_a_claim_by_hand_checks_the_payload_it_is_given(engine):
    once = engine(fingerprint=lambda m: m)
    with pytest.raises(ConfigurationError, match="message="):
        once.claim("k")
    with once.claim("k", message={"amount": 5}) as claim:
        assert claim.fresh
    with pytest.raises(PayloadMismatch), once.claim("k", message={"amount": 6}):
        raise AssertionError


def test_the_fingerprint_is_taken_before_the_handler_changes_its_message(engine):
    once = engine(fingerprint=lambda m: m)
    once.process(lambda m: m.clear(), {"amount": 5}, key="k")
    assert once.process(Handler(), {"amount": 5}, key="k").verdict is Verdict.DUPLICATE


def test_filter_mode_does_not_check_fingerprints(engine):
    once = engine(fingerprint=lambda m: m)
    assert once.first_time("k")
    assert once.seen("k")


# --- many -------------------------------------------------------------------------------------


def test_a_batch_keeps_its_order_and_costs_one_claim_and_one_complete(engine, store):
    counted = FlakyStore(store)
    once = engine(counted)
    messages = [{"id": i} for i in range(50)]
    outcomes = once.process_many(lambda m: m["id"] * 2, messages, key="$.id")
    assert [o.result for o in outcomes] == [i * 2 for i in range(50)]
    assert all(o.verdict is Verdict.PROCESSED and o.attempt == 1 for o in outcomes)
    assert counted.calls == {"windows": 1, "claim": 1, "complete": 1}
    again = once.process_many(Handler(), messages, key="$.id")
    assert [(o.verdict, o.result) for o in again] == [(Verdict.DUPLICATE, i * 2) for i in range(50)]
    assert counted.calls == {"windows": 1, "claim": 2, "complete": 1}


def test_an_empty_batch_costs_nothing(engine, store):
    counted = FlakyStore(store)
    assert engine(counted).process_many(Handler(), [], key="$.id") == []
    assert counted.calls == {}


def test_the_same_key_twice_in_a_batch_runs_once(engine):
    handler = Handler("a", "b")
    outcomes = engine().process_many(handler, [{"id": "k"}, {"id": "j"}, {"id": "k"}], key="$.id")
    assert [(o.verdict, o.result) for o in outcomes] == [
        (Verdict.PROCESSED, "a"),
        (Verdict.PROCESSED, "b"),
        (Verdict.DUPLICATE, "a"),
    ]
    assert len(handler.runs) == 2


def test_the_same_key_in_a_batch_with_another_payload_is_a_mismatch(engine):
    messages = [{"id": "k", "amount": 5}, {"id": "k", "amount": 6}]
    one, other = engine(fingerprint=lambda m: m).process_many(Handler(), messages, key="$.id")
    assert (one.verdict, other.verdict) == (Verdict.PROCESSED, Verdict.FAILED)
    assert isinstance(other.error, PayloadMismatch)


def test_a_bad_key_fails_alone(engine):
    handler = Handler("ok")
    outcomes = engine().process_many(handler, [{"id": "a"}, {}, {"id": "b"}], key="$.id")
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED, Verdict.FAILED, Verdict.PROCESSED]
    assert isinstance(outcomes[1].error, InvalidKey)
    assert not outcomes[1].ack
    assert len(handler.runs) == 2


def test_a_batch_has_a_fallback_for_missing_ids(engine):
    handler = Handler()
    messages = [{"id": "a"}, {"n": 1}, {"n": 1}]
    outcomes = engine().process_many(handler, messages, key="$.id", fallback=content_key())
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED] * 2 + [Verdict.DUPLICATE]


def test_a_handlers_error_is_told_in_its_outcome_and_the_message_runs_again(engine):
    once, error = engine(), ValueError("no")
    first = once.process_many(Handler("a", error, "c"), [{"id": k} for k in "abc"], key="$.id")
    assert [o.verdict for o in first] == [Verdict.PROCESSED, Verdict.FAILED, Verdict.PROCESSED]
    assert (first[1].error, first[1].ack) == (error, False)
    again = once.process_many(Handler("B"), [{"id": k} for k in "abc"], key="$.id")
    assert [o.result for o in again] == ["a", "B", "c"]
    assert again[1].attempt == 2


def test_a_stored_failure_in_a_batch_is_final_only_when_it_is_stored(engine):
    once = engine(store_failure=lambda e: True)
    (first,) = once.process_many(Handler(ValueError("no")), [{"id": "k"}], key="$.id")
    (again,) = once.process_many(Handler(5), [{"id": "k"}], key="$.id")
    assert (again.verdict, again.ack, str(again.error)) == (Verdict.FAILED, True, "ValueError: no")
    assert first.verdict is Verdict.FAILED


def test_an_interrupt_settles_the_rest_of_the_batch(engine):
    once = engine()
    messages = [{"id": k} for k in "abcd"]
    with pytest.raises(KeyboardInterrupt):
        once.process_many(Handler("a", KeyboardInterrupt(), "c"), messages, key="$.id")
    states = {key: (known(once, key).state, known(once, key).attempt) for key in "abcd"}
    assert states == {
        "a": (State.PROCESSED, 1),
        "b": (State.FREE, 1),
        "c": (State.FREE, 0),
        "d": (State.FREE, 0),
    }
    again = once.process_many(Handler("again"), messages, key="$.id")
    assert [o.result for o in again] == ["a", "again", "again", "again"]


def test_a_batch_whose_claims_got_no_reply_asks_again_and_runs_once(engine, store):
    counted, handler = FlakyStore(store, {"claim": ["after"], "complete": ["after"]}), Handler("ok")
    outcomes = engine(counted).process_many(handler, [{"id": k} for k in "abc"], key="$.id")
    assert [(o.verdict, o.attempt) for o in outcomes] == [(Verdict.PROCESSED, 1)] * 3
    assert (len(handler.runs), counted.calls) == (3, {"windows": 1, "claim": 2, "complete": 2})


@pytest.mark.parametrize(
    ("policy", "verdict", "runs"), [("closed", Verdict.FAILED, 0), ("open", Verdict.PROCESSED, 3)]
)
def test_a_batch_without_a_store_fails_closed_or_open_as_told(engine, store, policy, verdict, runs):
    once, handler = engine(down(store, "claim"), on_store_error=policy), Handler("ok")
    outcomes = once.process_many(handler, [{"id": k} for k in "abc"], key="$.id")
    assert [o.verdict for o in outcomes] == [verdict] * 3
    assert (len(handler.runs), once.stats().failed_open) == (runs, runs)


# --- by hand ----------------------------------------------------------------------------------


def test_a_claim_by_hand_is_fresh_once_then_has_the_result(engine):
    once = engine()
    with once.claim("k") as claim:
        assert (claim.fresh, claim.result, claim.attempt, claim.lost) == (True, None, 1, False)
        assert claim.fence == known(once).fence > 0
        claim.complete({"ok": 1})
        assert claim.result == {"ok": 1}
        assert known(once).state is State.PROCESSED
    with once.claim("k") as again:
        assert (again.fresh, again.result, again.fence) == (False, {"ok": 1}, None)


def test_leaving_the_block_completes_with_a_bare_record(engine):
    once = engine()
    with once.claim("k", scope="eu", type="order"):
        pass
    record = known(once, scope="eu")
    assert (record.state, record.result, record.type) == (State.PROCESSED, None, "order")


def test_a_block_that_raises_gives_the_claim_back(engine):
    once = engine()
    with pytest.raises(ValueError, match="no"), once.claim("k"):
        raise ValueError("no")
    assert (known(once).state, known(once).attempt) == (State.FREE, 1)


def test_a_block_that_raises_after_complete_is_done(engine):
    once = engine()

    def work():
        with once.claim("k") as claim:
            claim.complete(5)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert known(once).state is State.PROCESSED


@pytest.mark.parametrize("fresh", [True, False])
def test_complete_is_for_an_open_claim_and_once(engine, fresh):
    once = engine()
    if not fresh:
        once.first_time("k")
    with once.claim("k") as claim:
        if fresh:
            claim.complete(5)
        with pytest.raises(ConfigurationError, match="complete"):
            claim.complete(6)


def test_in_flight_raises_on_entering_so_that_it_is_not_taken_for_done(engine):
    once = engine()
    with once.claim("k"), pytest.raises(InFlight), once.claim("k"):
        raise AssertionError


def test_a_claim_by_hand_that_was_forgotten_cannot_complete(engine):
    once = engine()
    with once.claim("k") as claim:
        once.forget("k", force=True)
        with pytest.raises(LeaseLost):
            claim.complete(5)
    assert claim.lost
    with pytest.raises(LeaseLost), once.claim("j"):
        once.forget("j", force=True)


def test_a_later_owner_has_a_larger_fence(engine, clock):
    once, fences = engine(), []
    for _ in range(3):
        with once.claim("k") as claim:
            fences.append(claim.fence)
        once.forget("k")
        clock.jump(-1)
    assert fences == sorted(set(fences))


# --- the current claim ------------------------------------------------------------------------


def test_a_handler_sees_its_claim_and_nobody_else_does(engine):
    once, seen = engine(), []

    def outer(message):
        seen.append(current_claim())
        once.process(lambda _: seen.append(current_claim()), {}, key="inner")
        seen.append(current_claim())

    assert current_claim() is None
    once.process(outer, {}, key="k")
    once.process_many(lambda _: seen.append(current_claim()), [{"id": "many"}], key="$.id")
    assert current_claim() is None
    assert [claim and claim.key for claim in seen] == ["k", "inner", "k", "many"]
    assert seen[0] is not None
    assert seen[0].fence == known(once).fence


def test_a_handler_without_dedup_has_no_claim(engine):
    seen = []
    engine(window=None).process(lambda _: seen.append(current_claim()), {}, key="k")
    assert seen == [None]


# --- filter mode ------------------------------------------------------------------------------


def test_a_key_is_new_once(engine):
    once = engine()
    assert not once.seen("k")
    assert [once.first_time("k"), once.first_time("k"), once.seen("k")] == [True, False, True]
    assert once.first_time("k", scope="eu", type="click")
    assert known(once, scope="eu").type == "click"


def test_many_keys_are_marked_in_one_call_and_of_two_equal_ones_the_first_is_new(engine, store):
    counted = FlakyStore(store)
    once = engine(counted)
    once.first_time("b")
    assert once.first_time_many(["a", "b", "c", "a"]) == [True, False, True, False]
    assert counted.calls == {"windows": 1, "mark_seen": 2}


@pytest.mark.parametrize("bad", ["", 17, None])
def test_a_bad_key_is_named_and_nothing_is_marked(engine, bad):
    once = engine()
    with pytest.raises(InvalidKey, match=r"keys\[1\]"):
        once.first_time_many(["a", bad])
    assert not once.seen("a")


def test_what_is_in_flight_is_neither_new_nor_seen(engine, store):
    claim_elsewhere(store)
    once = engine()
    assert (once.first_time("k"), once.seen("k")) == (False, False)


def test_what_filter_mode_marked_is_a_duplicate_for_process(engine):
    once, handler = engine(), Handler()
    once.first_time("k")
    assert (once.process(handler, {}, key="k").verdict, handler.runs) == (Verdict.DUPLICATE, [])


def test_seen_reads_only(engine):
    once = engine()
    assert not once.seen("k")
    assert once.peek("k") is None


# --- the store is down ------------------------------------------------------------------------


def down(store: Any, verb: str, fault: Any = "before") -> FlakyStore:
    return FlakyStore(store, lambda asked, _: fault if asked == verb else "ok")


@pytest.mark.parametrize("fault", ["before", "after"])
def test_store_down_fails_closed_by_default_and_nothing_runs(engine, store, fault):
    once, handler = engine(down(store, "claim", fault)), Handler()
    with pytest.raises(StoreUnavailable):
        once.process(handler, {}, key="k")
    with pytest.raises(StoreUnavailable):
        once.claim("k").__enter__()
    assert (handler.runs, once.stats().failed_open) == ([], 0)


def test_store_down_fails_open_where_told_and_is_counted(engine, store):
    events: list[Event] = []
    once = engine(down(store, "claim"), on_store_error="open", on_event=events.append)
    handler = Handler(5)
    assert [once.process(handler, {}, key="k").result for _ in range(2)] == [5, 5]
    with once.claim("k") as claim:
        assert (claim.fresh, claim.fence) == (True, None)
    assert (len(handler.runs), once.stats().failed_open) == (2, 3)
    assert [e.id for e in events if isinstance(e, FailedOpen)] == [ID] * 3


def test_only_an_unreachable_store_fails_open(clock):
    with Once(MemoryStore(max_records=1), group="billing", on_store_error="open") as once:
        once.first_time("full")
        with pytest.raises(Exception, match="limit"):
            once.process(Handler(), {}, key="k")


MARKS: list[Callable[[Once], bool]] = [
    lambda once: once.first_time("k"),
    lambda once: once.first_time_many(["k"])[0],
]


@pytest.mark.parametrize("mark", MARKS, ids=["one", "many"])
def test_a_mark_is_sent_once_then_fails_closed(engine, store, mark):
    flaky = down(store, "mark_seen", "after")
    with pytest.raises(StoreUnavailable) as raised:
        mark(engine(flaky))
    assert (raised.value.unknown, flaky.calls["mark_seen"]) == (True, 1)


@pytest.mark.parametrize("mark", MARKS, ids=["one", "many"])
def test_a_mark_fails_open_where_told_and_is_counted(engine, store, mark):
    once = engine(down(store, "mark_seen"), on_store_error="open")
    assert mark(once) is True
    assert once.stats().failed_open == 1


@pytest.mark.parametrize("verb", ["claim", "complete"])
def test_a_lost_reply_is_asked_for_again_and_the_handler_runs_once(engine, store, verb):
    flaky, handler = FlakyStore(store, {verb: ["after"]}), Handler(5)
    outcome = engine(flaky).process(handler, {}, key="k")
    assert (outcome.verdict, outcome.attempt, len(handler.runs)) == (Verdict.PROCESSED, 1, 1)
    assert flaky.calls[verb] == 2


def test_a_completion_that_cannot_be_written_is_not_recorded_and_never_released(engine, store):
    flaky, handler = down(store, "complete"), Handler("paid")
    once = engine(flaky, lease=0.05)
    with pytest.raises(NotRecorded, match="'k'") as raised:
        once.process(handler, {}, key="k")
    assert raised.value.result == "paid"
    assert flaky.calls["complete"] > 1
    assert flaky.calls["release"] == 0
    assert known(once).state is State.CLAIMED


def test_a_release_that_cannot_be_written_lets_the_handlers_error_through(engine, store, clock):
    once = engine(down(store, "release"))
    with pytest.raises(ValueError, match="no"):
        once.process(Handler(ValueError("no")), {}, key="k")
    assert once.process(Handler(), {}, key="k").verdict is Verdict.IN_FLIGHT
    clock.advance(LEASE + 1)
    assert once.process(Handler(5), {}, key="k").result == 5


def test_a_handler_whose_claim_was_forgotten_is_told_that_its_completion_was_refused(engine):
    once = engine()
    with pytest.raises(LeaseLost, match="'k'"):
        once.process(lambda _: once.forget("k", force=True), {}, key="k")
    assert once.peek("k") is None


# --- inbox ------------------------------------------------------------------------------------


@pytest.fixture
def inbox(tmp_path, clock):
    """An engine and a connection of the application's own to the same file."""
    path = tmp_path / "app.db"
    store = SqliteStore(path, clock=clock)
    events: list[Event] = []
    once = Once(store, group="billing", lease=LEASE, window=WINDOW, on_event=events.append)
    connection = sqlite3.connect(path, timeout=5)
    connection.execute("CREATE TABLE charges (id TEXT)")
    yield SimpleNamespace(once=once, connection=connection, path=path, store=store, events=events)
    connection.close()
    once.close()
    store.close()


def charges(inbox: Any) -> int:
    count: int = inbox.connection.execute("SELECT count(*) FROM charges").fetchone()[0]
    return count


def charge_in(inbox: Any) -> Callable[[Any], Any]:
    return lambda message: inbox.connection.execute("INSERT INTO charges VALUES ('k')").rowcount


def test_a_mark_commits_with_the_callers_work(inbox):
    for first in (True, False):
        with inbox.connection:
            assert inbox.once.bind(inbox.connection).first_time("k") is first
            if first:
                charge_in(inbox)({})
    assert (charges(inbox), inbox.once.seen("k")) == (1, True)


def test_a_mark_rolls_back_with_the_callers_work(inbox):
    inbox.connection.execute("BEGIN")
    assert inbox.once.bind(inbox.connection).first_time_many(["k", "j", "k"]) == [True, True, False]
    charge_in(inbox)({})
    inbox.connection.rollback()
    assert (charges(inbox), inbox.once.seen("k"), inbox.once.seen("j")) == (0, False, False)


def test_a_bound_mark_is_not_seen_before_the_commit(inbox):
    with inbox.connection:
        inbox.once.bind(inbox.connection).first_time("k")
        assert not inbox.once.seen("k")
    assert inbox.once.seen("k")


def test_bound_process_stores_the_result_with_the_callers_work(inbox):
    for verdict in (Verdict.PROCESSED, Verdict.DUPLICATE):
        with inbox.connection:
            outcome = inbox.once.bind(inbox.connection).process(charge_in(inbox), {}, key="k")
        assert (outcome.verdict, outcome.result, charges(inbox)) == (verdict, 1, 1)


def test_bound_process_raises_and_the_rollback_leaves_nothing(inbox):
    with pytest.raises(ValueError, match="no"), inbox.connection:
        inbox.once.bind(inbox.connection).process(Handler(ValueError("no")), {}, key="k")
    assert inbox.once.peek("k") is None


@pytest.mark.parametrize("many", [False, True])
def test_a_live_claim_is_in_flight_for_a_bound_mark_and_nothing_is_marked(inbox, many):
    claim_elsewhere(inbox.store)
    with inbox.connection:
        bound = inbox.once.bind(inbox.connection)
        with pytest.raises(InFlight):
            bound.first_time_many(["j", "k"]) if many else bound.first_time("k")
    assert not inbox.once.seen("j")


def test_a_live_claim_is_in_flight_for_bound_process(inbox):
    claim_elsewhere(inbox.store)
    with inbox.connection:
        outcome = inbox.once.bind(inbox.connection).process(Handler(), {}, key="k")
    assert (outcome.verdict, outcome.ack) == (Verdict.IN_FLIGHT, False)


def test_a_claim_whose_worker_died_is_new_for_a_bound_mark(inbox, clock):
    orphan(inbox.store, clock)
    with inbox.connection:
        assert inbox.once.bind(inbox.connection).first_time("k")


def test_in_a_transaction_nobody_waits_and_nothing_fails_open(inbox):
    claim_elsewhere(inbox.store)
    handler = Handler()
    impatient = sqlite3.connect(inbox.path, timeout=0)
    with Once(inbox.store, group="billing", on_in_flight="wait", on_store_error="open") as once:
        with impatient:
            assert once.bind(impatient).process(handler, {}, key="k").verdict is Verdict.IN_FLIGHT
        inbox.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            once.bind(impatient).process(handler, {}, key="j")
        inbox.connection.rollback()
    impatient.close()
    assert handler.runs == []


def test_an_autocommit_connection_is_refused(inbox):
    connection = sqlite3.connect(inbox.path, isolation_level=None)
    with pytest.raises(ConfigurationError, match="autocommit"):
        inbox.once.bind(connection)
    connection.execute("BEGIN")
    assert inbox.once.bind(connection).first_time("k")
    connection.execute("ROLLBACK")
    connection.close()
    assert not inbox.once.seen("k")


def test_what_is_not_a_connection_to_the_same_file_is_refused(inbox):
    other = sqlite3.connect(":memory:")
    for connection in (object(), other):
        with pytest.raises(ConfigurationError):
            inbox.once.bind(connection)
    other.close()
    with Once("memory://", group="billing") as once, pytest.raises(ConfigurationError, match="memory"):
        once.bind(inbox.connection)


def test_a_leased_claim_is_completed_in_the_callers_transaction(inbox):
    with inbox.once.claim("k") as claim, inbox.connection:
        charge_in(inbox)({})
        inbox.once.bind(inbox.connection).complete(claim.claim, {"ok": 1})
    assert inbox.once.process(Handler(), {}, key="k").result == {"ok": 1}
    assert charges(inbox) == 1


def test_a_bound_completion_of_a_lost_claim_rolls_the_callers_work_back(inbox):
    def work():
        with inbox.once.claim("k") as claim:
            inbox.once.forget("k", force=True)
            with inbox.connection:
                charge_in(inbox)({})
                inbox.once.bind(inbox.connection).complete(claim.claim)

    with pytest.raises(LeaseLost):
        work()
    assert (charges(inbox), inbox.once.peek("k")) == (0, None)


def test_a_bound_completion_drops_a_result_that_is_too_large(inbox):
    with inbox.once.claim("k") as claim, inbox.connection:
        inbox.once.bind(inbox.connection).complete(claim.claim, "x" * 2_000_000)
    assert (known(inbox.once).state, known(inbox.once).result) == (State.PROCESSED, None)
    assert [e.id for e in inbox.events if isinstance(e, ResultDropped)] == [ID]


def test_a_bound_completion_whose_result_cannot_be_encoded_rolls_the_callers_work_back(inbox):
    def work():
        with inbox.once.claim("k") as claim, inbox.connection:
            charge_in(inbox)({})
            inbox.once.bind(inbox.connection).complete(claim.claim, object())

    with pytest.raises(TypeError):
        work()
    assert (charges(inbox), known(inbox.once).state) == (0, State.FREE)


def test_a_bound_completion_keeps_no_result_where_none_is_kept(inbox):
    with Once(inbox.store, group="billing", keep_result=False) as once:
        with once.claim("k") as claim, inbox.connection:
            assert claim.claim is not None
            once.bind(inbox.connection).complete(claim.claim, 5)
        assert known(once).result is None


# --- operating --------------------------------------------------------------------------------


def test_peek_shows_the_record_as_it_is(engine, clock):
    once = engine()
    assert once.peek("k") is None
    with once.claim("k", type="order") as claim:
        live = known(once)
        claim.complete(5)
    done = known(once)
    assert (live.state, live.attempt, live.type) == (State.CLAIMED, 1, "order")
    assert live.lease_until == pytest.approx(clock() + LEASE)
    assert (done.state, done.result, done.fence) == (State.PROCESSED, b"5", live.fence)
    assert done.done_at == pytest.approx(clock())


def test_forget_lets_the_next_delivery_run(engine):
    once, handler = engine(), Handler(1, 2)
    once.process(handler, {}, key="k")
    assert (once.forget("k"), once.forget("k")) == (True, False)
    assert once.process(handler, {}, key="k").result == 2


def test_a_live_claim_is_forgotten_only_by_force(engine, store):
    claim_elsewhere(store)
    once = engine()
    with pytest.raises(InFlight, match="force"):
        once.forget("k")
    assert known(once).state is State.CLAIMED
    assert once.forget("k", force=True)
    assert once.peek("k") is None


def test_purge_removes_all_that_expired_and_nothing_else(engine, clock):
    once = engine()
    once.first_time_many([f"old {i}" for i in range(12_000)])
    clock.advance(WINDOW - 1)
    once.first_time("young")
    with once.claim("live"):
        clock.advance(2)
        assert once.purge() == 12_000
        assert once.purge() == 0
        assert (once.seen("young"), known(once, "live").state) == (True, State.CLAIMED)
        assert once.stats().expired == 0


def test_stats_count_by_group_and_state(engine, store):
    once = engine(store_failure=lambda e: True)
    once.first_time_many(["a", "b"])
    claim_elsewhere(store)
    once.process_many(Handler(ValueError()), [{"id": "c"}], key="$.id")
    engine(group="mail").first_time("a")
    stats = once.stats()
    assert stats.groups == {
        "billing": {State.PROCESSED: 2, State.CLAIMED: 1, State.FAILED: 1},
        "mail": {State.PROCESSED: 1},
    }
    assert (stats.records, stats.expired, stats.failed_open, stats.results_dropped) == (5, 0, 0, 0)


# --- opening and closing ----------------------------------------------------------------------


def test_a_url_opens_a_store_and_what_it_holds_survives(tmp_path):
    url = f"sqlite:///{tmp_path / 'once.db'}"
    for runs in (1, 0):
        handler = Handler(5)
        with Once(url, group="billing") as once:
            assert once.process(handler, {}, key="k").result == 5
        assert len(handler.runs) == runs
    with Once("memory://", group="billing") as once:
        assert once.process(Handler(5), {}, key="k").verdict is Verdict.PROCESSED


def test_close_closes_the_store_it_opened_and_no_other(tmp_path):
    own = Once(f"sqlite:///{tmp_path / 'own.db'}", group="billing")
    own.close()
    own.close()
    with pytest.raises(ConfigurationError, match="closed"):
        own.first_time("k")
    store = SqliteStore(tmp_path / "given.db")
    with Once(store, group="billing") as once:
        once.first_time("k")
    assert store.stats().records == 1
    store.close()


def test_two_engines_on_one_file_share_their_records(tmp_path):
    url = f"sqlite:///{tmp_path / 'once.db'}"
    with Once(url, group="billing") as one, Once(url, group="billing") as other:
        with one.claim("k"):
            assert other.process(Handler(), {}, key="k").verdict is Verdict.IN_FLIGHT
        assert other.process(Handler(), {}, key="k").verdict is Verdict.DUPLICATE


def test_store_and_group_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ONCEONLY_STORE", "memory://")
    monkeypatch.setenv("ONCEONLY_GROUP", "billing")
    monkeypatch.setenv("ONCEONLY_KEEP_RESULT", "false")
    with Once() as once:
        assert once.group == "billing"
        assert [once.process(Handler(5), {}, key="k").result for _ in range(2)] == [5, None]


@pytest.mark.parametrize(
    "options",
    [
        {"store": None},
        {"group": None},
        {"group": ""},
        {"store": "mysql://"},
        {"store": "sqlite://"},
        {"nonsense": 1},
        {"lease": 0},
        {"lease": "2h", "window": "1h"},
        {"window": "soon"},
        {"on_in_flight": "ignore"},
        {"on_store_error": "shrug"},
        {"on_orphan": "a probe"},
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_result_bytes": None},
        {"fingerprint": "$.id"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_at_once(options):
    settings: Any = {"store": "memory://", "group": "billing", **options}
    with pytest.raises(ConfigurationError):
        Once(**settings)


# --- after a fork -----------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path):
    with Once(f"sqlite:///{tmp_path / 'once.db'}", group="billing", lease=LEASE, window=WINDOW) as once:
        yield once


def test_child_and_parent_work_on_after_a_fork(shared):
    shared.process(Handler("parent"), {}, key="before")

    def work() -> object:
        return [shared.process(Handler("child"), {}, key=key).result for key in ("before", "child's")]

    assert in_child(work) == ["parent", "child"]
    assert shared.process(Handler("parent"), {}, key="child's").result == "child"
    assert shared.process(Handler("parent"), {}, key="after").result == "parent"


def test_a_childs_tokens_differ_so_its_claim_is_not_taken_for_the_parents(shared):
    shared.first_time("connected")
    in_child(lambda: shared.claim("k").__enter__().fresh)
    assert shared.process(Handler(), {}, key="k").verdict is Verdict.IN_FLIGHT


def test_a_child_does_not_wait_for_what_the_parents_threads_were_doing(shared):
    """A thread of the parent is at the store, and the keeper at work, when the fork happens."""
    asked, go = threading.Event(), threading.Event()

    class Stuck(FlakyStore):
        def claim(self, requests):
            if requests[0].id.key == "stuck":
                asked.set()
                assert go.wait(20)
            return super().claim(requests)

    once = Once(Stuck(shared._store), group="billing", lease=LEASE, window=WINDOW)
    thread = threading.Thread(target=once.process, args=(Handler(), {}), kwargs={"key": "stuck"})
    with once.claim("kept"):
        thread.start()
        assert asked.wait(10)
        try:
            verdict = in_child(lambda: once.process(Handler(), {}, key="k").verdict)
        finally:
            go.set()
            thread.join(10)
    once.close()
    assert verdict == Verdict.PROCESSED
    assert shared.seen("stuck")


def test_a_child_does_not_wait_for_a_connection_the_parent_was_using(shared, monkeypatch):
    """The thread stops in the middle of its transaction, but in Python: a fork while it is within SQLite's
    own code would copy SQLite's locks, too, and nobody can promise anything then."""
    shared.first_time("before")
    within, go_on, clock = threading.Event(), threading.Event(), shared._store._clock
    thread = threading.Thread(target=shared.first_time, args=("later",))

    def halting() -> float:
        if threading.current_thread() is thread:
            within.set()
            go_on.wait(30)
        return float(clock())

    monkeypatch.setattr(shared._store, "_clock", halting)
    thread.start()
    assert within.wait(10)
    assert shared._store._lock.locked()
    try:
        assert in_child(lambda: shared.seen("before")) is True
    finally:
        go_on.set()
        thread.join(10)
    assert shared.seen("later")


def test_a_child_renews_its_own_leases(tmp_path):
    with Once(f"sqlite:///{tmp_path / 'once.db'}", group="billing", lease=0.2) as once:
        with once.claim("k"):  # the parent's keeper is at work
            pass

        def work() -> object:
            with once.claim("child's") as claim:
                until = known(once, "child's").lease_until
                pause = threading.Event()
                while known(once, "child's").lease_until == until:
                    pause.wait(0.01)
                return claim.lost

        assert in_child(work) is False


def test_memory_is_copied_to_the_child(engine):
    with Once("memory://", group="billing") as once:
        once.first_time("k")
        assert in_child(lambda: [once.first_time("k"), once.first_time("j")]) == [False, True]
        assert once.first_time("j")
