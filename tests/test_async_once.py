"""``AsyncOnce``: what ``Once`` does, and what only tasks can do, which is to be cancelled anywhere."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    Happened,
    InFlight,
    InvalidKey,
    LeaseLost,
    NotRecorded,
    PayloadMismatch,
    Quarantined,
    Record,
    State,
    StoredFailure,
    StoreUnavailable,
    Verdict,
    current_claim,
)
from onceonly.events import Event, FailedOpen, ResultDropped
from onceonly.stores.memory import AsyncMemoryStore
from onceonly.stores.sqlite import AsyncSqliteStore
from onceonly.testing import AsyncFlakyStore, ManualClock
from onceonly.types import ClaimAnswer, ClaimRequest, Completion, RecordId
from tests.forking import in_child

A = TypeVar("A")
Q = TypeVar("Q")

LEASE, WINDOW = 10, 100
ID = RecordId("billing", "", "k")


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


class Handler:
    """Returns, or raises, what it was given, once per entry and the last for ever; counts its runs."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results or (None,))
        self.runs: list[Any] = []

    async def __call__(self, message: Any = None) -> Any:
        await asyncio.sleep(0)
        return self.plain(message)

    def plain(self, message: Any = None) -> Any:
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
        yield AsyncMemoryStore(clock=clock)
        return
    store = AsyncSqliteStore(tmp_path / "once.db", clock=clock)
    yield store
    asyncio.run(store.close())


@pytest.fixture
def engine(store):
    def make(over: Any = None, **options: Any) -> AsyncOnce:
        settings: Any = {"group": "billing", "lease": LEASE, "window": WINDOW, **options}
        return AsyncOnce(over or store, **settings)

    return make


async def claim_elsewhere(store: Any) -> None:
    await store.claim([ClaimRequest(ID, b"another worker", LEASE, WINDOW)])


async def orphan(store: Any, clock: ManualClock) -> None:
    await claim_elsewhere(store)
    clock.advance(LEASE + 1)


async def known(once: AsyncOnce, key: str = "k") -> Record:
    record = await once.peek(key)
    assert record is not None
    return record


async def settled(once: AsyncOnce, state: State) -> Record:
    """The record once it is in that state; what a cancelled task left behind takes a moment."""
    while (record := await once.peek("k")) is None or record.state is not state:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return record


# --- as Once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, 0, "", False, [], {"charge": 17}])
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@in_loop
async def test_a_guarded_function_runs_once_and_replays_its_result_as_itself(engine, result, plain):
    handler = Handler(result)
    charge = engine().handler(key="$.id")(handler.plain if plain else handler)
    for _ in range(3):
        again = await charge({"id": "k"})
        assert again == result
        assert type(again) is type(result)
    assert len(handler.runs) == 1


@in_loop
async def test_a_key_function_gets_what_the_handler_gets(engine):
    handler = Handler(5)

    @engine().handler(key=lambda order, *, line: f"{order}/{line}")
    async def ship(order, *, line):
        return await handler((order, line))

    assert [await ship(1, line=2), await ship(1, line=2), await ship(1, line=3)] == [5, 5, 5]
    assert handler.runs == [(1, 2), (1, 3)]
    assert ship.__name__ == "ship"


@in_loop
async def test_the_decorator_raises_what_kept_it_from_running(engine, store, clock):
    once = engine(on_orphan="quarantine", store_failure=lambda e: True)
    charge = once.handler(key="$.id")(Handler(ValueError("no")))
    with pytest.raises(InvalidKey):
        await charge({})
    await claim_elsewhere(store)
    with pytest.raises(InFlight) as raised:
        await charge({"id": "k"})
    assert raised.value.retry_after == pytest.approx(LEASE)
    clock.advance(LEASE)
    with pytest.raises(Quarantined):
        await charge({"id": "k"})
    with pytest.raises(ValueError, match="no"):
        await charge({"id": "j"})
    with pytest.raises(StoredFailure, match="no"):
        await charge({"id": "j"})


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@in_loop
async def test_process_tells_a_consumer_all_it_needs(engine, plain):
    once, handler = engine(), Handler({"ok": 1})
    run = handler.plain if plain else handler
    first, second = [await once.process(run, {"id": "k"}, key="k") for _ in range(2)]
    assert first == (Verdict.PROCESSED, {"ok": 1}, 1, 0.0, None, False)
    assert second == (Verdict.DUPLICATE, {"ok": 1}, 1, 0.0, None, False)
    assert handler.runs == [{"id": "k"}]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@in_loop
async def test_process_raises_what_the_handler_raised_and_the_next_delivery_runs(engine, plain):
    once, error = engine(), ValueError("no")
    handler = Handler(error, "paid")
    run = handler.plain if plain else handler
    with pytest.raises(ValueError, match="no") as raised:
        await once.process(run, {}, key="k")
    assert raised.value is error
    assert (await known(once)).state is State.FREE
    again = await once.process(run, {}, key="k")
    assert (again.verdict, again.result, again.attempt) == (Verdict.PROCESSED, "paid", 2)


@in_loop
async def test_a_plain_function_runs_in_a_thread_and_sees_its_claim_and_context(engine):
    once, here = engine(), threading.get_ident()
    tenant = contextvars.ContextVar("tenant", default="")
    tenant.set("acme")

    def look(message: str) -> list[Any]:
        claim = current_claim()
        return [claim and claim.key, tenant.get(), threading.get_ident() == here]

    async def look_async(message: str) -> list[Any]:
        return look(message)

    assert (await once.process(look, "", key="a")).result == ["a", "acme", False]
    assert (await once.process(look_async, "", key="b")).result == ["b", "acme", True]
    assert current_claim() is None


@in_loop
async def test_each_of_many_tasks_sees_its_own_claim(engine):
    once = engine()

    async def look(key: str) -> str:
        await asyncio.sleep(0.001)
        claim = current_claim()
        assert claim is not None
        return claim.key

    keys = [str(number) for number in range(20)]
    outcomes = await asyncio.gather(*(once.process(look, key, key=key) for key in keys))
    assert [o.result for o in outcomes] == keys


@in_loop
async def test_a_result_that_cannot_be_kept_is_dropped_with_an_event(engine):
    events: list[Event] = []
    once, handler = engine(on_event=events.append), Handler(object())
    await once.process(handler, {}, key="k")
    assert (await once.process(handler, {}, key="k")).result is None
    assert [type(e) for e in events if isinstance(e, ResultDropped)] == [ResultDropped]
    assert (await once.stats()).results_dropped == 1


@pytest.mark.parametrize(
    ("on_orphan", "expected"),
    [
        ("retry", (Verdict.PROCESSED, "ran")),
        ("quarantine", (Verdict.QUARANTINED, None)),
        (lambda m: True, (Verdict.DUPLICATE, None)),
        (Handler(False), (Verdict.PROCESSED, "ran")),
        (Handler(None), (Verdict.QUARANTINED, None)),
        (Handler(Happened(7)), (Verdict.DUPLICATE, 7)),
    ],
    ids=["retry", "quarantine", "plain probe", "async: no", "async: nobody knows", "async: with result"],
)
@in_loop
async def test_an_orphan_is_handled_as_told(engine, store, clock, on_orphan, expected):
    await orphan(store, clock)
    outcome = await engine(on_orphan=on_orphan).process(Handler("ran"), {}, key="k")
    assert (outcome[:2], outcome.attempt) == (expected, 2)


@in_loop
async def test_a_probe_of_a_claim_by_hand_that_raises_gives_the_orphan_back(engine, store, clock):
    await orphan(store, clock)
    once = engine(on_orphan=Handler(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await once.claim("k").__aenter__()
    record = await known(once)
    assert (record.state, record.attempt) == (State.FREE, 1)


@in_loop
async def test_max_attempts_and_fingerprints_are_checked(engine):
    once = engine(max_attempts=1, fingerprint=lambda m: m["amount"])
    with pytest.raises(OSError, match="no"):
        await once.process(Handler(OSError("no")), {"amount": 5}, key="k")
    with pytest.raises(PayloadMismatch):
        await once.process(Handler(), {"amount": 6}, key="k")
    assert (await once.process(Handler(), {"amount": 5}, key="k")).verdict is Verdict.QUARANTINED


@in_loop
async def test_filter_mode_and_operating(engine, store, clock):
    once = engine()
    assert [await once.first_time("a"), await once.first_time("a")] == [True, False]
    assert await once.first_time_many(["a", "b", "b"]) == [False, True, False]
    assert [await once.seen(key) for key in "abc"] == [True, True, False]
    await claim_elsewhere(store)
    with pytest.raises(InFlight):
        await once.forget("k")
    assert await once.forget("k", force=True)
    assert not await once.forget("k")
    assert (await once.stats()).groups == {"billing": {State.PROCESSED: 2}}
    clock.advance(WINDOW * 2)
    await once.purge()
    assert (await once.stats()).records == 0
    assert await once.peek("a") is None


@in_loop
async def test_without_a_window_everything_runs_and_the_store_is_only_asked_for_windows(engine, store):
    counted, handler = AsyncFlakyStore(store), Handler(5)
    once = engine(counted, window=None)
    for _ in range(2):
        assert (await once.process(handler, {}, key="k")).verdict is Verdict.PROCESSED
        assert await once.first_time("k")
        assert await once.first_time_many(["k"]) == [True]
    assert (len(handler.runs), counted.calls) == (2, {"windows": 1})


@pytest.mark.parametrize("policy", ["closed", "open"])
@in_loop
async def test_store_down_fails_closed_or_open_as_told(engine, store, policy):
    events: list[Event] = []
    down = AsyncFlakyStore(store, {"claim": ["before"] * 2, "mark_seen": ["before"]})
    once, handler = engine(down, on_store_error=policy, on_event=events.append), Handler(5)
    if policy == "open":
        assert (await once.process(handler, {}, key="k")).result == 5
        async with once.claim("k") as claim:
            assert (claim.fresh, claim.fence) == (True, None)
        assert await once.first_time("k")
    else:
        for ask in (once.process(handler, {}, key="k"), once.claim("k").__aenter__(), once.first_time("k")):
            with pytest.raises(StoreUnavailable):
                await ask
    count = 3 if policy == "open" else 0
    assert (await once.stats()).failed_open == count
    assert len([e for e in events if isinstance(e, FailedOpen)]) == count
    assert len(handler.runs) == (1 if policy == "open" else 0)


@in_loop
async def test_a_completion_that_cannot_be_written_is_not_recorded_and_never_released(engine, store):
    flaky = AsyncFlakyStore(store, lambda verb, _: "before" if verb == "complete" else "ok")
    once = engine(flaky, lease=0.05)
    with pytest.raises(NotRecorded) as raised:
        await once.process(Handler("paid"), {}, key="k")
    assert raised.value.result == "paid"
    assert flaky.calls["release"] == 0
    assert (await known(once)).state is State.CLAIMED


@in_loop
async def test_a_waiter_gets_the_result_or_gives_up(engine):
    patient, hasty = engine(on_in_flight="wait"), engine(on_in_flight="wait", wait_timeout=0.02)
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(message: object) -> int:
        started.set()
        await go.wait()
        return 5

    owner = asyncio.ensure_future(patient.process(slow, {}, key="k"))
    await started.wait()
    waiter = asyncio.ensure_future(patient.process(Handler(), {}, key="k"))
    assert (await hasty.process(Handler(), {}, key="k")).verdict is Verdict.IN_FLIGHT
    assert not waiter.done()
    go.set()
    assert (await waiter)[:2] == (Verdict.DUPLICATE, 5)
    assert (await owner).verdict is Verdict.PROCESSED


@in_loop
async def test_hundred_tasks_with_one_key_run_it_once(engine):
    once, handler = engine(on_in_flight="wait"), Handler(5)
    outcomes = await asyncio.gather(*(once.process(handler, {}, key="k") for _ in range(100)))
    assert len(handler.runs) == 1
    assert sorted(o.verdict for o in outcomes) == [Verdict.DUPLICATE] * 99 + [Verdict.PROCESSED]
    assert {o.result for o in outcomes} == {5}


# --- many -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@in_loop
async def test_a_batch_keeps_its_order_and_costs_one_claim_and_one_complete(engine, store, plain):
    counted, error = AsyncFlakyStore(store), ValueError("no")
    once, handler = engine(counted), Handler("a", error, "c")
    messages = [{"id": "a"}, {}, {"id": "b"}, {"id": "c"}, {"id": "a"}]
    outcomes = await once.process_many(handler.plain if plain else handler, messages, key="$.id")
    assert [(o.verdict, o.result) for o in outcomes] == [
        (Verdict.PROCESSED, "a"),
        (Verdict.FAILED, None),
        (Verdict.FAILED, None),
        (Verdict.PROCESSED, "c"),
        (Verdict.DUPLICATE, "a"),
    ]
    assert isinstance(outcomes[1].error, InvalidKey)
    assert outcomes[2].error is error
    assert counted.calls == {"windows": 1, "claim": 1, "complete": 1, "release": 1}


@in_loop
async def test_a_batch_cancelled_in_a_handler_settles_the_rest(engine):
    once, started = engine(), asyncio.Event()

    async def handle(message: dict[str, str]) -> str:
        if message["id"] == "b":
            started.set()
            await asyncio.Event().wait()
        return message["id"]

    task = asyncio.ensure_future(once.process_many(handle, [{"id": k} for k in "abc"], key="$.id"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    records = [await known(once, key) for key in "abc"]
    assert [(r.state, r.attempt) for r in records] == [
        (State.PROCESSED, 1),
        (State.FREE, 1),
        (State.FREE, 0),
    ]


@in_loop
async def test_a_batch_cancelled_in_a_plain_function_completes_that_and_gives_back_the_rest(engine):
    once, started, go = engine(), threading.Event(), threading.Event()

    def slow(message: dict[str, str]) -> str:
        started.set()
        assert go.wait(10)
        return message["id"]

    task = asyncio.ensure_future(once.process_many(slow, [{"id": k} for k in "ab"], key="$.id"))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    records = [await known(once, key) for key in "ab"]
    assert [(r.state, r.attempt) for r in records] == [(State.PROCESSED, 1), (State.FREE, 0)]


@in_loop
async def test_a_batch_cancelled_while_it_claims_gives_its_claims_back():
    store = Gated("claim")
    once = AsyncOnce(store, group="billing")
    task = asyncio.ensure_future(once.process_many(Handler(), [{"id": "k"}], key="$.id"))
    await store.asked.wait()
    task.cancel()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(20):
        await asyncio.sleep(0)
    record = await known(once)
    assert (record.state, record.attempt) == (State.FREE, 0)


@in_loop
async def test_a_batch_cancelled_while_it_completes_is_done():
    store = Gated("complete")
    once = AsyncOnce(store, group="billing")
    task = asyncio.ensure_future(once.process_many(Handler(5), [{"id": "k"}], key="$.id"))
    await store.asked.wait()
    task.cancel()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settled(once, State.PROCESSED)


@in_loop
async def test_a_batch_cancelled_between_tries_to_complete_goes_on_trying(engine, store):
    away = [True]
    flaky = AsyncFlakyStore(store, lambda verb, _: "before" if verb == "complete" and away else "ok")
    once = engine(flaky)
    task = asyncio.ensure_future(once.process_many(Handler(5), [{"id": "k"}], key="$.id"))
    await tried(flaky)
    task.cancel()
    await asyncio.sleep(0)
    away.clear()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(1):
        await settled(once, State.PROCESSED)


# --- cancellation -----------------------------------------------------------------------------


class Gated(AsyncMemoryStore):
    """Hears one verb at once and answers it, or hears it, when the gate is open."""

    def __init__(self, verb: str, *, heard: bool = True) -> None:
        super().__init__()
        self._verb, self._heard = verb, heard
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return await self._pass("claim", super().claim, requests)

    async def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return await self._pass("complete", super().complete, completions)

    async def _pass(self, verb: str, call: Callable[[Q], Awaitable[list[A]]], batch: Q) -> list[A]:
        if verb != self._verb:
            return await call(batch)
        answers = await call(batch) if self._heard else []
        self.asked.set()
        await self.gate.wait()
        return answers or await call(batch)


async def cancelled_at(verb: str, *, heard: bool = True, **options: Any) -> tuple[AsyncOnce, Handler]:
    """An engine and a handler, after a delivery was cancelled at that verb; then the store answered."""
    store, handler = Gated(verb, heard=heard), Handler(5)
    once = AsyncOnce(store, group="billing", **options)
    task = asyncio.ensure_future(once.process(handler, {}, key="k"))
    await store.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    return once, handler


@pytest.mark.parametrize("heard", [True, False], ids=["reply under way", "request under way"])
@in_loop
async def test_a_claim_that_arrives_for_a_cancelled_waiter_is_released_and_does_not_count(heard):
    once, handler = await cancelled_at("claim", heard=heard, max_attempts=1)
    record = await settled(once, State.FREE)
    assert (record.attempt, handler.runs) == (0, [])
    again = await once.process(handler, {}, key="k")
    assert (again.verdict, again.attempt) == (Verdict.PROCESSED, 1)


@in_loop
async def test_a_claim_that_arrived_just_before_its_waiter_was_cancelled_is_released():
    class Late(AsyncMemoryStore):
        async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
            asyncio.get_running_loop().call_soon(task.cancel)
            return await super().claim(requests)

    once, handler = AsyncOnce(Late(), group="billing"), Handler()
    task = asyncio.ensure_future(once.process(handler, {}, key="k"))
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(20):
        await asyncio.sleep(0)
    record = await known(once)
    assert (record.state, record.attempt, handler.runs) == (State.FREE, 0, [])


@in_loop
async def test_a_task_cancelled_in_its_handler_gives_the_claim_back(engine):
    once, started, cleaned = engine(store_failure=lambda e: True), asyncio.Event(), []

    async def slow(message: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    task = asyncio.ensure_future(once.process(slow, {}, key="k"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await known(once)
    assert (record.state, record.attempt, cleaned) == (State.FREE, 1, [True])
    assert (await once.process(Handler(5), {}, key="k")).result == 5


@pytest.mark.parametrize("heard", [True, False], ids=["reply under way", "request under way"])
@in_loop
async def test_a_task_cancelled_while_it_completes_is_done_all_the_same(heard):
    once, handler = await cancelled_at("complete", heard=heard)
    await settled(once, State.PROCESSED)
    again = await once.process(handler, {}, key="k")
    assert (again.verdict, again.result, len(handler.runs)) == (Verdict.DUPLICATE, 5, 1)


async def tried(flaky: AsyncFlakyStore) -> None:
    """A completion was tried and failed; now there is a pause."""
    while not flaky.calls["complete"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


@in_loop
async def test_a_task_cancelled_between_tries_to_complete_goes_on_trying(engine, store):
    flaky = AsyncFlakyStore(store, {"complete": ["before"] * 3})
    once = engine(flaky)
    task = asyncio.ensure_future(once.process(Handler(5), {}, key="k"))
    await tried(flaky)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settled(once, State.PROCESSED)
    assert flaky.calls == {"windows": 1, "claim": 1, "complete": 4, "peek": flaky.calls["peek"]}


@in_loop
async def test_a_plain_function_whose_task_was_cancelled_keeps_its_claim_while_its_thread_runs(engine):
    once, started, go = engine(), threading.Event(), threading.Event()
    runs = []

    def slow(message: object) -> None:
        runs.append(message)
        started.set()
        go.wait(10)

    task = asyncio.ensure_future(once.process(slow, {}, key="k"))
    try:
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        rival = await once.process(Handler(), {}, key="k")
        assert (rival.verdict, len(runs)) == (Verdict.IN_FLIGHT, 1)
    finally:
        go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await known(once)).state is State.PROCESSED


@in_loop
async def test_a_cancelled_waiter_for_another_workers_claim_leaves_it_alone(engine, store):
    await claim_elsewhere(store)
    once = engine(on_in_flight="wait")
    task = asyncio.ensure_future(once.process(Handler(), {}, key="k"))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await known(once)
    assert (record.state, record.attempt) == (State.CLAIMED, 1)


@in_loop
async def test_a_timeout_is_a_cancellation(engine):
    once = engine()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await once.process(lambda _: asyncio.sleep(10), {}, key="k")
    assert (await settled(once, State.FREE)).attempt == 1


@in_loop
async def test_of_hundred_tasks_half_cancelled_the_others_are_processed_and_all_runs_end_well(engine):
    once, handler = engine(), Handler(5)
    tasks = [asyncio.ensure_future(once.process(handler, {}, key=str(n))) for n in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    assert [task.result().verdict for task in tasks[1::2]] == [Verdict.PROCESSED] * 50
    again = await asyncio.gather(*(once.process(handler, {}, key=str(n)) for n in range(0, 100, 2)))
    assert {o.verdict for o in again} <= {Verdict.PROCESSED, Verdict.DUPLICATE}


# --- by hand ----------------------------------------------------------------------------------


@in_loop
async def test_a_claim_by_hand_is_fresh_once_then_has_the_result(engine):
    once = engine()
    async with once.claim("k") as claim:
        assert (claim.fresh, claim.result, claim.attempt, claim.lost) == (True, None, 1, False)
        assert claim.fence == (await known(once)).fence
        with pytest.raises(InFlight):
            await once.claim("k").__aenter__()
        await claim.complete({"ok": 1})
        with pytest.raises(ConfigurationError):
            await claim.complete(6)
    async with once.claim("k") as again:
        assert (again.fresh, again.result, again.fence) == (False, {"ok": 1}, None)


@in_loop
async def test_leaving_the_block_completes_and_raising_or_cancelling_gives_back(engine):
    once = engine()

    async def work(error: BaseException | None) -> None:
        async with once.claim("k"):
            if error is not None:
                raise error

    for error in (ValueError("no"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            await work(error)
        assert (await known(once)).state is State.FREE
    await work(None)
    record = await known(once)
    assert (record.state, record.result, record.attempt) == (State.PROCESSED, None, 3)


@in_loop
async def test_a_claim_by_hand_that_was_forgotten_cannot_complete(engine):
    once = engine()
    async with once.claim("k") as claim:
        await once.forget("k", force=True)
        with pytest.raises(LeaseLost):
            await claim.complete(5)
    assert claim.lost


# --- inbox ------------------------------------------------------------------------------------


@pytest.fixture
def connection(tmp_path):
    connection = sqlite3.connect(tmp_path / "once.db", timeout=5)
    yield connection
    connection.close()


@pytest.fixture
def inbox(connection, tmp_path):
    store = AsyncSqliteStore(tmp_path / "once.db")
    connection.execute("CREATE TABLE charges (id TEXT)")
    yield AsyncOnce(store, group="billing", lease=LEASE, window=WINDOW)
    asyncio.run(store.close())


@in_loop
async def test_a_mark_commits_and_rolls_back_with_the_callers_work(inbox, connection):
    bound = inbox.bind(connection)
    assert await bound.first_time_many(["k", "k"]) == [True, False]
    connection.rollback()
    assert await bound.first_time("k")
    assert not await inbox.seen("k")
    connection.commit()
    assert await inbox.seen("k")
    assert not await bound.first_time("k")
    connection.rollback()
    with pytest.raises(ConfigurationError):
        AsyncOnce("memory://", group="billing").bind(connection)


@in_loop
async def test_bound_process_stores_the_result_with_the_callers_work(inbox, connection):
    async def charge(message: object) -> int:
        count: int = connection.execute("INSERT INTO charges VALUES ('k')").rowcount
        return count

    for verdict in (Verdict.PROCESSED, Verdict.DUPLICATE):
        outcome = await inbox.bind(connection).process(charge, {}, key="k")
        connection.commit()
        assert (outcome.verdict, outcome.result) == (verdict, 1)
    assert connection.execute("SELECT count(*) FROM charges").fetchone() == (1,)


@in_loop
async def test_a_leased_claim_is_completed_in_the_callers_transaction_or_lost(inbox, connection):
    async with inbox.claim("k") as claim:
        await inbox.bind(connection).complete(claim.claim, 5)
        connection.commit()
    assert (await inbox.process(Handler(), {}, key="k")).result == 5
    async with inbox.claim("j") as lost:
        with pytest.raises(InFlight):
            await inbox.bind(connection).first_time("j")
        connection.rollback()
        await inbox.forget("j", force=True)
        with pytest.raises(LeaseLost):
            await inbox.bind(connection).complete(lost.claim)
        connection.rollback()
        with pytest.raises(LeaseLost):
            await lost.complete()


# --- loops, processes, closing ----------------------------------------------------------------


def test_one_engine_serves_two_event_loops_in_sequence():
    once, handler = AsyncOnce("memory://", group="billing", lease=0.1), Handler(5)

    async def work(key: str) -> list[Any]:
        async def slow(message: str) -> Any:
            await asyncio.sleep(0.25)  # longer than the lease: this loop's keeper must work
            return (await once.process(handler, {}, key=key)).verdict

        done = await once.process(handler, {}, key="k")
        return [done.result, (await once.process(slow, "", key=key)).result]

    assert asyncio.run(work("one")) == [5, Verdict.IN_FLIGHT]
    assert asyncio.run(work("two")) == [5, Verdict.IN_FLIGHT]
    assert len(handler.runs) == 1
    asyncio.run(once.close())


def test_close_in_another_loop_than_the_work(tmp_path):
    once = AsyncOnce(f"sqlite:///{tmp_path / 'once.db'}", group="billing")
    assert asyncio.run(once.process(Handler(5), {}, key="k")).result == 5
    asyncio.run(once.close())


@in_loop
async def test_close_closes_the_store_it_opened_and_no_other(tmp_path):
    async with AsyncOnce(f"sqlite:///{tmp_path / 'own.db'}", group="billing") as own:
        await own.first_time("k")
    with pytest.raises(Exception, match=r"closed|shutdown"):
        await own.first_time("k")
    store = AsyncSqliteStore(tmp_path / "given.db")
    async with AsyncOnce(store, group="billing") as once:
        await once.first_time("k")
    assert (await store.stats()).records == 1
    await store.close()


@pytest.mark.parametrize(
    "turns",
    [
        pytest.param(
            0,
        ),
        10,
    ],
    ids=["at once", "later"],
)
@in_loop
async def test_close_leaves_no_task_behind_and_does_not_wait_for_handlers(turns):
    once: Any = AsyncOnce("memory://", group="billing")
    started = asyncio.Event()

    async def slow(message: str) -> bool:
        started.set()
        return await asyncio.Event().wait()

    before = asyncio.all_tasks()
    task = asyncio.ensure_future(once.process(slow, "", key="k"))
    await started.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await once.close()
    assert asyncio.all_tasks() - before == {task}
    task.cancel()
    await asyncio.wait([task])


def test_a_forked_child_works_and_its_tokens_differ(tmp_path):
    once = AsyncOnce(f"sqlite:///{tmp_path / 'once.db'}", group="billing", lease=LEASE)
    assert asyncio.run(once.process(Handler("parent"), {}, key="before")).result == "parent"

    async def work() -> list[Any]:
        again = await once.process(Handler("child"), {}, key="before")
        own = await once.process(Handler("child"), {}, key="child's")
        held = await once.claim("held").__aenter__()
        return [again.result, own.result, held.fresh]

    assert in_child(lambda: asyncio.run(work())) == ["parent", "child", True]

    async def after() -> list[Any]:
        keys = ("first", "second", "held", "child's")
        outcomes = [await once.process(Handler("parent"), {}, key=key) for key in keys]
        await once.close()
        return [(o.verdict, o.result) for o in outcomes]

    assert asyncio.run(after()) == [
        (Verdict.PROCESSED, "parent"),
        (Verdict.PROCESSED, "parent"),
        (Verdict.IN_FLIGHT, None),
        (Verdict.DUPLICATE, "child"),
    ]
