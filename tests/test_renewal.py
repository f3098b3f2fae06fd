"""Leases are kept alive by one keeper per engine, and a lease that is lost is told so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from onceonly import AsyncOnce, Claim, ConfigurationError, LeaseLost, Once, State, Verdict
from onceonly.core.renewal import Keeper, Watchlist
from onceonly.events import Event, LeaseWasLost, RenewalFailed
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.testing import AsyncFlakyStore, FlakyStore, ManualClock
from onceonly.types import Acquired, ClaimRequest, RecordId, Renewal

SHORT = 0.3  # a lease that runs out while one looks


def soon(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


async def soon_async(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


def keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "onceonly-keeper"}


def claim_of(key: str, lease: float, sent: float) -> Claim:
    request = ClaimRequest(RecordId("billing", "", key), key.encode(), lease, 100.0)
    return Claim(request, Acquired(fence=1, attempt=1), sent)


# --- who is due, without real time ------------------------------------------------------------


@pytest.fixture
def clock():
    return ManualClock(0.0)


@pytest.fixture
def events():
    return []


@pytest.fixture
def watchlist(clock, events):
    return Watchlist(clock, events.append)


def test_a_lease_is_due_at_a_third_of_its_length(watchlist, clock):
    short, long = claim_of("short", 3, clock()), claim_of("long", 30, clock())
    watchlist.add(short)
    watchlist.add(long)
    assert watchlist.pause() == pytest.approx(1)
    clock.advance(0.99)
    assert watchlist.due() == []
    clock.advance(0.02)
    assert watchlist.due() == [short]
    watchlist.answered([short], clock(), [True])
    assert watchlist.due() == []
    clock.advance(9)
    assert watchlist.due() == [short, long]
    assert watchlist.pause() == 0


def test_a_renewal_moves_the_deadline_from_when_it_was_sent(watchlist, clock):
    claim = claim_of("k", 9, clock())
    watchlist.add(claim)
    clock.advance(3)
    sent = clock()
    clock.advance(2)  # the reply takes its time
    watchlist.answered([claim], sent, [True])
    assert (claim.renewed, claim.deadline) == (3, 12)
    assert watchlist.pause() == pytest.approx(1)


def test_a_lease_that_could_not_be_renewed_in_time_is_lost_until_the_store_says_otherwise(watchlist, clock):
    claim = claim_of("k", 9, clock())
    watchlist.add(claim)
    clock.advance(8.9)
    watchlist.due()
    assert not claim.lost
    clock.advance(0.1)
    watchlist.due()
    with pytest.raises(LeaseLost):
        claim.check()
    watchlist.answered([claim], clock(), [True])
    assert not claim.lost
    claim.check()


def test_a_refused_renewal_is_told_once_and_not_tried_again(watchlist, clock, events):
    claim = claim_of("k", 9, clock())
    watchlist.add(claim)
    watchlist.answered([claim], clock(), [False])
    assert claim.lost
    assert events == [LeaseWasLost(claim.id, 1)]
    clock.advance(10)
    assert (watchlist.due(), len(watchlist)) == ([], 0)


def test_a_renewal_refused_because_its_completion_overtook_it_is_no_news(watchlist, clock, events):
    claim = claim_of("k", 9, clock())
    watchlist.add(claim)
    claim.finishing = True
    watchlist.answered([claim], clock(), [False])
    assert (claim.lost, events) == (False, [])


def test_a_failed_renewal_is_tried_again_several_times_before_the_lease_ends(watchlist, clock, events):
    claim, error = claim_of("k", 9, clock()), OSError()
    watchlist.add(claim)
    assert 0 < watchlist.failed([claim], error) <= 9 / 6
    assert events == [RenewalFailed(1, error)]
    assert not claim.lost


def test_only_a_claim_that_is_due_before_the_next_look_wakes_the_keeper(watchlist, clock):
    watchlist.add(claim_of("first", 9, clock()))
    assert watchlist.pause() == pytest.approx(3)
    clock.advance(1)
    claims = [claim_of(f"{lease} {sent}", lease, sent) for lease, sent in ((9, 1), (30, 1), (3, 1), (9, -1))]
    assert [watchlist.add(claim) for claim in claims] == [False, False, True, True]
    watchlist.wake()  # at work: it must look once more
    assert watchlist.add(claim_of("late", 30, clock()))


def test_an_empty_list_looks_again_after_a_third_of_the_shortest_lease(watchlist, clock):
    claim = claim_of("k", 9, clock())
    watchlist.add(claim)
    watchlist.remove(claim)
    clock.advance(100)
    assert (watchlist.due(), watchlist.pause()) == ([], pytest.approx(3))


# --- the keeper of an engine ------------------------------------------------------------------


class Watched(FlakyStore):
    """Writes down when each renewal came."""

    def __init__(self, **more: Any) -> None:
        super().__init__(MemoryStore(), **more)
        self.renewed: list[tuple[float, list[str]]] = []

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        answers = super().renew(renewals)
        self.renewed.append((time.monotonic(), [renewal.id.key for renewal in renewals]))
        return answers


@pytest.fixture
def engine(events):
    engines: list[Once] = []

    def make(store: Any, **options: Any) -> Once:
        settings: Any = {"group": "billing", "lease": SHORT, "on_event": events.append, **options}
        engines.append(Once(store, **settings))
        return engines[-1]

    yield make
    for once in engines:
        once.close()


def test_the_keeper_renews_at_about_a_third_of_the_lease(engine):
    store, start = Watched(), time.monotonic()
    with engine(store).claim("k"):
        soon(lambda: len(store.renewed) == 3)
    first, second, third = (when - start for when, _ in store.renewed)
    assert first >= SHORT / 3
    assert second >= 2 * SHORT / 3
    assert third >= SHORT


def test_a_handler_slower_than_its_lease_is_not_taken_over(engine):
    store, other = Watched(), []
    once, rival = engine(store), engine(store)

    def slow(message):
        start = time.monotonic()
        soon(lambda: time.monotonic() > start + 2 * SHORT)
        other.append(rival.process(len, message, key="k"))
        return "paid"

    outcome = once.process(slow, "", key="k")
    assert [o.verdict for o in other] == [Verdict.IN_FLIGHT]
    assert (outcome.verdict, outcome.result, outcome.attempt) == (Verdict.PROCESSED, "paid", 1)


def test_every_message_of_a_batch_is_kept_until_its_turn(engine):
    store = Watched()
    once, rival = engine(store), engine(store)

    def slow(message):
        seen = len(store.renewed)
        soon(lambda: len(store.renewed) >= seen + 2)
        start = time.monotonic()
        soon(lambda: time.monotonic() > start + SHORT)
        return rival.process(len, {}, key="c").verdict

    outcomes = once.process_many(slow, [{"id": key} for key in "abc"], key="$.id")
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED] * 3
    assert [o.result for o in outcomes] == [Verdict.IN_FLIGHT] * 3
    renewed = len(store.renewed)
    soon(lambda: not once._keeper._watchlist)
    assert store.renewed[renewed:] == []


def test_fifty_claims_share_one_thread(engine):
    before, store = keepers(), Watched()
    once = engine(store)
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context(once.claim(str(number)))
        soon(lambda: {key for _, keys in store.renewed for key in keys} == set(map(str, range(50))))
        assert len(keepers() - before) == 1


def test_what_is_done_is_renewed_no_more(engine):
    store = Watched()
    once = engine(store)
    with once.claim("long"):
        with once.claim("short"):
            pass
        soon(lambda: len(store.renewed) == 2)
    assert [keys for _, keys in store.renewed] == [["long"], ["long"]]


def test_a_forgotten_claim_is_told_to_its_handler_and_its_completion_is_refused(engine, events):
    once = engine(Watched())
    with once.claim("k") as claim:
        assert claim.claim is not None
        once.forget("k", force=True)
        soon(lambda: claim.lost)
        with pytest.raises(LeaseLost):
            claim.claim.check()
        with pytest.raises(LeaseLost):
            claim.complete(5)
    assert events == [LeaseWasLost(claim.claim.id, 1)]
    assert once.peek("k") is None


def test_a_stale_owner_is_refused_and_the_new_one_is_not_disturbed(engine):
    """The store's clock says that the lease is over, whatever the owner thinks."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    once, rival = engine(store, lease=20), engine(store, lease=20)

    def stalled(message):
        clock.advance(21)
        with rival.claim("k") as taken:
            assert (taken.fresh, taken.attempt) == (True, 2)
            taken.complete("rival's")

    with pytest.raises(LeaseLost):
        once.process(stalled, "", key="k")
    assert once.process(len, "", key="k").result == "rival's"


def test_a_renewal_that_fails_is_told_and_tried_again_before_the_lease_ends(engine, events):
    store = Watched(plan={"renew": ["before", "after", "before"]})
    once = engine(store, lease=1)
    with once.claim("k") as claim:
        soon(lambda: store.renewed)
        assert not claim.lost
        claim.complete(5)
    failed = [event for event in events if isinstance(event, RenewalFailed)]
    assert [event.leases for event in failed] == [1, 1, 1]
    assert not [event for event in events if isinstance(event, LeaseWasLost)]


def test_a_lease_the_store_could_not_renew_is_lost_and_recovers_if_nobody_took_it(engine):
    away = threading.Event()
    away.set()
    store = Watched(plan=lambda verb, _: "before" if verb == "renew" and away.is_set() else "ok")
    once = engine(store)
    with once.claim("k") as claim:
        soon(lambda: claim.lost)
        away.clear()
        soon(lambda: not claim.lost)
        claim.complete(5)
    assert once.process(len, "", key="k").result == 5


class Odd(Watched):
    """Raises something that no store should raise, once."""

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        if not self.calls["renew"]:
            self._faults.calls["renew"] += 1
            raise RuntimeError("a driver's bug")
        return super().renew(renewals)


def test_the_keeper_survives_an_error_that_no_store_should_raise(engine, events, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    store = Odd()
    with engine(store).claim("k"):
        soon(lambda: store.renewed, 2 * SHORT)
    assert [type(event) for event in events][:1] == [RenewalFailed]


def test_an_idle_keeper_retires_and_the_next_claim_starts_another(engine):
    before, store = keepers(), Watched()
    once = engine(store, lease=0.03)
    with once.claim("a"):
        (first,) = keepers() - before
    soon(lambda: not first.is_alive())
    assert keepers() - before == set()
    with once.claim("b"):
        soon(lambda: store.renewed and store.renewed[-1][1] == ["b"])
        (second,) = keepers() - before
    assert second is not first


def test_a_claim_that_comes_while_the_keeper_retires_is_kept():
    """Between the keeper's look at an empty list and its end, another thread adds a claim."""
    store = Watched()
    keeper = Keeper(store, time.monotonic, lambda _: None)
    helpers: list[threading.Thread] = []

    class Racing(Watchlist):
        def __len__(self) -> int:
            seen = super().__len__()
            if not helpers:
                store.claim([ClaimRequest(RecordId("billing", "", "k"), b"k", 0.1, 100.0)])
                claim = claim_of("k", 0.1, time.monotonic())
                helpers.append(threading.Thread(target=keeper.watch, args=(claim,)))
                helpers[0].start()
                helpers[0].join(0.1)  # watch() may wait for the lock that _retire() holds
            return seen

    keeper._watchlist = Racing(time.monotonic, lambda _: None)
    keeper._thread = threading.current_thread()  # as if this were the keeper's thread
    retired = keeper._retire()
    helpers[0].join()
    if retired:
        soon(lambda: store.renewed, 1)
    keeper._thread = None if keeper._thread is threading.current_thread() else keeper._thread
    keeper.close()


def test_a_claim_whose_reply_took_most_of_its_lease_is_renewed_before_it_ends(engine):
    store = Watched()
    keeper = Keeper(store, time.monotonic, lambda _: None)
    now = time.monotonic()
    keeper.watch(claim_of("other", 3, now))  # the keeper sleeps for a second
    soon(lambda: not keeper._wake.is_set())
    time.sleep(0.05)  # it is asleep by now
    late = claim_of("late", 3, now - 2.6)
    keeper.watch(late)
    try:
        soon(lambda: any("late" in keys for _, keys in store.renewed), 0.3)
    finally:
        keeper.close()


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "stuck in a renewal"])
def test_close_is_bounded(engine, stuck):
    asked, go = threading.Event(), threading.Event()

    class Stuck(Watched):
        def renew(self, renewals):
            asked.set()
            go.wait(10)
            return super().renew(renewals)

    before, once = keepers(), engine(Stuck(), lease=0.03)
    try:
        with once.claim("k"):
            if stuck:
                assert asked.wait(10)
            start = time.monotonic()
            once.close()
            assert time.monotonic() - start < (2 if stuck else 0.5)
    finally:
        go.set()
    soon(lambda: not keepers() - before)


def test_a_closed_engine_renews_no_more_and_starts_no_keeper(engine):
    before, store = keepers(), Watched()
    once = engine(store, lease=0.03)
    with once.claim("k"):
        soon(lambda: store.renewed)
        once.close()
        renewed = len(store.renewed)
        time.sleep(0.1)  # three renewals long
        with pytest.raises(ConfigurationError, match="closed"):
            once.claim("j")
    assert (len(store.renewed), keepers() - before) == (renewed, set())


def test_a_listener_may_close_the_engine_from_the_keepers_own_thread(engine):
    before, closed = keepers(), threading.Event()

    def listener(event: Event) -> None:
        if isinstance(event, LeaseWasLost):
            once.close()
            closed.set()

    once: Once = engine(Watched(), on_event=listener)
    with once.claim("k") as claim:
        once.forget("k", force=True)
        assert closed.wait(10)
        with pytest.raises(LeaseLost):
            claim.complete()
    soon(lambda: not keepers() - before)


# --- the keeper of an async engine ------------------------------------------------------------


class AsyncWatched(AsyncFlakyStore):
    def __init__(self, **more: Any) -> None:
        super().__init__(AsyncMemoryStore(), **more)
        self.renewed: list[list[str]] = []

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        answers = await super().renew(renewals)
        self.renewed.append([renewal.id.key for renewal in renewals])
        return answers


def test_a_slow_task_is_not_taken_over():
    async def main() -> None:
        store = AsyncWatched()
        once, rival = (AsyncOnce(store, group="billing", lease=SHORT) for _ in range(2))

        async def slow(message: str) -> Any:
            await asyncio.sleep(2 * SHORT)
            return (await rival.process(slow, message, key="k")).verdict

        outcome = await once.process(slow, "", key="k")
        assert (outcome.verdict, outcome.result, outcome.attempt) == (
            Verdict.PROCESSED,
            Verdict.IN_FLIGHT,
            1,
        )
        assert 3 <= len(store.renewed) <= 8
        await once.close()
        await rival.close()

    asyncio.run(main())


def test_a_slow_plain_function_of_an_async_engine_is_not_taken_over():
    async def main() -> None:
        store = AsyncWatched()
        once = AsyncOnce(store, group="billing", lease=SHORT)
        outcome = await once.process(lambda _: soon(lambda: len(store.renewed) >= 4), "", key="k")
        assert outcome.attempt == 1
        await once.close()

    asyncio.run(main())


def test_fifty_claims_share_one_task():
    async def main() -> None:
        store = AsyncWatched()
        once = AsyncOnce(store, group="billing", lease=SHORT)
        before = asyncio.all_tasks()
        async with AsyncExitStack() as stack:
            for number in range(50):
                await stack.enter_async_context(once.claim(str(number)))
            await soon_async(lambda: store.renewed)
            assert len(asyncio.all_tasks() - before) <= 2  # the keeper, and the bell it waits for
            await soon_async(
                lambda: {key for keys in store.renewed for key in keys} == set(map(str, range(50)))
            )
        await once.close()

    asyncio.run(main())


def test_a_task_is_told_that_its_lease_is_lost(events):
    async def main() -> None:
        once = AsyncOnce(AsyncWatched(), group="billing", lease=SHORT, on_event=events.append)
        async with once.claim("k") as claim:
            await once.forget("k", force=True)
            await soon_async(lambda: claim.lost)
            with pytest.raises(LeaseLost):
                await claim.complete(5)
        await once.close()

    asyncio.run(main())
    assert [type(event) for event in events] == [LeaseWasLost]


def test_the_renewals_of_a_task_recover(events: list[Event]):
    async def main() -> None:
        store = AsyncWatched(plan={"renew": ["before", "after"]})
        once = AsyncOnce(store, group="billing", lease=1, on_event=events.append)
        async with once.claim("k") as claim:
            await soon_async(lambda: store.renewed)
            assert not claim.lost
        await once.close()

    asyncio.run(main())
    assert [type(event) for event in events][:2] == [RenewalFailed] * 2


def test_an_idle_async_keeper_retires_and_restarts():
    async def main() -> None:
        store = AsyncWatched()
        once = AsyncOnce(store, group="billing", lease=0.03)
        before = asyncio.all_tasks()
        for key in ("a", "b"):
            async with once.claim(key):
                await soon_async(lambda: store.renewed and store.renewed[-1] == [key])  # noqa: B023
            await soon_async(lambda: not asyncio.all_tasks() - before)
        await once.close()

    asyncio.run(main())


def test_closing_an_async_engine_does_not_wait_for_a_renewal_that_hangs():
    async def main() -> None:
        asked = asyncio.Event()

        class Stuck(AsyncWatched):
            async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
                asked.set()
                await asyncio.Event().wait()
                raise AssertionError

        once = AsyncOnce(Stuck(), group="billing", lease=0.03)
        async with once.claim("k"):
            await asked.wait()
            async with asyncio.timeout(2):
                await once.close()

    asyncio.run(main())


def test_an_unfinished_claim_ends_with_its_lease_when_its_engine_is_gone():
    """Without a keeper nobody renews: the message is delayed, not lost."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    dead = Once(store, group="billing", lease=20)
    dead.claim("k").__enter__()
    dead.close()
    with Once(store, group="billing", lease=20) as once:
        assert once.process(len, "", key="k").verdict is Verdict.IN_FLIGHT
        clock.advance(20)
        again = once.process(len, "", key="k")
        assert (again.verdict, again.attempt) == (Verdict.PROCESSED, 2)
        record = once.peek("k")
        assert record is not None
        assert record.state is State.PROCESSED
