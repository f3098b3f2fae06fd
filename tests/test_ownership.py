"""Nobody runs what is not his: slow probes, long batches, closed engines, interrupts."""

# mypy: disable-error-code="union-attr, var-annotated"
from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from onceonly import AsyncOnce, LeaseLost, Once, State, StoreUnavailable, Verdict
from onceonly.events import LeaseWasLost
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.testing import FlakyStore, ManualClock
from onceonly.types import ClaimRequest, RecordId

LEASE = 0.3
KEYS = [f"k{number}" for number in range(5)]


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C raises, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def orphaned(store, keys=KEYS, lease=0.001):
    """Records of a worker that died in the middle."""
    ids = [RecordId("billing", "", key) for key in keys]
    store.claim([ClaimRequest(record_id, b"dead", lease, 100.0) for record_id in ids])
    time.sleep(lease * 2)


def slowly(answer):
    def probe(message):
        time.sleep(LEASE * 1.5)
        return answer

    return probe


def taking_over(store, key, stop):
    """What another worker does all the time: try to get it."""
    with Once(store, group="billing", lease=LEASE) as other:
        while not stop.is_set():
            if other.process(lambda message: "other", key, key=key).verdict is Verdict.PROCESSED:
                return
            time.sleep(LEASE / 20)


@pytest.mark.parametrize("how", ["process", "process_many", "claim"])
def test_a_probe_slower_than_the_lease_keeps_its_claim(how):
    store, stop, runs = MemoryStore(), threading.Event(), []
    orphaned(store, ["k"])
    other = threading.Thread(target=taking_over, args=(store, "k", stop))
    with Once(store, group="billing", lease=LEASE, on_orphan=slowly(answer=False)) as once:
        threading.Timer(LEASE / 5, other.start).start()
        if how == "claim":
            with once.claim("k") as claim:
                runs.append(claim.fresh)
        elif how == "process":
            once.process(runs.append, True, key="k")
        else:
            once.process_many(runs.append, [True], key=lambda message: "k")
        assert once.peek("k").result is None  # ours, not the other's
    stop.set()
    other.join()
    assert runs == [True]


def test_the_probes_of_a_batch_may_take_longer_than_a_lease_together():
    store, runs = MemoryStore(), []
    orphaned(store)

    def probe(message):
        time.sleep(LEASE / 3)
        return False

    with Once(store, group="billing", lease=LEASE, on_orphan=probe) as once:
        outcomes = once.process_many(runs.append, KEYS, key=str)
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED] * len(KEYS)
    assert runs == KEYS


def test_a_message_of_a_batch_that_was_taken_over_meanwhile_does_not_start(monkeypatch):
    store, runs = MemoryStore(), []
    with Once(store, group="billing") as once, Once(store, group="billing") as other:

        def handle(key):
            runs.append(("ours", key))
            if key == "k0":  # somebody thinks that we are gone, and takes the next one
                once._keeper._watchlist.answered([claims["k1"]], 0.0, [False])
                other.forget("k1", force=True)
                other.process(lambda key: runs.append(("other", key)), "k1", key="k1")

        watch = once._runner.keep
        claims = {}
        monkeypatch.setattr(once._runner, "keep", lambda claim: claims.setdefault(claim.key, watch(claim)))
        outcomes = once.process_many(handle, ["k0", "k1", "k2"], key=str)
    assert runs == [("ours", "k0"), ("other", "k1"), ("ours", "k2")]
    assert isinstance(outcomes[1].error, LeaseLost)
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED, Verdict.FAILED, Verdict.PROCESSED]


def test_a_claim_whose_time_was_over_before_its_handler_could_start_is_given_back_uncounted():
    clock = ManualClock()

    class Slow(MemoryStore):
        def claim(self, requests):
            answers = super().claim(requests)
            clock.advance(31)  # the reply takes longer than the lease
            return answers

        def renew(self, renewals):
            raise StoreUnavailable("away")

    with Once(Slow(), group="billing", clock=clock, lease="30s") as once:
        with pytest.raises(LeaseLost):
            once.process(pytest.fail, "m", key="k")
        record = once.peek("k")
    assert (record.state, record.attempt) == (State.FREE, 0)


def test_a_lease_that_ends_because_nobody_could_renew_it_is_told():
    events, store = [], FlakyStore(MemoryStore(), {"renew": ["before"] * 100})
    with Once(store, group="billing", lease=0.1, on_event=events.append) as once:

        def handle(message):
            deadline = time.monotonic() + 10
            while not any(isinstance(event, LeaseWasLost) for event in events):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        once.process(handle, "m", key="k")
    assert sum(isinstance(event, LeaseWasLost) for event in events) == 1


# --- interrupts -------------------------------------------------------------------------------


class Signalled(MemoryStore):
    """The process gets a signal while it completes."""

    sent = 0

    def complete(self, completions):
        self.sent += 1
        if self.sent == 1:
            signal.raise_signal(signal.SIGINT)
        return super().complete(completions)


def by_hand(once):
    with once.claim("k") as claim:
        claim.complete("done")


@pytest.mark.parametrize("how", ["process", "claim"])
def test_an_interrupt_while_completing_is_heard_after_the_record_is_written(how):
    store = Signalled()
    with Once(store, group="billing") as once:
        with pytest.raises(KeyboardInterrupt):
            by_hand(once) if how == "claim" else once.process(lambda message: "done", "m", key="k")
        record = once.peek("k")
    assert (record.state, record.result, store.sent) == (State.PROCESSED, b'"done"', 2)


def test_an_interrupt_between_two_tries_to_complete_goes_on_trying():
    asked = []

    class Away(MemoryStore):
        def complete(self, completions):
            asked.append(time.monotonic())
            if len(asked) < 4:
                raise StoreUnavailable("away")
            return super().complete(completions)

    def ring():  # during the pause after the second try
        while len(asked) < 2:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    bell = threading.Thread(target=ring)
    with Once(Away(), group="billing") as once:
        bell.start()
        with pytest.raises(KeyboardInterrupt):
            once.process(str, "m", key="k")
        bell.join()
        assert (once.peek("k").state, len(asked)) == (State.PROCESSED, 4)


def test_a_second_interrupt_is_heard_at_once():
    class Stuck(MemoryStore):
        def complete(self, completions):
            raise KeyboardInterrupt

    with Once(Stuck(), group="billing") as once:
        with pytest.raises(KeyboardInterrupt):
            once.process(str, "m", key="k")
        assert once.peek("k").state is State.CLAIMED


# --- async ------------------------------------------------------------------------------------


def test_a_task_cancelled_while_its_plain_probe_runs_does_not_start_the_handler():
    store = MemoryStore()
    orphaned(store, ["k"])
    shared = AsyncMemoryStore()
    shared._store = store
    asked = threading.Event()

    def probe(message):
        asked.set()
        time.sleep(0.1)
        return False

    async def main():
        async with AsyncOnce(shared, group="billing", on_orphan=probe) as once:
            task = asyncio.create_task(once.process(pytest.fail, "m", key="k"))
            await asyncio.to_thread(asked.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await once.peek("k")

    record = asyncio.run(main())
    assert (record.state, record.attempt) == (State.FREE, 1)


def test_one_engine_serves_two_event_loops_at_once():
    once, both = AsyncOnce("memory://", group="billing"), threading.Barrier(2)
    done: list[str] = []

    async def handle(key):
        await asyncio.sleep(0.001)
        return key

    async def work(name):
        for number in range(30):
            both.wait(10)
            keys = [f"{name}-{number}-{n}" for n in range(5)]
            outcomes = await asyncio.gather(*[once.process(handle, key, key=key) for key in keys])
            done.extend(o.result for o in outcomes)

    def loop(name):
        asyncio.run(asyncio.wait_for(work(name), 30))

    threads = [threading.Thread(target=loop, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(done)) == len(done) == 300


def test_a_closed_engine_says_so_and_runs_nothing_even_if_told_to_fail_open():
    store = MemoryStore()
    once = Once(store, group="billing", on_store_error="open")
    once.close()
    for call in (
        lambda: once.process(pytest.fail, "m", key="k"),
        lambda: once.process_many(pytest.fail, ["m"], key=str),
        lambda: once.first_time("k"),
        lambda: once.first_time_many(["k"]),
        lambda: once.bind(None),
        once.stats,
    ):
        with pytest.raises(Exception, match="this engine was closed") as refused:
            call()
        assert not isinstance(refused.value, StoreUnavailable)
