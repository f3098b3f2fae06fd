"""Loops that end, tasks cancelled, signals that raise, generators closed: nothing hangs, leaks or doubles."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sqlite3
import threading
import time

import pytest

from onceonly import AsyncOnce, LeaseLost, Once, PayloadMismatch, State, StoreUnavailable, Verdict
from onceonly.core import renewal
from onceonly.core.effects import Claim, NotStarted
from onceonly.core.runners import check_owned
from onceonly.errors import ConfigurationError, NotRecorded, StoreClosed
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.sqlite import SqliteStore
from onceonly.testing import ManualClock
from onceonly.types import Acquired, ClaimRequest, Mark, RecordId, Renewal

LEASE = 0.4
ID = RecordId("billing", "", "k")


class SlowStore(AsyncMemoryStore):
    """Its answers take two turns of the loop, so that a cancellation can come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = asyncio.Event()

    async def claim(self, requests):
        answers = await super().claim(requests)
        self.under_way.set()
        await asyncio.sleep(0.05)
        return answers

    async def complete(self, completions):
        self.under_way.set()
        await asyncio.sleep(0.05)
        return await super().complete(completions)

    async def release(self, releases):
        await asyncio.sleep(0.01)
        return await super().release(releases)


def ended_in_time(main, seconds=10.0):
    """``asyncio.run`` in a thread, so that a loop that never ends fails a test and not the run."""
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def orphan(store, fingerprint=None):
    store.claim([ClaimRequest(ID, b"dead", 0.001, 100.0, fingerprint)])
    time.sleep(0.01)


# --- the event loop ends ----------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
def test_a_completion_under_way_when_the_loop_ends_is_written(turns):
    stores = []

    async def handler(message):
        return "done"

    async def main():
        store = SlowStore()
        stores.append(store)
        once = AsyncOnce(store, group="billing")
        task = asyncio.ensure_future(once.process(handler, "m", key="k"))
        await store.under_way.wait()
        store.under_way.clear()
        await store.under_way.wait()  # now it is completing
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not task.done()

    assert ended_in_time(main)
    assert stores[0]._store.peek([ID])[0].state is State.PROCESSED


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("close", [False, True])
def test_a_claim_under_way_when_the_loop_ends_is_given_back_uncounted(turns, close):
    stores, runs = [], []

    async def main():
        store = SlowStore()
        stores.append(store)
        once = AsyncOnce(store, group="billing")
        task = asyncio.ensure_future(once.process(runs.append, "m", key="k"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if close:
            task.cancel()
            await asyncio.wait([task])
            await once.close()

    assert ended_in_time(main)
    record = stores[0]._store.peek([ID])[0]
    assert not runs
    assert record is None or (record.state, record.attempt) == (State.FREE, 0)


def test_a_plain_handler_that_outlives_its_loop_keeps_its_lease():
    store, runs, began = MemoryStore(), [], threading.Event()

    def slow(message):
        began.set()
        time.sleep(LEASE * 2.5)
        runs.append("slow")

    def other():
        began.wait(10)
        with Once(store, group="billing", lease=LEASE) as once:
            while (
                once.process(lambda message: runs.append("other"), "m", key="k").verdict is Verdict.IN_FLIGHT
            ):
                time.sleep(LEASE / 20)

    async def main():
        shared = AsyncMemoryStore()
        shared._store = store
        once = AsyncOnce(shared, group="billing", lease=LEASE)
        task = asyncio.ensure_future(once.process(slow, "m", key="k"))
        await asyncio.to_thread(began.wait, 10)
        assert not task.done()

    rival = threading.Thread(target=other)
    rival.start()
    assert ended_in_time(main)
    rival.join(10)
    assert runs == ["slow"]


def test_a_claim_that_was_never_left_does_not_keep_the_loop_from_ending():
    async def main():
        once = AsyncOnce("memory://", group="billing")
        await once.claim("k").__aenter__()

    assert ended_in_time(main, 5)


# --- tasks are cancelled ----------------------------------------------------------------------


async def cancelled_at(turn, start):
    """Cancel at this turn of the loop; None if it had ended before."""
    task = asyncio.ensure_future(start())
    for _ in range(turn):
        await asyncio.sleep(0)
        if task.done():
            task.exception()
            return None
    task.cancel()
    await asyncio.wait([task])
    return task


@pytest.mark.parametrize(
    "case", ["probe says no", "probe raises", "another payload", "handler raises", "runs"]
)
@pytest.mark.parametrize("how", ["process", "claim"])
def test_wherever_a_task_is_cancelled_its_claim_is_not_left_behind(case, how):  # noqa: C901
    async def probe(message):
        if case == "probe raises":
            raise ValueError
        return False

    async def handler(message):
        if case == "handler raises":
            raise ValueError

    async def main(turn):
        store = AsyncMemoryStore()
        if case.startswith("probe") or case == "another payload":
            orphan(store._store, fingerprint=b"other" if case == "another payload" else None)
        options = {"fingerprint": str} if case == "another payload" else {}
        async with AsyncOnce(store, group="billing", on_orphan=probe, **options) as once:

            async def start():
                if how == "process":
                    await once.process(handler, "m", key="k")
                    return
                async with once.claim("k", message="m") as claim:
                    if claim.fresh:
                        await handler("m")

            task = await cancelled_at(turn, start)
            await asyncio.sleep(0.01)
        record = store._store.peek([ID])[0]
        return task, record

    for turn in range(40):
        task, record = asyncio.run(main(turn))
        assert record is None or record.state is not State.CLAIMED or record.orphaned, (turn, record)
        if task is None:
            break
    else:
        pytest.fail("it never ended")


def test_a_second_cancellation_does_not_stop_the_release():
    async def waiting(message):
        await asyncio.sleep(60)

    async def main():
        store = SlowStore()
        async with AsyncOnce(store, group="billing") as once:
            task = asyncio.ensure_future(once.process(waiting, "m", key="k"))
            await store.under_way.wait()
            await asyncio.sleep(0.1)
            for _ in range(4):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
        return store._store.peek([ID])[0].state

    assert asyncio.run(main()) is State.FREE


def test_no_batch_of_tasks_is_larger_than_the_limit(monkeypatch):
    monkeypatch.setattr("onceonly.core.coalesce.MAX_BATCH", 2)
    sizes = []

    class Counting(AsyncMemoryStore):
        async def mark_seen(self, marks):
            sizes.append(len(marks))
            return await super().mark_seen(marks)

    async def main():
        async with AsyncOnce(Counting(), group="billing") as once:
            assert all(await asyncio.gather(*[once.first_time(str(n)) for n in range(5)]))

    asyncio.run(main())
    assert sizes == [2, 2, 1]


def test_an_engine_forgets_the_loops_that_are_closed():
    once = AsyncOnce("memory://", group="billing")
    for number in range(3):
        asyncio.run(once.first_time(str(number)))
    assert len(once._homes) == 1


def test_nothing_starts_on_a_lease_that_is_over():
    """The keeper has not looked yet, but the clock tells."""
    claim = Claim(ClaimRequest(ID, b"t", 10.0, 100.0), Acquired(1, 1, False, None), sent=5.0)
    check_owned(claim, lambda: 14.9)
    with pytest.raises(NotStarted) as refused:
        check_owned(claim, lambda: 15.0)
    assert isinstance(refused.value.reason, LeaseLost)


def test_a_record_extended_in_memory_outlives_its_first_slice():
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.claim([ClaimRequest(ID, b"t", 10.0, 10.0)])
    for _ in range(20):
        clock.advance(5)
        assert store.renew([Renewal(ID, b"t", 10.0, 10.0)]) == [True]
    clock.advance(1000)
    store.mark_seen([Mark(RecordId("billing", "", "other"), 10.0)])
    assert len(store._entries) == 1  # swept, although nobody asked for it again


def test_a_cancelled_task_ends_as_cancelled_whatever_its_plain_handler_raised():
    began = threading.Event()

    def failing(message):
        began.set()
        time.sleep(0.1)
        raise ValueError

    async def main():
        async with AsyncOnce("memory://", group="billing") as once:
            task = asyncio.ensure_future(once.process(failing, "m", key="k"))
            await asyncio.to_thread(began.wait, 10)
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled(), (await once.peek("k")).state

    assert asyncio.run(main()) == (True, State.FREE)


def test_sys_exit_in_an_async_handler_reaches_its_caller_and_frees_the_claim():
    async def leaving(message):
        raise SystemExit(3)

    async def main():
        async with AsyncOnce("memory://", group="billing") as once:
            try:
                await once.process(leaving, "m", key="k")
            except SystemExit as leave:
                return leave.code, (await once.peek("k")).state

    assert asyncio.run(main()) == (3, State.FREE)


# --- generators -------------------------------------------------------------------------------


def dependency(once):
    """As web frameworks have them: set up, then the request, then torn down."""
    with once.claim("k") as claim:
        yield claim


def test_a_claim_left_in_another_context_is_completed_all_the_same():
    once = Once("memory://", group="billing")
    steps = dependency(once)
    assert contextvars.copy_context().run(next, steps).fresh
    contextvars.copy_context().run(next, steps, None)
    assert once.peek("k").state is State.PROCESSED
    assert len(once._keeper._watchlist) == 0


def test_a_generator_closed_within_its_claim_gives_it_back():
    once = Once("memory://", group="billing")
    steps = dependency(once)
    next(steps)
    steps.close()
    assert once.peek("k").state is State.FREE


def test_an_async_generator_closed_within_its_claim_gives_it_back():
    async def main():
        async with AsyncOnce("memory://", group="billing") as once:

            async def dependency():
                async with once.claim("k") as claim:
                    yield claim

            steps = dependency()
            await anext(steps)
            await steps.aclose()
            return (await once.peek("k")).state

    assert asyncio.run(main()) is State.FREE


# --- signals that raise -----------------------------------------------------------------------


class TimeLimit(Exception):
    """What a signal handler raises."""


@pytest.fixture
def alarm():
    def strike(*_):
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, strike)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class SleepyStore(MemoryStore):
    """One verb takes a while, and wakes up by a signal."""

    sleepy = "complete"

    def complete(self, completions):
        return self._slowly("complete", completions)

    def release(self, releases):
        return self._slowly("release", releases)

    def mark_seen(self, marks):
        return self._slowly("mark_seen", marks)

    def _slowly(self, verb, requests):
        if verb == self.sleepy:
            self.sleepy = ""
            time.sleep(0.3)
        return getattr(super(), verb)(requests)


@pytest.mark.parametrize(
    ("verb", "handler", "left"), [("complete", str, State.PROCESSED), ("release", int, State.FREE)]
)
def test_a_time_limit_that_strikes_the_last_write_goes_on_once_it_is_written(alarm, verb, handler, left):
    store = SleepyStore()
    store.sleepy = verb
    with Once(store, group="billing") as once:
        alarm()
        with pytest.raises(TimeLimit):
            once.process(handler, "no number", key="k")
        assert once.peek("k").state is left


def test_a_mark_is_not_sent_again_when_a_time_limit_strikes(alarm):
    """Those who shared the call are told that nobody knows, never that their new key was seen."""
    store, answers = MemoryStore(), {}
    gate, marked = threading.Event(), []
    mark_seen = store.mark_seen

    def marking(marks):
        marked.append([mark.id.key for mark in marks])
        found = mark_seen(marks)
        if len(marked) == 1:
            gate.wait(10)
        elif len(marked) == 2:
            time.sleep(0.3)
        return found

    store.mark_seen = marking
    once = Once(store, group="billing")

    def first_time(key):
        try:
            answers[key] = once.first_time(key)
        except StoreUnavailable as error:
            answers[key] = error.unknown

    def later():
        while len(once._calls[next(k for k in once._calls if k.__name__ == "Mark")].__self__._queue) < 1:
            time.sleep(0.001)
        other.start()
        time.sleep(0.05)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        gate.set()

    first = threading.Thread(target=first_time, args=("a",))
    other = threading.Thread(target=first_time, args=("c",))
    first.start()
    while not marked:
        time.sleep(0.001)
    threading.Thread(target=later).start()
    with pytest.raises(TimeLimit):
        once.first_time("b")  # this thread leads the next round, and is struck
    first.join(10)
    other.join(10)
    assert marked == [["a"], ["b", "c"]]
    assert answers == {"a": True, "c": True}  # the second one: unknown


# --- threads, closing, forks ------------------------------------------------------------------


def test_where_no_thread_can_be_had_nothing_runs_and_the_next_message_tries_again(monkeypatch):
    start, refused = threading.Thread.start, []

    def failing(self):
        if self.name == "onceonly-keeper" and not refused:
            refused.append(1)
            msg = "can't start new thread"
            raise RuntimeError(msg)
        start(self)

    monkeypatch.setattr(renewal.threading.Thread, "start", failing)
    with Once("memory://", group="billing", lease=LEASE) as once:
        with pytest.raises(RuntimeError, match="new thread"):
            once.process(pytest.fail, "m", key="k")
        record = once.peek("k")
        assert (record.state, record.attempt) == (State.FREE, 0)
        outcome = once.process(lambda message: time.sleep(LEASE * 1.5), "m", key="k")
        assert outcome.verdict is Verdict.PROCESSED
        refused.clear()
        once._keeper._thread = None
        (failed,) = once.process_many(pytest.fail, ["j"], key=str)
        assert isinstance(failed.error, RuntimeError)
        refused.clear()
        once._keeper._thread = None
        with pytest.raises(RuntimeError, match="new thread"), once.claim("h"):
            pytest.fail("entered")
        assert once.peek("h").state is State.FREE


def test_a_claim_that_was_dropped_is_not_renewed_for_ever():
    once = Once("memory://", group="billing", lease=LEASE)
    contextvars.copy_context().run(lambda: once.claim("k").__enter__())
    time.sleep(LEASE * 2)
    assert once.process(str, "m", key="k").verdict is Verdict.PROCESSED


def test_closed_under_a_running_handler_the_error_says_so_at_once(tmp_path):
    once = Once(f"sqlite:///{tmp_path / 'a.db'}", group="billing", lease="30s")
    start = time.monotonic()
    with pytest.raises(NotRecorded) as refused:
        once.process(lambda message: once.close(), "m", key="k")
    assert isinstance(refused.value.__cause__, StoreClosed)
    assert time.monotonic() - start < 5


def test_async_closed_under_a_running_handler_the_error_says_so_at_once(tmp_path):
    async def main():
        once = AsyncOnce(f"sqlite:///{tmp_path / 'a.db'}", group="billing", lease="30s")

        async def closing(message):
            await once.close()
            await once.close()

        async with asyncio.timeout(5):
            with pytest.raises(NotRecorded) as refused:
                await once.process(closing, "m", key="k")
        assert isinstance(refused.value.__cause__, StoreClosed)

    asyncio.run(main())


def test_a_child_that_could_not_open_the_file_tries_again_and_leaves_its_parents_connection(
    tmp_path, monkeypatch
):
    store = SqliteStore(tmp_path / "a.db")
    parents = store._connection
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    monkeypatch.setattr(store, "_path", tmp_path / "missing" / "a.db")
    with pytest.raises((ConfigurationError, StoreUnavailable)):
        store.after_fork()
    monkeypatch.setattr(store, "_path", tmp_path / "a.db")
    store.after_fork()
    assert store._connection is not parents


# --- the caller's transaction -----------------------------------------------------------------


def _swallowing(url, connection):
    with Once(url, group="billing") as once, once.claim("k") as claim:
        try:
            with connection:
                once.bind(connection).complete(claim)
                raise KeyError
        except KeyError:
            pass


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_bound_completion_that_was_rolled_back_is_not_made_up_for(asynchronous, tmp_path):
    """The error was swallowed within the block: leaving it must not write done, for the rows are gone."""
    url, connection = f"sqlite:///{tmp_path / 'a.db'}", sqlite3.connect(tmp_path / "a.db")

    async def run():
        async with AsyncOnce(url, group="billing") as once, once.claim("k") as claim:
            try:
                with connection:
                    await once.bind(connection).complete(claim)
                    raise KeyError
            except KeyError:
                pass

    if asynchronous:
        with pytest.raises(ConfigurationError, match="not committed"):
            asyncio.run(run())
    else:
        with pytest.raises(ConfigurationError, match="not committed"):
            _swallowing(url, connection)
    with Once(url, group="billing") as once:
        assert once.peek("k").state is State.FREE


def test_a_bound_completion_in_a_handler_is_confirmed_and_keeps_its_result(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db", check_same_thread=False)
    with Once(f"sqlite:///{tmp_path / 'a.db'}", group="billing") as once:
        with once.claim("k") as claim, connection:
            once.bind(connection).complete(claim, {"n": 1})
        again = once.process(pytest.fail, "m", key="k")
        assert (again.verdict, again.result) == (Verdict.DUPLICATE, {"n": 1})


def test_without_dedup_there_is_nothing_to_complete_in_a_transaction(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db")
    with Once(f"sqlite:///{tmp_path / 'a.db'}", group="billing", window=None) as once:
        with once.claim("k") as claim, connection:
            once.bind(connection).complete(claim)
        assert once.peek("k") is None


def test_a_plain_function_in_an_async_transaction_runs_in_the_connections_thread(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("CREATE TABLE t (x)")

    async def main():
        async with AsyncOnce(f"sqlite:///{tmp_path / 'a.db'}", group="billing") as once:
            with connection:
                await once.bind(connection).process(
                    lambda m: connection.execute("INSERT INTO t VALUES (1)") and 1, 0, key="k"
                )

    asyncio.run(main())
    assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_another_payload_is_told_although_the_task_was_not_cancelled():
    async def main():
        store = AsyncMemoryStore()
        orphan(store._store, fingerprint=b"other")
        async with AsyncOnce(store, group="billing", fingerprint=str) as once:
            with pytest.raises(PayloadMismatch):
                await once.process(pytest.fail, "m", key="k")

    asyncio.run(main())
