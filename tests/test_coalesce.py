"""Concurrent single calls become a handful of store calls, and nobody pays for his neighbour."""

from __future__ import annotations

import asyncio
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from onceonly import AsyncOnce, Once, State, StoreUnavailable, Verdict
from onceonly.core import coalesce
from onceonly.core.coalesce import MAX_BATCH, AsyncCoalescer, Coalescer, Ticket
from onceonly.errors import InvalidKey, StoreFull
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import AsyncFlakyStore, FlakyStore
from onceonly.types import ClaimRequest, RecordId

KEYS = [f"key {number}" for number in range(100)]
HANDFUL = 20  # calls for 100 messages; a slow machine may need a few rounds, never one per message


def in_threads(work: Callable[[str], Any], keys: Sequence[str] = KEYS) -> list[Any]:
    """What ``work`` returned or raised for each key, all started at once."""
    answers: dict[str, Any] = {}
    barrier = threading.Barrier(len(keys))

    def one(key: str) -> None:
        barrier.wait()
        try:
            answers[key] = work(key)
        except Exception as error:  # noqa: BLE001
            answers[key] = error

    threads = [threading.Thread(target=one, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[key] for key in keys]


def in_tasks(work: Callable[[str], Any], keys: Sequence[str] = KEYS) -> list[Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*map(work, keys), return_exceptions=True)

    return asyncio.run(gather())


async def doubled(message: str) -> str:
    return message * 2


# --- through the public API -------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def kind(request):
    return request.param


@pytest.fixture
def counted(kind, tmp_path):
    """A real store behind a small network delay that counts its calls."""
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "once.db")
    yield FlakyStore(store, delay=0.02)
    store.close()


@pytest.fixture
def async_counted(kind, tmp_path):
    store = AsyncMemoryStore() if kind == "memory" else AsyncSqliteStore(tmp_path / "once.db")
    yield AsyncFlakyStore(store, delay=0.02)
    asyncio.run(store.close())


def test_hundred_threads_make_a_handful_of_calls(counted):
    with Once(counted, group="billing") as once:
        outcomes = in_threads(lambda key: once.process(lambda m: m * 2, key, key=key))
    assert [o.result for o in outcomes] == [key * 2 for key in KEYS]
    assert counted.items == {"windows": counted.items["windows"], "claim": 100, "complete": 100}
    assert 1 <= counted.items["windows"] <= 100  # nobody waits for another to be told first
    assert counted.calls["windows"] <= HANDFUL
    assert counted.calls["claim"] <= HANDFUL
    assert counted.calls["complete"] <= HANDFUL


def test_hundred_tasks_make_one_claim_and_one_complete(async_counted):
    once = AsyncOnce(async_counted, group="billing")
    outcomes = in_tasks(lambda key: once.process(doubled, key, key=key))
    assert [o.result for o in outcomes] == [key * 2 for key in KEYS]
    assert async_counted.items == {"windows": 100, "claim": 100, "complete": 100}
    assert async_counted.calls == {"windows": 1, "claim": 1, "complete": 1}


def test_marks_and_releases_are_coalesced_too(counted, async_counted):
    async def failing(message: str) -> None:
        raise ValueError(message)

    def refusing(message: str) -> None:
        raise ValueError(message)

    with Once(counted, group="billing") as once:
        assert in_threads(once.first_time) == [True] * 100
        in_threads(lambda key: once.process(refusing, key, key=key + "!"))
    async_once = AsyncOnce(async_counted, group="tasks")
    assert in_tasks(async_once.first_time) == [True] * 100
    errors = in_tasks(lambda key: async_once.process(failing, key, key=key + "!"))
    assert [str(error) for error in errors] == KEYS
    for verb in ("mark_seen", "release"):
        assert counted.items[verb] == async_counted.items[verb] == 100
        assert counted.calls[verb] <= HANDFUL
        assert async_counted.calls[verb] == 1


def test_hundred_deliveries_of_one_message_in_one_batch_run_once():
    """The same key many times in one claim call: only one of them may get it."""
    runs: list[str] = []

    async def run(message: str) -> None:
        runs.append(message)

    once = AsyncOnce("memory://", group="billing")
    outcomes = in_tasks(lambda key: once.process(run, key, key="k"))
    verdicts = [o.verdict for o in outcomes]
    assert len(runs) == 1
    assert verdicts.count(Verdict.PROCESSED) == 1
    assert verdicts.count(Verdict.IN_FLIGHT) == 99


def test_a_store_that_is_down_tells_every_thread_with_an_error_of_its_own(counted):
    counted = FlakyStore(counted, lambda verb, _: "before" if verb == "claim" else "ok", delay=0.02)
    with Once(counted, group="billing") as once:
        errors = in_threads(lambda key: once.process(len, key, key=key))
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert len({id(error) for error in errors}) == 100
    assert counted.calls["claim"] <= HANDFUL


def test_a_store_that_is_down_tells_every_task_with_an_error_of_its_own(async_counted):
    down = AsyncFlakyStore(async_counted, lambda verb, _: "before" if verb == "claim" else "ok")
    once = AsyncOnce(down, group="billing")
    errors = in_tasks(lambda key: once.process(doubled, key, key=key))
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert len({id(error) for error in errors}) == 100
    assert down.calls["claim"] == 1


def test_where_a_full_store_refuses_a_batch_each_message_is_judged_alone():
    once = AsyncOnce(AsyncMemoryStore(max_records=3), group="billing")
    answers = in_tasks(lambda key: once.process(doubled, key, key=key), KEYS[:5])
    assert [type(answer) for answer in answers[3:]] == [StoreFull] * 2
    assert [answer.verdict for answer in answers[:3]] == [Verdict.PROCESSED] * 3


# --- threads, step by step --------------------------------------------------------------------


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Desk:
    """A store's verb that writes down each batch and answers when told to; bad requests are refused."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.given_back: list[Any] = []
        self.gates: dict[int, threading.Event] = {}
        self.fault: BaseException | None = None
        self.coalescer: Coalescer[str, str] = Coalescer(
            self.ask, give_back=lambda request, answer: self.given_back.append((request, answer))
        )
        self.answers: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def ask(self, requests: Sequence[str]) -> list[str]:
        number = len(self.batches)
        self.batches.append(list(requests))
        if number in self.gates:
            assert self.gates[number].wait(10)
        if self.fault is not None and number > 0:
            raise self.fault
        if "bad" in requests:
            raise InvalidKey(str(requests))
        return [request.upper() for request in requests]

    def submit(self, request: str) -> None:
        """In a thread of its own, and queued behind the others."""
        self.start(request)
        soon(lambda: self.batches and (self.batches == [[request]] or self.queued(request)))

    def start(self, request: str) -> None:
        def work() -> None:
            try:
                self.answers[request] = self.coalescer.submit(request)
            except BaseException as error:  # noqa: BLE001
                self.answers[request] = error

        self.threads.append(threading.Thread(target=work, daemon=True))
        self.threads[-1].start()

    def queued(self, request: str) -> bool:
        return request in [ticket.request for ticket in list(self.coalescer._queue)]

    def finish(self) -> None:
        for gate in self.gates.values():
            gate.set()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread hangs"


@pytest.fixture
def desk():
    desk = Desk()
    desk.gates[0] = threading.Event()
    yield desk
    desk.finish()


def test_alone_a_call_goes_straight_through():
    desk = Desk()
    assert [desk.coalescer.submit(request) for request in "abc"] == ["A", "B", "C"]
    assert desk.batches == [["a"], ["b"], ["c"]]


def test_what_queues_behind_a_call_goes_as_one(desk):
    for request in "abcd":
        desk.submit(request)
    desk.finish()
    assert desk.batches == [["a"], ["b", "c", "d"]]
    assert desk.answers == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert desk.coalescer.submit("e") == "E"


def test_a_bad_request_fails_alone(desk):
    for request in ("a", "b", "bad", "c"):
        desk.submit(request)
    desk.finish()
    assert isinstance(desk.answers.pop("bad"), InvalidKey)
    assert desk.answers == {"a": "A", "b": "B", "c": "C"}


@pytest.mark.parametrize("unknown", [False, True])
def test_a_shared_failure_reaches_each_thread_as_its_own_object(desk, unknown):
    desk.fault = StoreUnavailable("down", unknown=unknown)
    for request in "abcd":
        desk.submit(request)
    desk.finish()
    errors = [desk.answers[request] for request in "bcd"]
    assert [(type(e), str(e), e.unknown) for e in errors] == [(StoreUnavailable, "down", unknown)] * 3
    assert len({id(e) for e in errors}) == 3
    assert all(e.__cause__ is desk.fault for e in errors)
    assert desk.batches == [["a"], ["b", "c", "d"]]


def test_an_interrupted_leader_lets_the_others_know_and_the_next_call_works(desk):
    desk.fault = KeyboardInterrupt()
    for request in "abc":
        desk.submit(request)
    desk.finish()
    leader, other = desk.answers["b"], desk.answers["c"]
    assert leader is desk.fault
    assert (type(other), other.unknown) == (StoreUnavailable, True)
    desk.fault = None
    assert desk.coalescer.submit("d") == "D"


@pytest.mark.parametrize("role", ["alone", "leader"])
def test_a_claim_whose_call_was_interrupted_is_given_back(desk, role):
    if role == "alone":
        desk.coalescer._call = _interrupted
        with pytest.raises(KeyboardInterrupt):
            desk.coalescer.submit("b")
    else:
        desk.submit("a")
        desk.fault = KeyboardInterrupt()
        desk.submit("b")
        desk.finish()
    assert desk.given_back == [("b", None)]


def _interrupted(requests: Sequence[str]) -> list[str]:
    raise KeyboardInterrupt


def test_no_batch_is_larger_than_the_limit(desk, monkeypatch):
    monkeypatch.setattr("onceonly.core.coalesce.MAX_BATCH", 2)
    for request in "abcdef":
        desk.submit(request)
    desk.finish()
    assert [len(batch) for batch in desk.batches] == [1, 2, 2, 1]
    assert desk.answers == {request: request.upper() for request in "abcdef"}
    assert MAX_BATCH == 1000


class Interrupted(BaseException):
    """As KeyboardInterrupt, but it would not stop the test run."""


@pytest.fixture
def interrupt():
    """Interrupts the main thread, as Ctrl-C does."""

    def handle(_signal: int, _frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def aside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_waiter_interrupted_in_the_queue_is_never_sent(desk, interrupt):
    desk.submit("a")

    def strike_once_it_is_queued() -> None:
        soon(lambda: desk.queued("main"))
        interrupt()

    helper = aside(strike_once_it_is_queued)
    with pytest.raises(Interrupted):
        desk.coalescer.submit("main")
    helper.join()
    desk.submit("b")
    desk.finish()
    assert desk.batches == [["a"], ["b"]]
    assert (desk.answers, desk.given_back) == ({"a": "A", "b": "B"}, [])


def test_a_claim_that_arrives_for_an_interrupted_waiter_is_given_back(desk, interrupt):
    desk.gates[1] = threading.Event()
    desk.submit("a")
    desk.submit("b")

    def strike_once_it_is_under_way() -> None:
        soon(lambda: desk.queued("main"))
        desk.gates[0].set()
        soon(lambda: len(desk.batches) == 2)
        interrupt()

    helper = aside(strike_once_it_is_under_way)
    with pytest.raises(Interrupted):
        desk.coalescer.submit("main")
    helper.join()
    desk.finish()
    assert desk.batches == [["a"], ["b", "main"]]
    assert desk.given_back == [("main", "MAIN")]
    assert desk.answers == {"a": "A", "b": "B"}


def test_a_waiter_interrupted_just_as_its_turn_came_passes_the_turn_on(desk, monkeypatch):
    class Bell(SimpleQueue):  # type: ignore[type-arg]
        def get(self) -> None:  # type: ignore[override]
            super().get()
            if threading.current_thread() is threading.main_thread():
                raise Interrupted

    monkeypatch.setattr(coalesce, "SimpleQueue", Bell)
    desk.submit("a")

    def queue_another_behind() -> None:
        soon(lambda: desk.queued("main"))
        desk.submit("b")
        desk.gates[0].set()

    helper = aside(queue_another_behind)
    with pytest.raises(Interrupted):
        desk.coalescer.submit("main")
    helper.join()
    desk.finish()
    assert desk.batches == [["a"], ["b"]]
    assert (desk.answers, desk.given_back) == ({"a": "A", "b": "B"}, [])


def test_who_comes_between_two_rounds_takes_along_those_who_wait():
    desk = Desk()
    desk.coalescer._queue[Ticket("waiting")] = None
    assert desk.coalescer.submit("b") == "B"
    assert desk.batches == [["waiting", "b"]]


def test_whose_turn_comes_with_the_answer_asks_nothing_more(desk):
    class Seat(dict[str, object]):
        def setdefault(self, key: str, holder: Any) -> object:  # type: ignore[override]
            if holder.request == "main":
                desk.gates[0].set()
                soon(lambda: holder.fate and not self)
            return super().setdefault(key, holder)

    desk.submit("a")
    desk.submit("b")
    desk.coalescer._seat = Seat(desk.coalescer._seat)
    assert desk.coalescer._share(Ticket("main")) == "MAIN"
    desk.finish()
    assert desk.batches == [["a"], ["b", "main"]]
    assert desk.coalescer._seat == {}


RETURN = dis.opmap["RETURN_VALUE"]


class Scene(Desk):
    """The main thread among others, interrupted at one step of its own; one of the others went away."""

    def __init__(self, role: str, step: int, fault: BaseException | None) -> None:
        super().__init__()
        self.gates[0] = threading.Event()
        self.steps_left = step
        self.call_fault, self.counts = fault, fault is None
        self.gone: Ticket[str, str] = Ticket("gone")
        for request in {"alone": "", "leader": "a", "waiter": "ab"}[role]:
            self.submit(request)
        helper = aside(self.fill_the_queue)
        self.answers["main"] = self.main()
        helper.join()
        self.start("later")
        self.finish()
        self.sent = [request for batch in self.batches for request in batch]
        self.freed = {request for request, _ in self.given_back}

    def fill_the_queue(self) -> None:
        soon(lambda: "main" in self.answers or self.queued("main") or ["main"] in self.batches)
        for request in "cd":
            self.submit(request)
        self.coalescer._queue[self.gone] = None
        self.gates[0].set()

    def ask(self, requests: Sequence[str]) -> list[str]:
        answers = super().ask(requests)
        if "gone" in requests:
            self.gone.fate[coalesce._ONLY] = coalesce._GONE
        if self.call_fault and threading.current_thread() is threading.main_thread():
            self.counts = True
            raise self.call_fault
        return answers

    def main(self) -> str | None:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            return self.coalescer.submit("main")
        except (Interrupted, StoreUnavailable):
            return None
        finally:
            sys.settrace(before)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != coalesce.__file__:
            return None
        frame.f_trace_opcodes = True
        leaves = frame.f_code.co_code[frame.f_lasti] == RETURN  # the answer is the caller's from there on
        if event == "opcode" and self.counts and not leaves:
            self.steps_left -= 1
            if self.steps_left == 0:
                raise Interrupted
        return self.trace


def every_scene(role: str, fault: BaseException | None = None) -> Iterator[Scene]:
    """The main thread interrupted at its first bytecode (after a fault, if any), at its second, ... and at
    last not at all.
    """
    for step in count(1):
        scene = Scene(role, step, fault)
        yield scene
        if scene.steps_left > 0:
            assert step > 50
            return


@pytest.mark.parametrize("role", ["alone", "leader", "waiter"])
def test_wherever_a_thread_is_interrupted_the_others_go_on(role):
    for scene in every_scene(role):
        main = scene.answers.pop("main")
        interrupted_leader = role == "leader" and main is None
        for request, answer in scene.answers.items():
            lost = isinstance(answer, StoreUnavailable) and answer.unknown
            assert answer == request.upper() or (interrupted_leader and lost and request in "cd")
        assert scene.answers["later"] == "LATER"
        assert len(scene.sent) == len(set(scene.sent))
        assert scene.freed <= {"main", "gone"}
        assert ("gone" in scene.freed) == ("gone" in scene.sent)
        assert "main" in scene.freed or main == "MAIN" or "main" not in scene.sent
    assert (main, scene.given_back) == ("MAIN", [("gone", "GONE")])


@pytest.mark.parametrize(
    ("role", "fault"),
    [("alone", StoreUnavailable("down")), ("alone", Interrupted()), ("leader", Interrupted())],
    ids=["failed", "interrupted", "interrupted leader"],
)
def test_wherever_a_thread_is_interrupted_after_its_call_went_wrong_the_others_go_on(role, fault):
    for scene in every_scene(role, fault):
        assert scene.answers["later"] == "LATER"
        assert len(scene.sent) == len(set(scene.sent))
        assert scene.freed <= {"main", "gone"}


def test_an_interrupted_claim_of_an_engine_is_free_again_and_uncounted(interrupt):
    asked, go = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def claim(self, requests):
            answers = super().claim(requests)
            if not asked.is_set():
                asked.set()
                go.wait(10)
            return answers

    with Once(Slow(), group="billing") as once:
        helper = aside(lambda: asked.wait(10) and interrupt())
        with pytest.raises(Interrupted):
            once.process(len, "", key="k")
        helper.join()
        record = once.peek("k")
        assert record is not None
        assert (record.state, record.attempt) == (State.FREE, 0)
        assert once.process(len, "", key="k").verdict is Verdict.PROCESSED


# --- tasks, step by step ----------------------------------------------------------------------


class AsyncDesk:
    """:class:`Desk` for tasks; every call waits for the gate, which is open at first."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.given_back: list[Any] = []
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.coalescer: AsyncCoalescer[str, str] = AsyncCoalescer(self.ask, give_back=self.give_back)

    async def ask(self, requests: Sequence[str]) -> list[str]:
        self.batches.append(list(requests))
        self.asked.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        if "bad" in requests:
            raise InvalidKey(str(requests))
        return [request.upper() for request in requests]

    async def give_back(self, unwanted: list[tuple[str, str | None]]) -> None:
        self.given_back.extend(unwanted)

    def submit(self, *requests: str) -> list[asyncio.Task[str]]:
        return [asyncio.ensure_future(self.coalescer.submit(request)) for request in requests]


def test_what_is_asked_in_one_turn_or_during_a_call_goes_together():
    async def main() -> None:
        desk = AsyncDesk()
        desk.gate.clear()
        first = desk.submit("a", "b")
        await desk.asked.wait()
        second = desk.submit("c", "d")
        await asyncio.sleep(0)
        desk.gate.set()
        assert await asyncio.gather(*first, *second) == ["A", "B", "C", "D"]
        assert desk.batches == [["a", "b"], ["c", "d"]]
        assert await desk.coalescer.submit("e") == "E"

    asyncio.run(main())


def test_a_bad_request_of_a_task_fails_alone():
    async def main() -> list[Any]:
        return await asyncio.gather(*AsyncDesk().submit("a", "bad", "c"), return_exceptions=True)

    one, bad, other = asyncio.run(main())
    assert (one, type(bad), other) == ("A", InvalidKey, "C")


@pytest.mark.parametrize("unknown", [False, True])
def test_a_shared_failure_reaches_each_task_as_its_own_object(unknown):
    desk, fault = AsyncDesk(), StoreUnavailable("down", unknown=unknown)
    desk.fault = fault

    async def main() -> list[Any]:
        return await asyncio.gather(*desk.submit("a", "b", "c"), return_exceptions=True)

    errors = asyncio.run(main())
    assert [(type(e), str(e), e.unknown) for e in errors] == [(StoreUnavailable, "down", unknown)] * 3
    assert len({id(e) for e in errors}) == 3
    assert all(e.__cause__ is fault for e in errors)
    assert len(desk.batches) == 1


def test_a_waiter_cancelled_in_the_queue_is_never_sent():
    async def main() -> AsyncDesk:
        desk = AsyncDesk()
        desk.gate.clear()
        (first,) = desk.submit("a")
        await desk.asked.wait()
        cancelled, other = desk.submit("b", "c")
        await asyncio.sleep(0)
        cancelled.cancel()
        desk.gate.set()
        assert [await first, await other] == ["A", "C"]
        assert cancelled.cancelled()
        return desk

    desk = asyncio.run(main())
    assert desk.batches == [["a"], ["c"]]
    assert desk.given_back == []


@pytest.mark.parametrize(
    ("fault", "given_back"),
    [(None, [("b", "B")]), (StoreUnavailable("down"), [("b", None)])],
    ids=["granted", "down"],
)
def test_a_waiter_cancelled_under_way_does_not_stop_the_batch_and_its_claim_is_given_back(fault, given_back):
    async def main() -> AsyncDesk:
        desk = AsyncDesk()
        desk.gate.clear()
        desk.fault = fault
        waiting, cancelled = desk.submit("a", "b")
        await desk.asked.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert (cancelled.cancelled(), waiting.done()) == (True, False)
        desk.gate.set()
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), type(fault))
        desk.fault = None
        assert await desk.coalescer.submit("c") == "C"
        return desk

    assert asyncio.run(main()).given_back == given_back


def test_a_waiter_cancelled_just_after_its_answer_came_gives_its_claim_back():
    """The answer is in the future, the task has not run again, and then it is cancelled."""

    async def main() -> AsyncDesk:
        desk = AsyncDesk()
        (task,) = desk.submit("a")

        async def ask(requests: Sequence[str]) -> list[str]:
            asyncio.get_running_loop().call_soon(task.cancel)  # runs before the task wakes up
            return [request.upper() for request in requests]

        desk.coalescer._call = ask
        await asyncio.wait([task])
        assert task.cancelled()
        for _ in range(10):
            await asyncio.sleep(0)
        return desk

    assert asyncio.run(main()).given_back == [("a", "A")]


def test_each_thread_gets_the_answer_to_its_own_request():
    store = MemoryStore()
    coalescer: Coalescer[ClaimRequest, Any] = Coalescer(store.claim)

    def claim(key: str) -> Any:
        return coalescer.submit(ClaimRequest(RecordId("billing", "", key), key.encode(), 10, 100))

    fences = [answer.fence for answer in in_threads(claim)]
    records = store.peek([RecordId("billing", "", key) for key in KEYS])
    assert fences == [record and record.fence for record in records]
