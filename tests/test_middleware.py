"""``with_deduplication(once, handler)``: any handler, any message, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    InFlight,
    InvalidKey,
    Once,
    PayloadMismatch,
    Quarantined,
    StoredFailure,
    StoreUnavailable,
    content_key,
    with_deduplication,
)
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.testing import AsyncFlakyStore, FlakyStore

Guarded = Callable[[Any], Any]


class Bench:
    """A guarded handler, sync or async, called like a plain function, and what it was run with."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runs: list[Any] = []
        self._engines: list[Any] = []
        self._loop = asyncio.new_event_loop()

    def engine(self, **options: Any) -> Any:
        engine = (Once if self.kind == "sync" else AsyncOnce)("memory://", group="middleware", **options)
        self._engines.append(engine)
        return engine

    def guard(self, once: Any = None, work: Guarded = lambda message: "ok", **more: Any) -> Guarded:
        once = once or self.engine()

        def handler(message: Any) -> Any:
            self.runs.append(message)
            return work(message)

        async def async_handler(message: Any) -> Any:
            return handler(message)

        if self.kind == "sync":
            return with_deduplication(once, handler, **more)
        guarded = with_deduplication(once, async_handler, **more)
        return lambda message: self.run(guarded(message))

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work) if self.kind == "async" else work

    def close(self) -> None:
        for engine in self._engines:
            self.run(engine.close())
        self._loop.close()


@pytest.fixture(params=["sync", "async"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.close()


Order = namedtuple("Order", "id amount")  # noqa: PYI024 - an object whose id is also an item


@dataclass
class Event:
    name: str
    amount: int


@dataclass
class Envelope:
    payload: object
    sent_at: float


# --- the key ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        ({"id": "a", "n": 1}, {"id": "a", "n": 2}, {"id": "b", "n": 1}),
        (UserDict(id="a", n=1), {"id": "a"}, UserDict(id="b", n=1)),
        (SimpleNamespace(id="a", n=1), SimpleNamespace(id="a", n=2), SimpleNamespace(id="b", n=1)),
        (Order("a", 1), Order("a", 2), Order("b", 1)),
        ({"id": 17}, {"id": "17"}, {"id": 18}),
        ({"id": 0}, {"id": "0"}, {"id": 1}),
    ],
    ids=["dict", "mapping", "object", "namedtuple", "integer", "zero"],
)
def test_the_id_is_the_key_whatever_else_the_message_says(bench, first, again, other):
    guarded = bench.guard()
    assert [guarded(message) for message in (first, again, other)] == ["ok"] * 3
    assert bench.runs == [first, other]


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        ({"payload": [1, 2], "at": 1}, {"payload": [1, 2], "at": 2}, {"payload": [2, 1], "at": 1}),
        (Envelope({"n": 1}, 1.0), Envelope({"n": 1}, 2.0), Envelope({"n": 2}, 1.0)),
    ],
    ids=["dict", "object"],
)
def test_without_an_id_the_payload_tells_messages_apart(bench, first, again, other):
    guarded = bench.guard()
    for message in (first, again, other):
        guarded(message)
    assert bench.runs == [first, other]


def test_an_id_never_equals_a_content_key(bench):
    guarded = bench.guard()
    guarded({"payload": "x"})
    guarded({"id": "x", "payload": "x"})
    assert len(bench.runs) == 2


def test_an_id_of_none_is_no_id(bench):
    """What a dataclass with ``id: str | None = None`` says."""
    guarded = bench.guard()
    for payload in ("x", "x", "y"):
        guarded({"id": None, "payload": payload})
    assert [message["payload"] for message in bench.runs] == ["x", "y"]


@pytest.mark.parametrize(
    "message",
    [{"id": "", "payload": "x"}, {"a": 1}, Event("paid", 5), "text", b"raw", 5],
    ids=repr,
)
def test_equal_content_is_not_taken_for_one_event_unless_asked_for(bench, message):
    guarded = bench.guard()
    with pytest.raises(InvalidKey):
        guarded(message)
    assert bench.runs == []
    by_content = bench.guard(fallback=content_key())
    assert by_content(message) == by_content(message) == "ok"
    assert bench.runs == [message]


def test_the_place_of_the_id_can_be_named(bench):
    guarded = bench.guard(key="$.meta.message_id")
    for number in (1, 1, 2):
        guarded({"meta": {"message_id": number}, "payload": "x"})
    assert [message["meta"]["message_id"] for message in bench.runs] == [1, 2]


@pytest.mark.parametrize("bad", [True, 1.5, b"a", ["a"], "x" * 513, "\ud800"], ids=repr)
def test_an_id_that_cannot_be_a_key_is_refused_and_never_replaced_by_content(bench, bad):
    guarded = bench.guard()
    with pytest.raises(InvalidKey):
        guarded({"id": bad, "payload": "x"})
    assert bench.runs == []


@pytest.mark.parametrize(
    "empty", [None, {}, [], "", b"", {"payload": None}, {"payload": ""}, object()], ids=repr
)
def test_a_message_without_any_content_is_refused_and_not_run(bench, empty):
    guarded = bench.guard()
    with pytest.raises(InvalidKey):
        guarded(empty)
    assert bench.runs == []


def test_the_key_is_taken_before_the_handler_changes_the_message(bench):
    guarded = bench.guard(work=lambda message: message.clear())
    guarded({"id": "a"})
    guarded({"id": "a"})
    assert len(bench.runs) == 1


# --- results and errors -----------------------------------------------------------------------


@pytest.mark.parametrize("result", [0, "", False, [], {}, None, {"total": 12.5}, "paid"], ids=repr)
def test_a_duplicate_gets_the_stored_result(bench, result):
    guarded = bench.guard(work=lambda message: result)
    answers = [guarded({"id": "a"}) for _ in range(3)]
    assert answers == [result] * 3
    assert {type(answer) for answer in answers} == {type(result)}
    assert len(bench.runs) == 1


def test_an_error_goes_on_and_the_next_delivery_runs(bench):
    answers: list[Any] = [ValueError("card refused"), "paid"]

    def work(message: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    guarded = bench.guard(work=work)
    with pytest.raises(ValueError, match="card refused"):
        guarded({"id": "a"})
    assert [guarded({"id": "a"}), guarded({"id": "a"})] == ["paid", "paid"]
    assert len(bench.runs) == 2


def test_a_failure_stored_as_final_is_raised_again_without_running(bench):
    def work(message: Any) -> Any:
        raise ValueError("card refused")

    guarded = bench.guard(bench.engine(store_failure=lambda error: True), work)
    with pytest.raises(ValueError, match="card refused"):
        guarded({"id": "a"})
    with pytest.raises(StoredFailure, match="ValueError: card refused"):
        guarded({"id": "a"})
    assert len(bench.runs) == 1


def test_a_quarantined_message_says_so(bench):
    def work(message: Any) -> Any:
        raise ValueError("card refused")

    guarded = bench.guard(bench.engine(max_attempts=1), work)
    with pytest.raises(ValueError, match="card refused"):
        guarded({"id": "a"})
    with pytest.raises(Quarantined, match="'a'"):
        guarded({"id": "a"})
    assert len(bench.runs) == 1


def test_another_payload_under_the_same_id_is_refused_where_fingerprints_are_kept(bench):
    guarded = bench.guard(bench.engine(fingerprint=lambda message: message["n"]))
    guarded({"id": "a", "n": 1})
    assert guarded({"id": "a", "n": 1}) == "ok"
    with pytest.raises(PayloadMismatch):
        guarded({"id": "a", "n": 2})
    assert len(bench.runs) == 1


def test_two_engines_are_two_groups_of_readers(bench):
    store = MemoryStore() if bench.kind == "sync" else AsyncMemoryStore()
    kind: Any = Once if bench.kind == "sync" else AsyncOnce
    engines = [kind(store, group=group) for group in ("mail", "billing")]
    for engine in engines:
        bench.guard(engine)({"id": "a"})
        bench.run(engine.close())
    assert len(bench.runs) == 2


@pytest.mark.parametrize(("policy", "runs"), [("closed", 0), ("open", 1)])
def test_a_store_that_is_down_fails_closed_unless_told_otherwise(bench, policy, runs):
    def down(verb: str, number: int) -> Any:
        return "before"

    made: Any = (
        Once(FlakyStore(MemoryStore(), down), group="g", on_store_error=policy)
        if bench.kind == "sync"
        else AsyncOnce(AsyncFlakyStore(AsyncMemoryStore(), down), group="g", on_store_error=policy)
    )
    guarded = bench.guard(made)
    if policy == "closed":
        with pytest.raises(StoreUnavailable):
            guarded({"id": "a"})
    else:
        assert guarded({"id": "a"}) == "ok"
    assert len(bench.runs) == runs
    bench.run(made.close())


# --- at the same time -------------------------------------------------------------------------


def test_a_duplicate_in_another_thread_is_in_flight_until_the_first_is_done():
    started, finish = threading.Event(), threading.Event()

    def handler(message: Any) -> str:
        started.set()
        assert finish.wait(10)
        return "ok"

    with Once("memory://", group="g", lease="9s") as once:
        guarded = with_deduplication(once, handler)
        first = threading.Thread(target=guarded, args=({"id": "a"},))
        first.start()
        assert started.wait(10)
        with pytest.raises(InFlight, match="'a'") as refused:
            guarded({"id": "a"})
        finish.set()
        first.join(10)
        assert 0 < refused.value.retry_after <= 9
        assert guarded({"id": "a"}) == "ok"


def test_a_duplicate_in_another_task_is_in_flight_until_the_first_is_done():
    async def scenario() -> None:
        started, finish = asyncio.Event(), asyncio.Event()

        async def handler(message: Any) -> str:
            started.set()
            await finish.wait()
            return "ok"

        async with AsyncOnce("memory://", group="g", lease="9s") as once:
            guarded = with_deduplication(once, handler)
            first = asyncio.ensure_future(guarded({"id": "a"}))
            await started.wait()
            with pytest.raises(InFlight) as refused:
                await guarded({"id": "a"})
            finish.set()
            assert await first == await guarded({"id": "a"}) == "ok"
            assert 0 < refused.value.retry_after <= 9

    asyncio.run(scenario())


def test_on_in_flight_wait_gives_every_task_the_one_result():
    async def scenario() -> None:
        runs = []

        async def handler(message: Any) -> int:
            runs.append(message)
            await asyncio.sleep(0.02)
            return len(runs)

        async with AsyncOnce("memory://", group="g", on_in_flight="wait") as once:
            guarded = with_deduplication(once, handler)
            assert await asyncio.gather(*[guarded({"id": "a"}) for _ in range(20)]) == [1] * 20

    asyncio.run(scenario())


# --- which handler for which engine -----------------------------------------------------------


def test_a_plain_function_under_an_async_engine_runs_in_a_thread():
    async def scenario() -> None:
        names = []

        def handler(message: Any) -> str:
            names.append(threading.current_thread().name)
            return "ok"

        async with AsyncOnce("memory://", group="g") as once:
            guarded: Any = with_deduplication(once, handler)
            assert await guarded({"id": "a"}) == await guarded({"id": "a"}) == "ok"
        assert len(names) == 1
        assert names != [threading.current_thread().name]

    asyncio.run(scenario())


def test_an_async_function_under_a_sync_engine_is_refused_when_it_is_guarded():
    async def handler(message: Any) -> None: ...

    with Once("memory://", group="g") as once, pytest.raises(ConfigurationError, match="AsyncOnce"):
        with_deduplication(once, handler)


class AsyncCallable:
    """An async handler that ``inspect.iscoroutinefunction`` does not know for one."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, message: Any) -> None:
        self.runs += 1


@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_turns_out_to_be_async_under_a_sync_engine_is_not_taken_for_done():
    with Once("memory://", group="g") as once:
        handler = AsyncCallable()
        guarded: Any = with_deduplication(once, handler)
        with pytest.raises(ConfigurationError):
            guarded({"id": "a"})
        assert not once.seen("a")


@pytest.mark.filterwarnings("ignore:coroutine")
def test_process_refuses_an_async_function_under_a_sync_engine():
    async def handler(message: Any) -> None: ...

    with Once("memory://", group="g") as once:
        with pytest.raises(ConfigurationError):
            once.process(handler, "message", key="a")
        assert not once.seen("a")


def test_an_async_callable_object_under_an_async_engine_runs_once():
    async def scenario() -> None:
        handler = AsyncCallable()
        async with AsyncOnce("memory://", group="g") as once:
            guarded = with_deduplication(once, handler)
            await guarded({"id": "a"})
            await guarded({"id": "a"})
        assert handler.runs == 1

    asyncio.run(scenario())


def test_the_guarded_function_keeps_its_name_and_docstring():
    def charge(message: Any) -> None:
        """Charge the card."""

    with Once("memory://", group="g") as once:
        guarded = with_deduplication(once, charge)
    assert (guarded.__name__, guarded.__doc__) == ("charge", "Charge the card.")
