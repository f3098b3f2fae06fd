"""Windows set in the store while engines run: from when on, who wins, and what if the store does not tell."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Self

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    InFlight,
    Once,
    Record,
    State,
    StoreUnavailable,
    Verdict,
    current_claim,
)
from onceonly.errors import NotRecorded
from onceonly.events import Event, FailedOpen, WindowsChanged
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import AsyncFlakyStore, FlakyStore, ManualClock
from onceonly.types import (
    ClaimRequest,
    ReadWindows,
    RecordId,
    Release,
    StoredWindow,
)
from onceonly.windows import REFRESH
from tests.forking import in_child
from tests.test_windows import (
    EVERY_PLACE,
    FOR_ALL_IN_STORE,
    FOR_TYPE_IN_CODE,
    FOR_TYPE_IN_STORE,
    winner,
)

LEASE, WINDOW = 10.0, 100.0
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365 * 86400.0
ID = RecordId("billing", "", "k")
DOWN = StoreUnavailable("down")
LOST_REPLY = StoreUnavailable("no reply", unknown=True)
PROCESSED, DUPLICATE = Verdict.PROCESSED, Verdict.DUPLICATE


def stored(kind: str | None, window: float | None, at: float = 0.0) -> StoredWindow:
    return StoredWindow("billing", kind, window, at)


class Waiting:
    """An async object whose methods, and what they give back, are called as if they were not async."""

    def __init__(self, inner: Any, run: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._plain(found) if inspect.ismethod(found) else found

    def _plain(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any, **kwargs: Any) -> Any:
            value = fn(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        def plain(*args: Any, **kwargs: Any) -> Any:
            value = self._run(called(*args, **kwargs))
            return Waiting(value, self._run) if type(value).__module__.startswith("onceonly.core") else value

        return plain

    def handler(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        guard = self._inner.handler(**options)
        return lambda fn: self._plain(guard(fn))

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._inner.__aexit__(*error))


class World:
    """A store, its clock, and workers with one engine each. What one worker does not do itself, another does
    through ``store``, which is never async."""

    def __init__(self, asynchronous: bool, path: Any, run: Callable[[Any], Any]) -> None:
        self.clock = ManualClock()
        self.asynchronous, self.path, self.run = asynchronous, path, run
        real: Any
        if asynchronous:
            real = AsyncSqliteStore(path, clock=self.clock) if path else AsyncMemoryStore(clock=self.clock)
        else:
            real = SqliteStore(path, clock=self.clock) if path else MemoryStore(clock=self.clock)
        self.real: Any = real
        self.store: Any = real._store if asynchronous else real
        self.counted: Any = None
        self.engines: list[Any] = []
        self.marked: dict[str, float] = {}  # by key: a bare mark on SQLite does not keep when it was made
        self.store.mark_seen, bind = self._noting(self.store.mark_seen), self.store.bind

        def noting_bind(connection: object) -> Any:
            bound = bind(connection)
            bound.mark_seen = self._noting(bound.mark_seen)
            return bound

        self.store.bind = noting_bind

    def _noting(self, mark_seen: Callable[..., list[bool]]) -> Callable[..., list[bool]]:
        def noted(marks: Any, **options: Any) -> list[bool]:
            new = mark_seen(marks, **options)
            self.marked |= {m.id.key: self.clock() for m, is_new in zip(marks, new, strict=True) if is_new}
            return new

        return noted

    def engine(self, plan: Any = None, **options: Any) -> Any:
        settings: Any = {"group": "billing", "lease": LEASE, "window": WINDOW, **options}
        self.counted = (AsyncFlakyStore if self.asynchronous else FlakyStore)(self.real, plan)
        if self.asynchronous:
            once: Any = Waiting(AsyncOnce(self.counted, clock=self.clock, **settings), self.run)
        else:
            once = Once(self.counted, clock=self.clock, **settings)
        self.engines.append(once)
        return once

    @property
    def asked(self) -> int:
        """How often the youngest engine asked for windows."""
        return int(self.counted.calls["windows"])

    def another_sets(self, window: float | None, kind: str | None = None, group: str = "billing") -> None:
        self.store.set_window(group, kind, window)

    def another_clears(self, kind: str | None = None) -> None:
        assert self.store.clear_window("billing", kind)

    def record(self, key: str = "k") -> Record | None:
        record: Record | None = self.store.peek([ID._replace(key=key)])[0]
        return record

    def kept(self, key: str = "k") -> float:
        """For how many seconds ``key`` is remembered, counted from its completion."""
        record = self.record(key)
        assert record is not None
        assert record.state.done
        assert record.expires_at is not None
        done_at = self.marked[key] if record.done_at is None else record.done_at
        return round(record.expires_at - done_at, 3)

    def close(self) -> None:
        for once in self.engines:
            once.close()
        if self.asynchronous:
            self.run(self.real.close())
        else:
            self.real.close()


def world_of(asynchronous: bool, path: Any) -> Iterator[World]:
    with asyncio.Runner() as runner:
        world = World(asynchronous, path, runner.run)
        yield world
        world.close()


@pytest.fixture(params=["memory", "sqlite", "async sqlite"])
def world(request, tmp_path):
    path = tmp_path / "once.db" if "sqlite" in request.param else None
    yield from world_of("async" in request.param, path)


@pytest.fixture(params=["sync", "async"])
def on_disk(request, tmp_path):
    yield from world_of(request.param == "async", tmp_path / "once.db")


# Each way to ask whether a message is to be handled: True if it was.


def by_process(once: Any, key: str, kind: str | None = None) -> bool:
    return bool(once.process(lambda _: None, {"id": key}, key=key, type=kind).verdict is PROCESSED)


def by_handler(once: Any, key: str, kind: str | None = None) -> bool:
    runs: list[Any] = []
    once.handler(key="$.id", type=kind)(runs.append)({"id": key})
    return bool(runs)


def by_process_many(once: Any, key: str, kind: str | None = None) -> bool:
    (outcome,) = once.process_many(lambda _: None, [{"id": key}], key="$.id", type=kind)
    if outcome.error is not None:
        raise outcome.error
    return bool(outcome.verdict is PROCESSED)


def by_claim(once: Any, key: str, kind: str | None = None) -> bool:
    with once.claim(key, type=kind) as claim:
        return bool(claim.fresh)


def by_first_time(once: Any, key: str, kind: str | None = None) -> bool:
    return bool(once.first_time(key, type=kind))


def by_first_time_many(once: Any, key: str, kind: str | None = None) -> bool:
    (new,) = once.first_time_many([key], type=kind)
    return bool(new)


Way = Callable[..., bool]
WAYS: list[Way] = [by_process, by_handler, by_process_many, by_claim, by_first_time, by_first_time_many]
LEASED = WAYS[:4]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request):
    return request.param


@pytest.fixture(params=LEASED, ids=lambda way: way.__name__)
def leased(request):
    return request.param


# --- from when on -----------------------------------------------------------------------------


def test_a_running_worker_follows_within_two_seconds_of_its_clock(world, way):
    once = world.engine()
    assert way(once, "before")
    world.another_sets(HOUR)
    world.clock.advance(1.75)
    way(once, "early")
    world.clock.advance(0.25)
    way(once, "late")
    assert [world.kept(key) for key in ("before", "early", "late")] == [WINDOW, WINDOW, HOUR]
    assert world.asked == 2


def test_a_worker_that_starts_later_knows_from_its_first_message(world, way):
    world.another_sets(HOUR)
    once = world.engine()
    way(once, "k")
    assert (world.kept(), world.asked) == (HOUR, 1)


def test_a_window_that_is_taken_back_counts_no_more_after_two_seconds(world, way):
    world.another_sets(HOUR)
    once = world.engine()
    way(once, "before")
    world.another_clears()
    way(once, "early")
    world.clock.advance(2)
    way(once, "late")
    assert [world.kept(key) for key in ("before", "early", "late")] == [HOUR, HOUR, WINDOW]


def test_the_store_is_asked_once_in_two_seconds_however_many_messages_come(world, way):
    once = world.engine()
    for round_number in range(3):
        for number in range(8):
            way(once, f"{round_number} {number}")
            world.clock.advance(0.25)
        assert world.asked == round_number + 1


def test_a_long_handler_costs_one_more_question_and_a_short_one_none(world):
    once = world.engine()
    once.process(lambda _: world.clock.advance(1.75), {}, key="short")
    assert world.asked == 1
    once.process(lambda _: world.clock.advance(3), {}, key="long")
    assert world.asked == 2
    once.process(lambda _: None, {}, key="k")
    assert world.asked == 2


def test_no_existing_record_changes_when_a_window_is_set(world, way):
    once = world.engine()
    way(once, "k")
    before = world.record()
    once.set_window("1s")
    assert not way(once, "k")
    assert world.record() == before
    world.clock.advance(WINDOW - 1)
    assert not way(once, "k")
    once.clear_window()
    assert world.record() == before
    world.clock.advance(2 + WINDOW / 8)
    assert way(once, "k")


def test_what_was_marked_under_the_new_window_is_forgotten_after_it(world, way):
    once = world.engine()
    once.set_window("20s")
    assert way(once, "k")
    world.clock.advance(19)
    assert not way(once, "k")
    world.clock.advance(1 + 20 / 8 + 0.1)
    assert way(once, "k")


def test_a_window_of_another_group_or_type_changes_nothing(world, way):
    once = world.engine()
    world.another_sets(HOUR, group="other")
    world.another_sets(HOUR, "other")
    world.another_sets(None, "click", group="billing2")
    way(once, "k")
    way(once, "c", "click")
    assert (world.kept("k"), world.kept("c")) == (WINDOW, WINDOW)


# --- set by the engine itself -----------------------------------------------------------------


def test_what_an_engine_sets_or_takes_back_counts_for_its_very_next_message(world, way):
    once = world.engine()
    way(once, "a")
    once.set_window("1h")
    way(once, "b")
    once.set_window("order")
    way(once, "c")
    assert once.clear_window() is True
    way(once, "d")
    assert once.clear_window() is False
    way(once, "e")
    assert [world.kept(key) for key in "abcde"] == [WINDOW, HOUR, 4 * HOUR, WINDOW, WINDOW]


def test_a_window_of_a_type_is_set_and_taken_back_by_itself(world, way):
    once = world.engine()
    once.set_window("1h")
    once.set_window(timedelta(minutes=5), type="click")
    way(once, "a", "click")
    way(once, "b", "view")
    assert once.clear_window(type="view") is False
    assert once.clear_window(type="click") is True
    way(once, "c", "click")
    assert once.clear_window() is True
    way(once, "d", "click")
    assert [world.kept(key) for key in "abcd"] == [300, HOUR, HOUR, WINDOW]


def test_the_windows_that_are_set_are_listed_for_this_group_only(world):
    once = world.engine()
    assert once.windows() == []
    world.another_sets(5.0, group="other")
    once.set_window(None, type="ping")
    once.set_window("1h")
    once.set_window("payment", type="pay")
    listed = [(w.group, w.type, w.window, w.updated_at) for w in once.windows()]
    now = pytest.approx(world.clock())
    assert listed == [
        ("billing", None, HOUR, now),
        ("billing", "pay", DAY, now),
        ("billing", "ping", None, now),
    ]


@pytest.mark.parametrize("bad", ["soon", 0, True, float("nan"), "101000w"], ids=repr)
def test_a_bad_window_is_refused_by_name_and_sets_nothing(world, bad):
    once = world.engine()
    with pytest.raises(ConfigurationError, match=r"^window="):
        once.set_window(bad) if not isinstance(bad, bool) else once.set_window("")
    with pytest.raises(ConfigurationError, match=r"^window\b"):
        once.set_window(bad, type="click")
    assert once.windows() == []


@pytest.mark.parametrize("bad", ["", 5, b"click", "x" * 513], ids=["empty", "number", "bytes", "long"])
def test_a_bad_type_is_refused_by_name_and_sets_nothing(world, bad):
    once = world.engine()
    once.set_window("1h")
    with pytest.raises(ConfigurationError, match=r"^type="):
        once.set_window("5m", type=bad)
    with pytest.raises(ConfigurationError, match=r"^type="):
        once.clear_window(type=bad)
    assert [w.type for w in once.windows()] == [None]


def test_a_closed_engine_sets_no_window(world):
    once = world.engine()
    once.close()
    for work in (lambda: once.set_window("1h"), once.clear_window, once.windows):
        with pytest.raises(ConfigurationError, match="closed"):
            work()
    assert world.store.windows([ReadWindows()]) == [[]]


# --- who wins, through the stores -------------------------------------------------------------


@pytest.mark.parametrize(("store_type", "store_group", "code_type", "typed"), EVERY_PLACE)
def test_the_precedence_holds_for_records(world, store_type, store_group, code_type, typed):
    once = world.engine(windows={"click": FOR_TYPE_IN_CODE} if code_type else {})
    world.another_sets(44.0, "other")
    if store_type:
        world.another_sets(FOR_TYPE_IN_STORE, "click")
    if store_group:
        world.another_sets(FOR_ALL_IN_STORE)
    kind = "click" if typed else None
    for key, way in enumerate(WAYS):
        way(once, str(key), kind)
    expected = winner(store_type, store_group, code_type, typed)
    assert [world.kept(str(key)) for key in range(len(WAYS))] == [expected] * len(WAYS)
    assert world.asked == 1


def test_a_window_of_a_type_counts_where_the_type_is_a_function_of_the_message(world):
    once = world.engine(windows={"click": "5m"}, type=lambda message: message["t"])
    for number, kind in enumerate(["click", "view", "click"]):
        once.process(lambda _: None, {"t": kind}, key=str(number))
    once.set_window("1h", type="view")
    once.process(lambda _: None, {"t": "view"}, key="3")
    with once.claim("4", message={"t": "view"}):
        pass
    assert [world.kept(key) for key in "01234"] == [300, WINDOW, 300, HOUR, HOUR]


def test_a_window_of_a_type_counts_where_the_engine_has_one_type(world, way):
    once = world.engine(windows={"click": "5m"}, type="click")
    if way is not by_handler:  # which was told that it has none
        way(once, "a")
        once.set_window("1h", type="click")
        way(once, "b")
        assert (world.kept("a"), world.kept("b")) == (300, HOUR)


def test_a_handlers_own_window_wins_over_the_engines_and_the_store_over_both(world):
    once = world.engine()
    plain, own = (once.handler(key="$.id", **o)(lambda m: None) for o in ({}, {"window": "1h"}))
    for number, set_to in enumerate([0, 40.0]):
        if set_to:
            once.set_window(set_to)
        plain({"id": f"plain {number}"})
        own({"id": f"own {number}"})
    once.clear_window()
    own({"id": "own 2"})
    assert [world.kept(f"plain {n}") for n in range(2)] == [WINDOW, 40.0]
    assert [world.kept(f"own {n}") for n in range(3)] == [HOUR, 40.0, HOUR]


def test_a_handlers_own_windows_by_type_lose_to_the_stores_only(world):
    once = world.engine(windows={"click": "5m"})
    own = once.handler(key="$.id", type="click", windows={"click": "1h"})(lambda m: None)
    own({"id": "a"})
    by_process(once, "b", "click")
    once.set_window(40.0)
    own({"id": "c"})
    once.set_window(50.0, type="click")
    own({"id": "d"})
    assert [world.kept(key) for key in "abcd"] == [HOUR, 300, 40, 50]


def test_a_handler_without_dedup_gets_it_from_the_store(world):
    once = world.engine()
    runs: list[Any] = []
    own = once.handler(key="$.id", window=None)(runs.append)
    own({"id": "k"})
    own({"id": "k"})
    assert (len(runs), world.record()) == (2, None)
    once.set_window("1h")
    own({"id": "k"})
    own({"id": "k"})
    assert (len(runs), world.kept()) == (3, HOUR)


# --- no dedup ---------------------------------------------------------------------------------


def test_none_in_the_store_runs_every_time_and_writes_nothing(world, way):
    once = world.engine()
    once.set_window(None)
    assert [way(once, "k") for _ in range(3)] == [True] * 3
    assert world.record() is None
    assert set(world.counted.calls) == {"set_window", "windows"}


def test_none_in_the_store_runs_what_is_done_and_once_it_is_taken_back_that_is_done_still(world, way):
    once = world.engine()
    assert [way(once, "k"), way(once, "k")] == [True, False]
    once.set_window(None)
    assert [way(once, "k"), way(once, "k")] == [True, True]
    once.clear_window()
    assert not way(once, "k")


def test_none_for_a_type_leaves_the_others_alone(world, way):
    once = world.engine()
    once.set_window(None, type="ping")
    assert [way(once, "p", "ping"), way(once, "p", "ping")] == [True, True]
    assert [way(once, "c", "click"), way(once, "c", "click")] == [True, False]


def test_none_in_code_is_no_dedup_until_the_store_says_so(world, way):
    once = world.engine(window=None)
    assert [way(once, "k"), way(once, "k")] == [True, True]
    world.another_sets(HOUR)
    assert way(once, "k")
    world.clock.advance(2)
    assert [way(once, "k"), way(once, "k")] == [True, False]
    assert world.kept() == HOUR


def test_none_for_a_type_in_code_is_overridden_by_the_stores_group(world, way):
    once = world.engine(windows={"ping": None})
    assert [way(once, "p", "ping"), way(once, "p", "ping")] == [True, True]
    once.set_window("1h")
    assert [way(once, "p", "ping"), way(once, "p", "ping")] == [True, False]


def test_without_dedup_a_handler_has_no_claim_and_what_it_raises_goes_on(world):
    once = world.engine()
    once.set_window(None)
    seen: list[Any] = []
    once.process(lambda _: seen.append(current_claim()), {}, key="k")
    assert seen == [None]

    def block() -> None:
        with once.claim("k") as claim:
            seen.append((claim.fresh, claim.claim, claim.fence))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        block()
    assert seen == [None, (True, None, None)]


def test_dedup_turned_off_while_a_handler_runs_leaves_its_record_done(world, leased):
    once = world.engine()

    def work(message: Any) -> None:
        world.another_sets(None)
        world.clock.advance(3)

    assert once.process(work, {}, key="k").verdict is PROCESSED
    assert world.kept() == WINDOW
    world.another_clears()
    world.clock.advance(2)
    assert not leased(once, "k")


def test_dedup_turned_on_while_a_handler_runs_without_writes_nothing_for_it(world):
    once = world.engine()
    once.set_window(None)

    def work(message: Any) -> None:
        world.another_sets(HOUR)
        world.clock.advance(3)

    once.process(work, {}, key="k")
    assert world.record() is None
    assert [by_process(once, "k"), by_process(once, "k")] == [True, False]


# --- between claim and completion -------------------------------------------------------------


@pytest.mark.parametrize("window", [40.0, HOUR])
def test_a_completion_is_kept_for_the_window_that_counts_then(world, window):
    once = world.engine()

    def work(message: Any) -> None:
        world.another_sets(window)
        world.clock.advance(2)

    once.process(work, {}, key="k")
    assert world.kept() == window


def test_a_change_that_is_younger_than_the_last_look_waits_for_the_next(world):
    once = world.engine()
    once.process(lambda _: world.another_sets(HOUR), {}, key="k")
    assert world.kept() == WINDOW


def test_what_the_engine_sets_in_a_block_counts_for_its_completion(world):
    once = world.engine()
    with once.claim("k") as claim:
        once.set_window("1h")
        claim.complete(5)
    assert world.kept() == HOUR
    with once.claim("j"):
        once.clear_window()
    assert world.kept("j") == WINDOW


def test_a_claim_by_hand_is_on_the_terms_of_when_it_is_entered(world):
    once = world.engine()
    by_process(once, "before")
    prepared = once.claim("k")
    world.another_sets(5.0)
    world.clock.advance(2)
    with prepared as claim:
        assert claim.claim.lease == 5.0
    assert world.kept() == 5.0


def test_a_window_shorter_than_the_lease_shortens_the_lease_too(world):
    once = world.engine()
    seen: list[Any] = []
    once.set_window(4)
    once.process(lambda _: seen.append((current_claim(), world.record())), {}, key="k")
    ((claim, record),) = seen
    assert (claim.lease, claim.window) == (4.0, 4.0)
    assert record.lease_until == pytest.approx(world.clock() + 4)
    assert world.kept() == 4.0
    once.clear_window()
    once.process(lambda _: seen.append((current_claim(), None)), {}, key="j")
    assert (seen[1][0].lease, world.kept("j")) == (LEASE, WINDOW)


def test_a_window_of_a_type_in_code_shortens_the_lease_too(world):
    once = world.engine(windows={"click": 3})
    with once.claim("k", type="click") as claim:
        assert claim.claim.lease == 3.0
    with once.claim("j") as claim:
        assert claim.claim.lease == LEASE


def test_a_claim_under_a_window_that_became_shorter_is_in_flight_until_its_lease_ends(world, leased):
    """Not until its window ends: two would run at once."""
    once = world.engine()
    with once.claim("k"):
        world.another_sets(1.0)
        world.clock.advance(LEASE - 1)
        other = world.engine()
        if leased is by_process or leased is by_process_many:
            assert not leased(other, "k")
        else:
            with pytest.raises(InFlight):
                leased(other, "k")
        assert world.store.purge() == 0
    assert world.kept() == LEASE


def test_a_lost_reply_of_a_completion_under_a_shortened_window_finds_its_record_again(world):
    """The handler takes long, the window becomes shorter than the lease, the completion is written but its
    reply lost, the new window ends, a purge comes by: sent again, the completion still meets its record."""

    def plan(verb: str, number: int) -> str:
        if verb == "complete" and number == 1:  # sent again
            world.clock.advance(5)
            world.store.purge()
        return "after" if verb == "complete" and number == 0 else "ok"

    def work(message: Any) -> str:
        world.another_sets(1.0)
        world.clock.advance(4)
        return "paid"

    once = world.engine(plan)
    outcome = once.process(work, {}, key="k")
    assert (outcome.verdict, outcome.result) == (PROCESSED, "paid")
    assert world.counted.calls["complete"] == 2
    assert once.process(work, {}, key="k").verdict is DUPLICATE


def test_a_lost_reply_of_a_completion_after_dedup_was_turned_off_finds_its_record_again(world):
    def plan(verb: str, number: int) -> str:
        if verb == "complete" and number == 1:
            world.clock.advance(5)
            world.store.purge()
        return "after" if verb == "complete" and number == 0 else "ok"

    def work(message: Any) -> None:
        world.another_sets(None)
        world.clock.advance(4)

    once = world.engine(plan)
    assert once.process(work, {}, key="k").verdict is PROCESSED
    assert world.kept() == WINDOW


def test_a_stored_failure_is_kept_for_the_window_of_its_end(world):
    once = world.engine(store_failure=lambda error: True)

    def work(message: Any) -> None:
        world.another_sets(40.0)
        world.clock.advance(3)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        once.process(work, {}, key="k")
    record = world.record()
    assert (record.state, world.kept()) == (State.FAILED, 40.0)


def test_a_message_that_waited_for_another_worker_is_kept_for_the_window_of_its_end(world):
    once = world.engine(on_in_flight="wait")
    request = ClaimRequest(ID, b"another worker", LEASE, WINDOW)
    world.store.claim([request])

    def plan(verb: str, number: int) -> str:
        if verb == "claim" and number == 1:  # while it waits
            world.another_sets(40.0)
            world.clock.advance(3)
            world.store.release([Release(ID, b"another worker", WINDOW)])
        return "ok"

    once = world.engine(plan, on_in_flight="wait")
    assert by_process(once, "k")
    assert world.kept() == 40.0


# --- batches ----------------------------------------------------------------------------------


def test_types_in_one_batch_have_their_own_windows_and_are_asked_for_once(world):
    once = world.engine(windows={"order": "order", "click": "5m"}, type=lambda message: message["t"])
    world.another_sets(40.0, "click")
    world.another_sets(None, "ping")
    runs: list[Any] = []
    batch = [
        *[{"id": "c", "t": "click"}, {"id": "o", "t": "order"}, {"id": "p", "t": "ping"}],
        *[{"id": "v", "t": "view"}, {"id": "p", "t": "ping"}, {"id": "c", "t": "click"}],
    ]
    outcomes = once.process_many(runs.append, batch, key="$.id")
    assert [outcome.verdict for outcome in outcomes] == [PROCESSED] * 5 + [DUPLICATE]
    assert sorted(message["id"] for message in runs) == ["c", "o", "p", "p", "v"]
    assert [world.kept(key) for key in "cov"] == [40.0, 4 * HOUR, WINDOW]
    assert world.record("p") is None
    assert world.counted.calls == {"windows": 1, "claim": 1, "complete": 1}
    assert world.counted.items["claim"] == 3
    world.clock.advance(2)
    outcomes = once.process_many(runs.append, batch, key="$.id")
    assert [outcome.verdict for outcome in outcomes].count(PROCESSED) == 2
    assert world.asked == 2


def test_a_batch_follows_a_window_that_was_set_before_it(world):
    once = world.engine()
    by_process(once, "before")
    world.another_sets(HOUR)
    world.clock.advance(2)
    once.process_many(lambda _: None, list("abc"), key=lambda message: message)
    assert [world.kept(key) for key in "abc"] == [HOUR] * 3
    assert world.asked == 2


def test_equal_keys_of_a_batch_all_run_where_the_store_turned_dedup_off(world):
    once = world.engine()
    runs: list[Any] = []
    by_process(once, "before")
    world.another_sets(None)
    world.clock.advance(2)
    outcomes = once.process_many(runs.append, list("kkk"), key=lambda message: message)
    assert ([outcome.verdict for outcome in outcomes], runs) == ([PROCESSED] * 3, list("kkk"))


def test_equal_keys_of_a_batch_run_once_where_the_store_turned_dedup_on(world):
    once = world.engine(window=None)
    runs: list[Any] = []
    once.process_many(runs.append, list("kk"), key=lambda message: message)
    world.another_sets(HOUR)
    world.clock.advance(2)
    outcomes = once.process_many(runs.append, list("kkk"), key=lambda message: message)
    assert [outcome.verdict for outcome in outcomes] == [PROCESSED, DUPLICATE, DUPLICATE]
    assert runs == list("kkk")


def test_an_empty_batch_asks_nothing(world):
    once = world.engine()
    assert once.process_many(lambda _: None, [], key="$.id") == []
    assert world.counted.calls == {}


def test_many_marks_ask_once_and_have_the_window_of_their_type(world):
    once = world.engine(windows={"click": "5m"})
    world.another_sets(40.0, "view")
    assert once.first_time_many(list("abc"), type="click") == [True] * 3
    assert once.first_time_many(list("def"), type="view") == [True] * 3
    assert [world.kept(key) for key in "abcdef"] == [300.0] * 3 + [40.0] * 3
    assert world.counted.calls == {"windows": 1, "mark_seen": 2}


# --- the store does not tell ------------------------------------------------------------------


def windows_fail(fault: str, first: int = 0) -> Callable[[str, int], str]:
    """Every question for windows from the ``first`` on."""
    return lambda verb, number: fault if verb == "windows" and number >= first else "ok"


FAULTS = ["before", "after"]  # the question is lost, the answer is lost


@pytest.mark.parametrize("fault", FAULTS)
def test_while_no_worker_was_told_the_windows_nothing_runs_and_nothing_is_written(world, way, fault):
    once = world.engine(windows_fail(fault))
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refused:
            way(once, "k")
        assert not isinstance(refused.value, NotRecorded)
    assert set(world.counted.calls) == {"windows"}
    assert world.record() is None


def test_a_handler_does_not_run_while_the_windows_are_not_known(world):
    once = world.engine(windows_fail("before"))
    runs: list[Any] = []
    with pytest.raises(StoreUnavailable):
        once.process(runs.append, {}, key="k")
    outcomes = once.process_many(runs.append, [{"id": "a"}, {"id": "b"}], key="$.id")
    assert [(o.verdict, type(o.error)) for o in outcomes] == [(Verdict.FAILED, StoreUnavailable)] * 2
    assert runs == []


def test_once_the_store_tells_work_goes_on(world, way):
    once = world.engine(lambda verb, number: "after" if verb == "windows" and number < 2 else "ok")
    world.another_sets(HOUR)
    for _ in range(4):
        try:
            assert way(once, "k")
        except StoreUnavailable:
            continue
        break
    assert world.kept() == HOUR


@pytest.mark.parametrize("fault", FAULTS)
def test_while_the_store_does_not_tell_what_was_known_counts(world, way, fault):
    world.another_sets(HOUR)
    once = world.engine(windows_fail(fault, first=1))
    way(once, "a")
    world.another_sets(40.0)
    world.clock.advance(2)
    way(once, "b")
    world.clock.advance(1000)
    way(once, "c")
    assert [world.kept(key) for key in "abc"] == [HOUR] * 3


def test_a_store_that_does_not_tell_is_not_asked_more_often(world, way):
    once = world.engine(windows_fail("before", first=1))
    for number in range(17):
        way(once, f"{number}")
        world.clock.advance(0.5)
    assert world.asked == 5


def test_once_it_tells_again_its_windows_count_within_two_seconds(world, way):
    once = world.engine(lambda verb, number: "before" if verb == "windows" and number in (1, 2) else "ok")
    way(once, "a")
    world.another_sets(HOUR)
    for key in "bcd":
        world.clock.advance(2)
        way(once, key)
    assert [world.kept(key) for key in "abcd"] == [WINDOW, WINDOW, WINDOW, HOUR]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_completion_is_written_though_the_store_does_not_tell_the_windows(world, fault):
    once = world.engine(windows_fail(fault, first=1))
    assert once.process(lambda _: world.clock.advance(3), {}, key="k").verdict is PROCESSED
    assert (world.kept(), world.asked) == (WINDOW, 2)


def test_none_that_was_known_counts_while_the_store_is_away(world, way):
    world.another_sets(None)
    once = world.engine(lambda verb, number: "ok" if (verb, number) == ("windows", 0) else "before")
    for _ in range(3):
        assert way(once, "k")
        world.clock.advance(2)


def test_failing_open_runs_without_protection_and_is_counted(world, way):
    events: list[Event] = []
    once = world.engine(windows_fail("before"), on_store_error="open", on_event=events.append)
    assert [way(once, "k"), way(once, "k")] == [True, True]
    assert once.stats().failed_open == 2
    assert [event.id for event in events if isinstance(event, FailedOpen)] == [ID, ID]
    assert world.record() is None


def test_failing_open_is_counted_for_each_message_of_a_batch(world):
    once = world.engine(windows_fail("after"), on_store_error="open")
    runs: list[Any] = []
    outcomes = once.process_many(runs.append, list("abc"), key=lambda message: message)
    assert ([outcome.verdict for outcome in outcomes], runs) == ([PROCESSED] * 3, list("abc"))
    assert once.first_time_many(list("de")) == [True, True]
    assert once.stats().failed_open == 5


def test_once_the_windows_are_known_failing_open_is_not_needed(world, way):
    once = world.engine(windows_fail("before", first=1), on_store_error="open")
    way(once, "a")
    world.clock.advance(2)
    assert [way(once, "k"), way(once, "k")] == [True, False]
    assert once.stats().failed_open == 0


def test_none_in_code_needs_no_store(world, way):
    once = world.engine(lambda verb, number: "before", window=None)
    assert [way(once, "k"), way(once, "k")] == [True, True]
    assert set(world.counted.calls) == {"windows"}


def test_none_in_code_with_a_window_for_a_type_needs_the_store_for_that_type_only(world, way):
    once = world.engine(lambda verb, number: "before", window=None, windows={"pay": "24h"})
    assert way(once, "c", "click")
    with pytest.raises(StoreUnavailable):
        way(once, "p", "pay")


def test_none_in_code_fails_closed_where_a_window_in_the_store_was_known(world, way):
    once = world.engine(lambda verb, number: "before" if number else "ok", window=None)
    world.another_sets(HOUR)
    assert way(once, "a")
    world.clock.advance(2)
    with pytest.raises(StoreUnavailable):
        way(once, "k")


@pytest.mark.parametrize("verb", ["set_window", "clear_window"])
def test_a_window_that_could_not_be_set_is_an_error_and_counts_nowhere(world, verb):
    once = world.engine({verb: ["before"]})
    by_process(once, "a")
    with pytest.raises(StoreUnavailable):
        once.set_window("1h") if verb == "set_window" else once.clear_window()
    by_process(once, "b")
    assert world.kept("b") == WINDOW


# --- what is told -----------------------------------------------------------------------------


def changes(events: list[Event]) -> list[Any]:
    return [event.windows for event in events if isinstance(event, WindowsChanged)]


def test_each_change_is_told_once(world, way):
    events: list[Event] = []
    once = world.engine(on_event=events.append)
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: world.another_sets(HOUR),
        lambda: world.another_sets(HOUR),  # anew, the same
        lambda: world.another_sets(40.0, "click"),
        lambda: world.another_sets(None),
        lambda: (world.another_clears(), world.another_clears("click")),
        lambda: (world.another_sets(HOUR), world.another_clears()),  # back before anybody looked
    ]
    for number, step in enumerate(steps):
        step()
        for again in range(3):
            world.clock.advance(2)
            way(once, f"{number} {again}")
    assert changes(events) == [
        {None: HOUR},
        {None: HOUR, "click": 40.0},
        {None: None, "click": 40.0},
        {},
    ]
    assert {event.group for event in events if isinstance(event, WindowsChanged)} == {"billing"}


def test_what_the_engine_sets_itself_is_told_once_with_the_next_message(world, way):
    events: list[Event] = []
    once = world.engine(on_event=events.append)
    once.set_window("1h")
    assert changes(events) == []
    way(once, "a")
    way(once, "b")
    once.set_window("1h")
    way(once, "c")
    assert changes(events) == [{None: HOUR}]


def test_what_was_told_is_not_changed_later(world):
    events: list[Event] = []
    once = world.engine(on_event=events.append)
    once.set_window("1h")
    by_process(once, "a")
    once.set_window("2h")
    by_process(once, "b")
    assert changes(events) == [{None: HOUR}, {None: 2 * HOUR}]


def test_each_worker_is_told_itself(world):
    events: list[Event] = []
    workers = [world.engine(on_event=events.append) for _ in range(2)]
    world.another_sets(HOUR)
    for number in range(4):
        by_process(workers[number % 2], str(number))
    assert changes(events) == [{None: HOUR}] * 2


def test_a_change_met_at_the_end_of_a_handler_is_told_once(world):
    events: list[Event] = []
    once = world.engine(on_event=events.append)

    def work(message: Any) -> None:
        world.another_sets(HOUR)
        world.clock.advance(3)

    once.process(work, {}, key="k")
    world.clock.advance(3)
    by_process(once, "j")
    assert changes(events) == [{None: HOUR}]


def test_a_lost_answer_tells_nothing_and_the_change_is_told_when_it_is_known(world):
    events: list[Event] = []
    once = world.engine({"windows": ["ok", "after", "ok"]}, on_event=events.append)
    by_process(once, "a")
    world.another_sets(HOUR)
    world.clock.advance(2)
    by_process(once, "b")
    assert changes(events) == []
    world.clock.advance(2)
    by_process(once, "c")
    assert changes(events) == [{None: HOUR}]


def test_a_listener_that_raises_costs_no_message_and_no_window(world, way):
    def listener(event: Event) -> None:
        raise ValueError("no")

    once = world.engine(on_event=listener)
    once.set_window("1h")
    assert way(once, "k")
    assert world.kept() == HOUR


# --- threads and tasks ------------------------------------------------------------------------

CROWD = [f"key {number}" for number in range(20)]


def in_threads(work: Callable[[str], Any]) -> list[Any]:
    answers: dict[str, Any] = {}
    barrier = threading.Barrier(len(CROWD))

    def one(key: str) -> None:
        barrier.wait(10)
        answers[key] = work(key)

    threads = [threading.Thread(target=one, args=(key,)) for key in CROWD]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [answers[key] for key in CROWD]


@pytest.mark.parametrize("mark", [False, True], ids=["process", "first_time"])
def test_threads_that_start_together_all_know_and_ask_together(tmp_path, mark):
    """Nobody goes on before he was told; they share their questions."""
    store, events = MemoryStore(), list[Event]()
    store.set_window("billing", None, HOUR)
    counted = FlakyStore(store, delay=0.02)
    with Once(counted, group="billing", window=WINDOW, on_event=events.append) as once:
        in_threads(lambda key: once.first_time(key) if mark else by_process(once, key))
    records = store.peek([ID._replace(key=key) for key in CROWD])
    left = {round(r.expires_at - r.done_at, 3) for r in records if r and r.expires_at and r.done_at}
    store.close()
    assert (left, changes(events)) == ({HOUR}, [{None: HOUR}])
    assert counted.calls["windows"] <= len(CROWD) // 2


def test_threads_of_a_running_worker_share_a_question(tmp_path):
    clock = ManualClock()
    counted = FlakyStore(MemoryStore(clock=clock), delay=0.02)
    with Once(counted, group="billing", clock=clock) as once:
        by_process(once, "before")
        for _ in range(3):
            clock.advance(2)
            in_threads(once.first_time)
        in_threads(once.first_time)
    assert 4 <= counted.calls["windows"] <= 1 + 3 * len(CROWD) // 4


@pytest.mark.parametrize("mark", [False, True], ids=["process", "first_time"])
def test_tasks_that_start_together_all_know_and_ask_in_one_call(mark):
    clock, events = ManualClock(), list[Event]()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock), delay=0.005)
    once = AsyncOnce(counted, group="billing", window=WINDOW, clock=clock, on_event=events.append)

    async def one(key: str) -> Any:
        if mark:
            return await once.first_time(key)
        return await once.process(lambda _: None, {}, key=key)

    async def crowd() -> set[float]:
        await counted.set_window("billing", None, HOUR)
        await asyncio.gather(*map(one, CROWD))
        records = await counted.peek([ID._replace(key=key) for key in CROWD])
        await once.close()
        return {round(r.expires_at - r.done_at, 3) for r in records if r and r.expires_at and r.done_at}

    assert asyncio.run(crowd()) == {HOUR}
    assert counted.calls["windows"] == 1
    assert changes(events) == [{None: HOUR}]


def test_tasks_of_a_running_worker_ask_in_one_call_and_each_change_is_told_once():
    clock, events = ManualClock(), list[Event]()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock))
    once = AsyncOnce(counted, group="billing", clock=clock, on_event=events.append)

    async def crowd() -> None:
        await once.first_time("before")
        for number in range(1, 4):
            await counted.set_window("billing", None, number * HOUR)
            clock.advance(2)
            await asyncio.gather(*(once.first_time(f"{number} {key}") for key in CROWD))
            assert counted.calls["windows"] == 1 + number
        await once.close()

    asyncio.run(crowd())
    assert changes(events) == [{None: number * HOUR} for number in range(1, 4)]


def test_a_task_that_is_cancelled_while_it_asks_keeps_nobody_from_being_told():
    clock = ManualClock()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock), delay=0.01)
    once = AsyncOnce(counted, group="billing", clock=clock)

    async def crowd() -> list[Any]:
        await counted.set_window("billing", None, None)
        first = asyncio.ensure_future(once.first_time("k"))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(once.first_time("k")) for _ in range(3)]
        await asyncio.sleep(0.002)
        first.cancel()
        await asyncio.wait([first])
        answers = await asyncio.gather(*others)
        await once.close()
        return [first.cancelled(), answers]

    assert asyncio.run(crowd()) == [True, [True] * 3]
    assert counted.calls["mark_seen"] == 0


def test_a_task_that_is_cancelled_while_its_completion_asks_is_completed_under_the_window_of_now():
    clock = ManualClock()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock), delay=0.01)
    once = AsyncOnce(counted, group="billing", clock=clock)
    ended = asyncio.Event()

    async def work(message: Any) -> int:
        await counted.set_window("billing", None, HOUR)
        clock.advance(3)
        ended.set()
        return 5

    async def cancelled() -> Record | None:
        task = asyncio.ensure_future(once.process(work, {}, key="k"))
        await ended.wait()
        for _ in range(3):  # it has begun to ask
            await asyncio.sleep(0)
        assert counted.calls["complete"] == 0
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await once.close()
        return (await counted.peek([ID]))[0]

    record = asyncio.run(cancelled())
    assert record is not None
    assert (record.state, record.result) == (State.PROCESSED, b"5")
    assert record.expires_at == pytest.approx(clock() + HOUR)
    assert counted.calls["windows"] == 2


def test_one_async_engine_knows_in_every_event_loop_what_it_was_told_in_one():
    clock = ManualClock()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock))
    once = AsyncOnce(counted, group="billing", clock=clock)
    for _ in range(3):
        assert asyncio.run(once.first_time(f"{counted.calls['mark_seen']}"))
    assert counted.calls["windows"] == 1
    asyncio.run(once.set_window(None))
    assert [asyncio.run(once.first_time("0")) for _ in range(2)] == [True, True]
    assert counted.calls["windows"] == 2
    asyncio.run(once.close())


# --- inside the caller's transaction ----------------------------------------------------------


@pytest.fixture
def inbox(on_disk):
    """An engine, and a connection of the application's own to the same file."""
    connection = sqlite3.connect(on_disk.path, timeout=0.1)
    yield SimpleNamespace(world=on_disk, connection=connection)
    connection.close()


def bound_first_time(bound: Any, key: str, kind: str | None = None) -> bool:
    return bool(bound.first_time(key, type=kind))


def bound_first_time_many(bound: Any, key: str, kind: str | None = None) -> bool:
    (new,) = bound.first_time_many([key], type=kind)
    return bool(new)


def bound_process(bound: Any, key: str, kind: str | None = None) -> bool:
    return bool(bound.process(lambda _: 5, {}, key=key, type=kind).verdict is PROCESSED)


@pytest.fixture(params=[bound_first_time, bound_first_time_many, bound_process], ids=lambda way: way.__name__)
def bound_way(request):
    return request.param


def in_transaction(inbox: Any, once: Any, bound_way: Way, *args: Any) -> bool:
    with inbox.connection:
        return bound_way(once.bind(inbox.connection), *args)


def test_bound_records_follow_the_store_too_and_ask_on_the_callers_connection(inbox, bound_way):
    world = inbox.world
    once = world.engine(windows={"click": "5m"})
    assert in_transaction(inbox, once, bound_way, "a")
    assert in_transaction(inbox, once, bound_way, "b", "click")
    world.another_sets(HOUR)
    assert in_transaction(inbox, once, bound_way, "c")
    world.clock.advance(2)
    assert in_transaction(inbox, once, bound_way, "d", "click")
    assert not in_transaction(inbox, once, bound_way, "d", "click")
    once.set_window("2h", type="click")
    assert in_transaction(inbox, once, bound_way, "e", "click")
    assert [world.kept(key) for key in "abcde"] == [WINDOW, 300.0, WINDOW, HOUR, 2 * HOUR]
    assert world.asked == 0


def test_none_in_the_store_is_no_dedup_for_bound_ones_too(inbox, bound_way):
    world = inbox.world
    once = world.engine()
    once.set_window(None, type="ping")
    assert [in_transaction(inbox, once, bound_way, "p", "ping") for _ in range(2)] == [True, True]
    assert [in_transaction(inbox, once, bound_way, "k") for _ in range(2)] == [True, False]
    assert world.record("p") is None


def test_none_in_code_is_overridden_for_bound_ones_too(inbox, bound_way):
    world = inbox.world
    once = world.engine(window=None)
    assert [in_transaction(inbox, once, bound_way, "k") for _ in range(2)] == [True, True]
    once.set_window("1h")
    assert [in_transaction(inbox, once, bound_way, "k") for _ in range(2)] == [True, False]
    assert world.kept() == HOUR


def set_by_hand(connection: sqlite3.Connection, window: float | None) -> None:
    """In a transaction of its own that nobody has committed yet."""
    connection.execute("INSERT INTO onceonly_windows VALUES ('billing', '', ?, 0)", (window,))


def test_a_window_that_is_set_elsewhere_and_not_committed_is_not_seen(inbox, bound_way):
    """Seen, this one would let every message run, without a word."""
    world = inbox.world
    once = world.engine()
    other = sqlite3.connect(world.path)
    set_by_hand(other, None)
    with pytest.raises(StoreUnavailable):  # the other one writes
        in_transaction(inbox, once, bound_way, "k")
    other.rollback()
    other.close()
    assert [in_transaction(inbox, once, bound_way, "k") for _ in range(2)] == [True, False]
    assert world.kept() == WINDOW


def test_an_engine_does_not_see_a_window_that_is_not_committed(on_disk, way):
    other = sqlite3.connect(on_disk.path)
    set_by_hand(other, 5.0)
    assert on_disk.store.windows([ReadWindows("billing")]) == [[]]
    other.rollback()
    other.close()
    once = on_disk.engine()
    assert way(once, "k")
    assert on_disk.kept() == WINDOW


def test_the_callers_connection_is_the_one_that_is_asked(inbox, bound_way):
    world = inbox.world
    once = world.engine()
    with inbox.connection:
        set_by_hand(inbox.connection, 40.0)
        assert bound_way(once.bind(inbox.connection), "k")
        assert world.store.windows([ReadWindows("billing")]) == [[]]
    assert world.kept() == 40.0


def test_a_mark_under_a_set_window_rolls_back_with_the_callers_work(inbox, bound_way):
    world = inbox.world
    once = world.engine()
    once.set_window("1h")
    assert bound_way(once.bind(inbox.connection), "k")
    inbox.connection.rollback()
    assert world.record() is None
    assert in_transaction(inbox, once, bound_way, "k")
    assert world.kept() == HOUR


@pytest.mark.parametrize(("window", "kept"), [(HOUR, HOUR), (40.0, 40.0), (1.0, LEASE), (None, WINDOW)])
def test_a_claim_completed_in_the_callers_transaction_has_the_window_of_now(inbox, window, kept):
    world = inbox.world
    once = world.engine()
    with once.claim("k") as claim:
        world.another_sets(window)
        world.clock.advance(3)
        with inbox.connection:
            once.bind(inbox.connection).complete(claim, 5)
    assert world.kept() == kept
    assert world.asked == 1


def test_a_typed_claim_completed_in_the_callers_transaction_has_the_window_of_its_type(inbox):
    world = inbox.world
    once = world.engine(windows={"click": "5m"})
    for key, kind in (("a", "click"), ("b", "view"), ("c", "click")):
        if key == "c":
            once.set_window(40, type="click")
        with once.claim(key, type=kind) as claim, inbox.connection:
            once.bind(inbox.connection).complete(claim)
    assert [world.kept(key) for key in "abc"] == [300.0, WINDOW, 40.0]


def test_a_bound_engine_that_knows_nothing_fails_closed_also_where_engines_fail_open(inbox, bound_way):
    world = inbox.world
    once = world.engine(on_store_error="open")
    other = sqlite3.connect(world.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        in_transaction(inbox, once, bound_way, "k")
    other.rollback()
    other.close()
    assert world.record() is None
    assert once.stats().failed_open == 0


def test_the_change_is_told_where_a_bound_one_meets_it(inbox, bound_way):
    events: list[Event] = []
    once = inbox.world.engine(on_event=events.append)
    inbox.world.another_sets(HOUR)
    in_transaction(inbox, once, bound_way, "a")
    by_process(once, "b")
    assert changes(events) == [{None: HOUR}]


# --- processes --------------------------------------------------------------------------------


@pytest.fixture
def forking(tmp_path):
    """An engine with a clock that stands still; a child advances its own copy."""
    clock = ManualClock()
    counted = FlakyStore(SqliteStore(tmp_path / "once.db", clock=clock))
    once = Once(counted, group="billing", window=WINDOW, lease=LEASE, clock=clock)

    def kept(key: str) -> float:
        once.process(lambda _: None, {}, key=key)
        record = once.peek(key)
        assert record is not None
        assert record.expires_at is not None
        assert record.done_at is not None
        return round(record.expires_at - record.done_at, 3)

    yield SimpleNamespace(once=once, clock=clock, counted=counted, kept=kept)
    once.close()
    counted.close()


def test_a_child_follows_the_store_by_its_own_clock(forking):
    assert forking.kept("before") == WINDOW
    forking.counted.set_window("billing", None, HOUR)  # by another worker

    def work() -> list[Any]:
        early = forking.kept("early")
        forking.clock.advance(2)
        return [early, forking.kept("late"), forking.counted.calls["windows"]]

    assert in_child(work) == [WINDOW, HOUR, 2]
    assert forking.kept("parent's") == WINDOW
    forking.clock.advance(2)
    assert forking.kept("parent's own") == HOUR


def test_a_child_of_a_parent_that_was_told_nothing_asks_itself(forking):
    forking.counted.set_window("billing", None, HOUR)
    assert in_child(lambda: [forking.kept("child's"), forking.counted.calls["windows"]]) == [HOUR, 1]
    assert forking.counted.calls["windows"] == 0


def test_what_a_child_sets_counts_for_it_at_once_and_for_its_parent_within_two_seconds(forking):
    forking.kept("before")

    def work() -> float:
        forking.once.set_window("1h")
        return float(forking.kept("child's"))

    assert in_child(work) == HOUR
    assert forking.kept("early") == WINDOW
    forking.clock.advance(2)
    assert forking.kept("late") == HOUR


WORKER = """
import itertools, signal, sys, time
from onceonly import Once

signal.alarm(20)
with Once(sys.argv[1], group="billing", window="24h") as once:
    for number in itertools.count():
        started = time.monotonic()
        once.process(lambda message: None, {}, key=f"k{number}")
        record = once.peek(f"k{number}")
        print(started, round(record.expires_at - record.done_at, 3), flush=True)
        time.sleep(0.02)
"""


def test_a_window_set_by_one_process_counts_for_another_that_is_running(tmp_path):
    """By the monotonic clock, which all processes of a host share: whatever starts two seconds after the
    window was set has it, however slow this machine is."""
    url = f"sqlite:///{tmp_path / 'once.db'}"
    with (
        Once(url, group="billing", window="24h") as once,
        subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE, text=True) as worker,
    ):
        assert worker.stdout is not None
        try:
            old = [float(worker.stdout.readline().split()[1]) for _ in range(3)]
            sent = time.monotonic()
            once.set_window("1h")
            set_at = time.monotonic()
            seen: list[tuple[float, float]] = []
            while not seen or seen[-1][0] < set_at + REFRESH + 0.2:
                started, kept = worker.stdout.readline().split()
                seen.append((float(started), float(kept)))
        finally:
            worker.kill()
        first = once.peek("k0")
        assert first is not None
        assert first.expires_at is not None
        assert first.done_at is not None
        assert round(first.expires_at - first.done_at, 3) == DAY
    assert old == [DAY] * 3
    assert {kept for started, kept in seen if started >= set_at + REFRESH} == {HOUR}
    windows = [kept for started, kept in seen if started >= sent]
    assert windows == sorted(windows, reverse=True), "once it followed it never went back"


# --- together, late, and lost ---------------------------------------------------------------------


def test_a_handlers_own_window_counts_also_when_it_is_completed_in_the_callers_transaction(tmp_path):
    store = SqliteStore(tmp_path / "once.db")
    connection = sqlite3.connect(tmp_path / "once.db")
    with Once(store, group="billing", window="24h") as once:

        @once.handler(key="$.id", window="7d")
        def work(message: Any) -> None:
            with connection:
                claim = current_claim()
                assert claim is not None
                once.bind(connection).complete(claim, 5)

        work({"id": "k"})
        record = once.peek("k")
    connection.close()
    store.close()
    assert record is not None
    assert record.expires_at is not None
    assert record.done_at is not None
    assert round(record.expires_at - record.done_at) == 7 * 86400


@pytest.mark.parametrize("mark", [False, True], ids=["process", "first_time"])
def test_what_an_engine_sets_counts_at_once_for_all_messages_that_start_next(mark):
    clock = ManualClock()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock))
    once = AsyncOnce(counted, group="billing", window=None, clock=clock)

    async def one(key: str) -> bool:
        if mark:
            return await once.first_time(key)
        return (await once.process(lambda _: None, {}, key=key)).verdict is PROCESSED

    async def crowd() -> list[bool]:
        await once.first_time("before")
        await once.set_window("1h")
        answers = await asyncio.gather(*[one("k") for _ in range(5)])
        await once.close()
        return answers

    assert asyncio.run(crowd()).count(True) == 1


def test_messages_that_come_together_after_an_idle_hour_all_know_what_was_set_in_it():
    clock = ManualClock()
    counted = AsyncFlakyStore(AsyncMemoryStore(clock=clock))
    once = AsyncOnce(counted, group="billing", window=None, clock=clock)

    async def crowd() -> list[bool]:
        await once.first_time("before")
        await counted.set_window("billing", None, HOUR)  # another worker
        clock.advance(HOUR)
        answers = await asyncio.gather(*[once.first_time("k") for _ in range(5)])
        await once.close()
        return answers

    assert asyncio.run(crowd()).count(True) == 1


def test_all_of_a_long_batch_are_completed_under_the_window_that_was_set_long_before_in_one_call(world):
    once = world.engine()

    def work(message: str) -> None:
        if message == "a":
            world.another_sets(HOUR)
            world.clock.advance(5)

    once.process_many(work, list("abc"), key=lambda message: message)
    assert [world.kept(key) for key in "abc"] == [HOUR] * 3
    assert world.counted.calls["complete"] == 1


def test_a_long_batch_is_completed_in_one_call_though_nothing_was_set(world):
    once = world.engine()
    once.process_many(lambda _: world.clock.advance(1), list("abcd"), key=lambda message: message)
    assert world.counted.calls["complete"] == 1


def test_an_answer_from_before_does_not_hide_what_the_engine_set_since():
    clock = ManualClock()

    class Slow(AsyncFlakyStore):
        async def windows(self, requests: Any) -> Any:
            answer = await super().windows(requests)
            await asyncio.sleep(0.02)  # on its way back
            return answer

    counted = Slow(AsyncMemoryStore(clock=clock))
    once = AsyncOnce(counted, group="billing", window=WINDOW, clock=clock)

    async def work() -> float:
        asking = asyncio.ensure_future(once.first_time("a"))
        await asyncio.sleep(0.01)
        await once.set_window("1h")
        await asking
        await once.first_time("b")
        record = await once.peek("b")
        await once.close()
        assert record is not None
        assert record.expires_at is not None
        return record.expires_at - clock()

    assert asyncio.run(work()) == HOUR


def test_a_claim_by_hand_made_before_a_change_is_on_the_new_terms_when_entered(world):
    once = world.engine(window=None)
    by_process(once, "before")
    prepared = once.claim("k")
    once.set_window("1h")
    by_process(once, "after")  # which reads the windows; so that the claim does not
    with prepared as claim:
        assert claim.claim is not None, "it runs unguarded"


@pytest.mark.parametrize("verb", ["set_window", "clear_window"])
def test_a_change_of_ones_own_whose_reply_was_lost_counts_at_once(world, verb):
    world.another_sets(50.0)
    once = world.engine({verb: ["after"]})
    by_process(once, "before")
    with pytest.raises(StoreUnavailable):
        once.set_window("1h") if verb == "set_window" else once.clear_window()
    by_process(once, "k")
    assert world.kept() == (HOUR if verb == "set_window" else WINDOW)


def test_the_handlers_of_a_batch_run_in_the_order_of_their_messages(world):
    once = world.engine(type=lambda message: message[0], windows={"p": None})
    runs: list[str] = []
    once.process_many(runs.append, ["a1", "p2", "b3", "p4"], key=lambda message: message)
    assert runs == ["a1", "p2", "b3", "p4"]


def test_none_in_code_does_not_wait_for_a_store_that_is_away_with_every_message(world, way):
    once = world.engine(lambda verb, number: "before", window=None)
    for _ in range(5):
        way(once, "k")
    assert world.asked <= 2
