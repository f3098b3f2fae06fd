"""Windows: presets, by type, and set in the store while workers run. Who wins, and from when on."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
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
from onceonly.core.batch import CallMany, RunOne, together
from onceonly.core.effects import VERBS, Emit, Run, Sleep
from onceonly.core.flows import first_time, first_time_many, process
from onceonly.errors import NotRecorded
from onceonly.events import Event, FailedOpen, WindowsChanged
from onceonly.settings import Policy, resolve
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import AsyncFlakyStore, FlakyStore, ManualClock
from onceonly.types import (
    Acquired,
    ClaimRequest,
    Completion,
    Mark,
    Marks,
    ReadWindows,
    RecordId,
    Release,
    Status,
    StoredWindow,
)
from onceonly.windows import PRESETS, REFRESH, Overrides, seconds, window_seconds

LEASE, WINDOW = 10.0, 100.0
MINUTE, HOUR, DAY, YEAR = 60.0, 3600.0, 86400.0, 365 * 86400.0
ID = RecordId("billing", "", "k")
DOWN = StoreUnavailable("down")
LOST_REPLY = StoreUnavailable("no reply", unknown=True)
PROCESSED, DUPLICATE = Verdict.PROCESSED, Verdict.DUPLICATE


def stored(kind: str | None, window: float | None, at: float = 0.0) -> StoredWindow:
    return StoredWindow("billing", kind, window, at)


# --- durations and presets --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("payment", DAY),
        ("order", 4 * HOUR),
        ("notification", 15 * MINUTE),
        ("analytics", 5 * MINUTE),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        (timedelta(days=2), 2 * DAY),
        (7, 7.0),
        (0.5, 0.5),
        ("5200w", 5200 * 7 * DAY),
        (100 * YEAR, 100 * YEAR),
    ],
    ids=str,
)
def test_a_window_is_none_a_preset_or_a_duration(given, expected):
    assert window_seconds(given) == expected


def test_only_windows_know_presets():
    for preset in PRESETS:
        with pytest.raises(ConfigurationError, match="lease='"):
            seconds(preset, name="lease")


BAD_WINDOWS = ["soon", "Payment", " payment", "none", "None", "", "5", "5 m", 0, "0s", -1, True, False]
BAD_WINDOWS += [float("nan"), float("inf"), 100 * YEAR + 1, timedelta(0), b"5m", ["5m"]]


@pytest.mark.parametrize("bad", BAD_WINDOWS, ids=repr)
def test_a_bad_window_is_refused_by_the_name_it_was_given_under(bad):
    with pytest.raises(ConfigurationError, match=r"^TTL\b"):
        window_seconds(bad, name="TTL")
    with pytest.raises(ConfigurationError, match=r"^window\b"):
        window_seconds(bad)
    with pytest.raises(ConfigurationError, match=r"^windows\['click'\]"):
        policy_of(windows={"click": bad})
    with pytest.raises(ConfigurationError, match=r"^windows\['a'\]"):
        policy_of(windows={"click": "5m", "a": bad})


def test_a_misspelt_preset_is_answered_with_the_presets():
    with pytest.raises(ConfigurationError, match=r"presets payment, order, notification, analytics"):
        window_seconds("paiment")


@pytest.mark.parametrize("bad", [None, [("click", "5m")], "5m", {"5m"}, 5], ids=repr)
def test_windows_by_type_are_a_mapping(bad):
    with pytest.raises(ConfigurationError, match=r"^windows must be windows by type"):
        policy_of(windows=bad)


@pytest.mark.parametrize("bad", [None, "", 5, b"click", "x" * 513, "\ud800"], ids=repr)
def test_a_type_of_windows_is_a_name(bad):
    with pytest.raises(ConfigurationError, match="type"):
        policy_of(windows={bad: "5m"})


def test_windows_by_type_may_be_presets_durations_and_none():
    windows = {"pay": "payment", "click": "5m", "ping": None, "tick": timedelta(seconds=3)}
    assert policy_of(windows=windows).windows == {"pay": DAY, "click": 300.0, "ping": None, "tick": 3.0}


def test_the_callers_mapping_may_change_later_without_effect():
    windows = {"click": "5m"}
    policy = policy_of(windows=windows)
    windows["click"] = "1h"
    windows["other"] = "1h"
    assert (policy.window_of("click"), policy.window_of("other")) == (300.0, WINDOW)


# --- what is known of the store's windows -----------------------------------------------------


def test_windows_are_read_every_two_seconds():
    assert REFRESH == 2.0  # the promise is "within seconds"


def test_at_first_nothing_is_known_and_the_store_is_to_be_asked_whatever_the_clock_says():
    overrides = Overrides()
    assert (overrides.known, overrides.windows) == (False, {})
    assert overrides.due <= -1e300


def test_without_an_engine_no_store_is_asked():
    assert policy_of(overrides=None).overrides.due == float("inf")


def test_learning_says_whether_it_is_news():
    overrides = Overrides()
    assert overrides.learn([], 1.0) is False
    assert overrides.known is True
    assert overrides.learn([stored(None, 5.0)], 2.0) is True
    assert overrides.learn([stored(None, 5.0, at=99.0)], 3.0) is False
    assert overrides.learn([stored(None, None)], 4.0) is True
    assert overrides.learn([stored("click", None)], 5.0) is True
    assert overrides.learn([], 6.0) is True
    assert overrides.learn([], 7.0) is False


def test_what_is_learned_replaces_all_that_was_known():
    overrides = Overrides()
    overrides.learn([stored(None, 5.0), stored("a", 6.0), stored("b", None)], 0.0)
    assert overrides.windows == {None: 5.0, "a": 6.0, "b": None}
    overrides.learn([stored("b", 7.0)], 0.0)
    assert overrides.windows == {"b": 7.0}


def test_after_learning_the_store_is_left_alone_for_two_seconds():
    overrides = Overrides()
    overrides.learn([], 50.0)
    assert overrides.due == 52.0


def test_who_asks_holds_others_back_only_once_something_is_known():
    overrides = Overrides()
    overrides.asking(50.0)
    assert overrides.due <= 50.0
    overrides.learn([], 50.0)
    overrides.asking(52.5)
    assert overrides.due == 54.5


def test_a_change_of_ones_own_is_asked_for_at_once_and_until_then_what_is_known_stays():
    overrides = Overrides()
    overrides.learn([stored(None, 5.0)], 50.0)
    overrides.changed()
    assert overrides.due <= -1e300
    assert (overrides.known, overrides.windows) == (True, {None: 5.0})


# --- who wins ---------------------------------------------------------------------------------


def policy_of(**options: Any) -> Policy:
    overrides = options.pop("overrides", Overrides())
    settings: Any = {"lease": LEASE, "window": WINDOW, **options}
    return resolve("billing", settings, {}, overrides)


FOR_TYPE_IN_STORE, FOR_ALL_IN_STORE, FOR_TYPE_IN_CODE, FOR_ALL_IN_CODE = 11.0, 22.0, 33.0, WINDOW
EVERY_PLACE = list(itertools.product([False, True], repeat=4))


def winner(store_type: bool, store_group: bool, code_type: bool, typed: bool) -> float:
    if typed and store_type:
        return FOR_TYPE_IN_STORE
    if store_group:
        return FOR_ALL_IN_STORE
    return FOR_TYPE_IN_CODE if typed and code_type else FOR_ALL_IN_CODE


@pytest.mark.parametrize(("store_type", "store_group", "code_type", "typed"), EVERY_PLACE)
def test_the_store_wins_over_code_and_the_type_over_the_group(store_type, store_group, code_type, typed):
    policy = policy_of(windows={"click": FOR_TYPE_IN_CODE} if code_type else {})
    for_type, for_all = stored("click", FOR_TYPE_IN_STORE), stored(None, FOR_ALL_IN_STORE)
    policy.overrides.learn([stored("other", 44.0), *[for_all] * store_group, *[for_type] * store_type], 0.0)
    expected = winner(store_type, store_group, code_type, typed)
    assert policy.window_of("click" if typed else None) == expected
    assert policy.terms("click" if typed else None) == (expected, LEASE)


@pytest.mark.parametrize(("store_type", "store_group", "code_type", "code"), EVERY_PLACE)
def test_none_wins_in_its_place_like_any_other_window(store_type, store_group, code_type, code):
    """Each place either says None or is not there; behind them stands the engine's own window."""
    policy = policy_of(window=None if code else WINDOW, windows={"click": None} if code_type else {})
    policy.overrides.learn([stored(None, None)] * store_group + [stored("click", None)] * store_type, 0.0)
    off = store_type or store_group or code_type or code
    assert policy.window_of("click") == (None if off else WINDOW)
    assert policy.terms("click") == ((0.0 if off else WINDOW), LEASE)


@pytest.mark.parametrize(
    ("store", "for_type_in_code", "expected"),
    [
        ([stored(None, None), stored("click", 11.0)], None, 11.0),
        ([stored(None, 22.0)], None, 22.0),
        ([], 33.0, 33.0),
    ],
)
def test_a_window_wins_over_none_behind_it(store, for_type_in_code, expected):
    policy = policy_of(window=None, windows={"click": for_type_in_code})
    policy.overrides.learn(store, 0.0)
    assert policy.window_of("click") == expected


def test_a_lease_never_outlasts_its_window_and_is_never_longer_than_the_codes():
    policy = policy_of(windows={"short": 3.0, "long": HOUR, "off": None})
    kinds = ("short", "long", "off", None)
    assert [policy.terms(kind) for kind in kinds] == [(3.0, 3.0), (HOUR, 10.0), (0.0, 10.0), (100.0, 10.0)]
    policy.overrides.learn([stored(None, 1.0), stored("long", LEASE)], 0.0)
    assert [policy.terms(kind) for kind in kinds] == [(1.0, 1.0), (10.0, 10.0), (1.0, 1.0), (1.0, 1.0)]


# --- flows, driven by hand --------------------------------------------------------------------


class Driver:
    """Answers a flow's effects from lists; writes down what it asked for. Each effect takes ``step``."""

    def __init__(self, *, known: list[StoredWindow] | None = None, step: float = 0.0, **options: Any) -> None:
        self.clock = ManualClock(0.0)
        self.policy = policy_of(**options)
        self.step = step
        self.effects: list[Any] = []
        if known is not None:
            self.policy.overrides.learn(known, self.clock() - REFRESH)  # due again

    def request(self, kind: str | None = None) -> ClaimRequest:
        window, lease = self.policy.terms(kind)
        return ClaimRequest(ID, b"token", lease, window, None, kind)

    def process(self, handler: Any = lambda: None, kind: str | None = None, **script: Any) -> Any:
        script = {"claim": Acquired(7, 1), "complete": True, "release": True, **script}
        return self.drive(process(self.policy, self.request(kind), self.clock), script, handler)

    def first_time(self, kind: str | None = None, **script: Any) -> Any:
        mark = Mark(ID, self.policy.terms(kind)[0], kind)
        return self.drive(first_time(self.policy, mark, self.clock), {"mark_seen": True, **script})

    def first_time_many(self, kind: str | None = None, **script: Any) -> Any:
        marks = Marks("billing", "", ["k", "j"], self.policy.terms(kind)[0], kind)
        flow = first_time_many(self.policy, marks, self.clock)
        return self.drive(flow, {"mark_seen": [[True, False]], **script})

    def drive(
        self, flow: Generator[Any, Any, Any], script: dict[str, Any], handler: Any = lambda: None
    ) -> Any:
        resume, value = flow.send, None
        try:
            while True:
                effect = resume(value)
                self.effects.append(effect)
                self.clock.advance(self.step)
                resume = flow.send
                try:
                    value = self._answer(effect, script, handler)
                except BaseException as error:  # noqa: BLE001
                    resume, value = flow.throw, error
        except StopIteration as end:
            return end.value

    def _answer(self, effect: Any, script: dict[str, Any], handler: Any) -> Any:
        if isinstance(effect, Sleep):
            self.clock.advance(effect.seconds)
        if isinstance(effect, (Sleep, Emit)):
            return None
        if isinstance(effect, Run):
            return handler()
        verb = VERBS[type(effect)]
        answer = script[verb]
        in_turn = isinstance(answer, list) and not all(isinstance(a, StoredWindow) for a in answer)
        if in_turn:
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def verbs(self) -> list[str]:
        return [VERBS[type(e)] for e in self.effects if type(e) in VERBS]

    @property
    def events(self) -> list[Any]:
        return [e.event for e in self.effects if isinstance(e, Emit)]

    @property
    def ran(self) -> int:
        return sum(isinstance(e, Run) for e in self.effects)

    def sent(self, kind: type) -> Any:
        (only,) = {e for e in self.effects if type(e) is kind}
        return only


def test_windows_are_asked_for_first_and_the_claim_is_made_on_their_terms():
    driver = Driver()
    driver.process(windows=[stored(None, 4.0)])
    assert driver.verbs == ["windows", "claim", "complete"]
    assert driver.effects[0] == ReadWindows("billing")
    claim = driver.sent(ClaimRequest)
    assert (claim.window, claim.lease) == (4.0, 4.0)
    assert driver.sent(Completion).window == 4.0


def test_news_is_emitted_before_it_is_applied_and_what_is_no_news_is_not():
    driver = Driver()
    driver.process(windows=[stored(None, 4.0), stored("a", None)])
    assert [type(e) for e in driver.effects[:3]] == [ReadWindows, Emit, ClaimRequest]
    assert driver.events == [WindowsChanged("billing", {None: 4.0, "a": None})]
    driver = Driver(known=[stored(None, 4.0)])
    driver.process(windows=[stored(None, 4.0, at=5.0)])
    assert (driver.verbs, driver.events) == (["windows", "claim", "complete"], [])


def test_no_windows_at_the_first_look_are_no_news():
    driver = Driver()
    driver.process(windows=[])
    assert driver.events == []


@pytest.mark.parametrize(
    ("took", "verbs"),
    [
        (REFRESH - 0.25, ["windows", "claim", "complete"]),
        (REFRESH, ["windows", "claim", "windows", "complete"]),
    ],
)
def test_the_completion_asks_again_when_two_seconds_have_passed(took, verbs):
    driver = Driver()
    driver.process(lambda: driver.clock.advance(took), windows=[[], []])
    assert driver.verbs == verbs


def test_the_two_seconds_count_from_the_question_not_from_the_answer():
    """A slow answer is old when it comes."""
    driver = Driver(step=1.5)
    driver.process(windows=[[], []])
    assert driver.verbs == ["windows", "claim", "windows", "complete"]


@pytest.mark.parametrize("window", [20.0, HOUR])
def test_a_window_set_while_the_handler_runs_counts_for_its_completion(window):
    driver = Driver()
    driver.process(lambda: driver.clock.advance(3), windows=[[], [stored(None, window)]])
    assert driver.sent(ClaimRequest).window == WINDOW
    assert driver.sent(Completion).window == window


def test_a_window_taken_back_while_the_handler_runs_counts_no_more():
    driver = Driver()
    driver.process(lambda: driver.clock.advance(3), windows=[[stored(None, HOUR)], []])
    assert driver.sent(ClaimRequest).window == HOUR
    assert driver.sent(Completion).window == WINDOW


def test_of_the_types_only_the_claims_own_counts_at_its_end():
    driver = Driver(windows={"click": 50.0})
    later = [stored("click", 60.0), stored("other", 70.0)]
    driver.process(lambda: driver.clock.advance(3), "click", windows=[[], later])
    assert (driver.sent(ClaimRequest).window, driver.sent(Completion).window) == (50.0, 60.0)


def test_a_window_shorter_than_the_lease_that_is_running_waits_for_the_leases_end():
    driver = Driver()
    driver.process(lambda: driver.clock.advance(3), windows=[[], [stored(None, 1.0)]])
    assert driver.sent(Completion).window == LEASE


def test_dedup_turned_off_while_the_handler_runs_still_finishes_what_was_claimed():
    driver = Driver()
    driver.process(lambda: driver.clock.advance(3), windows=[[], [stored(None, None)]])
    assert driver.sent(Completion).window == WINDOW


def test_dedup_turned_on_while_an_unguarded_handler_runs_writes_nothing():
    driver = Driver(window=None)
    outcome = driver.process(lambda: driver.clock.advance(3), windows=[[], [stored(None, HOUR)]])
    assert outcome.verdict is PROCESSED
    assert driver.verbs == ["windows"]


def test_none_in_the_store_runs_the_handler_without_a_claim():
    driver = Driver()
    assert driver.process(lambda: 5, windows=[stored(None, None)]).result == 5
    assert (driver.verbs, driver.effects[-1]) == (["windows"], Run(None))


def test_none_in_code_is_overridden_by_a_window_in_the_store():
    driver = Driver(window=None)
    driver.process(windows=[stored(None, 50.0)])
    claim = driver.sent(ClaimRequest)
    assert (claim.window, claim.lease, driver.sent(Completion).window) == (50.0, LEASE, 50.0)


@pytest.mark.parametrize("error", [DOWN, LOST_REPLY], ids=["down", "lost reply"])
def test_while_nothing_is_known_nothing_runs(error):
    driver = Driver()
    with pytest.raises(StoreUnavailable):
        driver.process(windows=error)
    assert (set(driver.verbs), driver.ran) == ({"windows"}, 0)
    assert driver.policy.overrides.known is False
    driver.process(windows=[])
    assert driver.ran == 1


@pytest.mark.parametrize("error", [DOWN, LOST_REPLY], ids=["down", "lost reply"])
def test_what_is_known_counts_while_the_store_does_not_tell(error):
    driver = Driver(known=[stored(None, 50.0)])
    driver.process(windows=error)
    assert driver.verbs == ["windows", "claim", "complete"]
    assert driver.sent(Completion).window == 50.0
    assert driver.events == []


@pytest.mark.parametrize("error", [DOWN, LOST_REPLY], ids=["down", "lost reply"])
def test_a_completion_is_written_though_the_windows_cannot_be_read(error):
    driver = Driver()
    outcome = driver.process(lambda: driver.clock.advance(3), windows=[[stored(None, 50.0)], error])
    assert outcome.verdict is PROCESSED
    assert driver.verbs == ["windows", "claim", "windows", "complete"]
    assert driver.sent(Completion).window == 50.0


def test_a_completion_that_is_tried_again_asks_for_windows_once_and_stays_the_same():
    driver = Driver()
    answers = [[], [stored(None, 50.0)], [stored(None, 60.0)]]
    driver.process(lambda: driver.clock.advance(3), windows=answers, complete=[LOST_REPLY, LOST_REPLY, True])
    assert driver.verbs == ["windows", "claim", "windows", "complete", "complete", "complete"]
    assert driver.sent(Completion).window == 50.0


def test_unknown_windows_fail_open_where_that_was_asked_for():
    driver = Driver(on_store_error="open")
    assert driver.process(lambda: 5, windows=DOWN).result == 5
    assert driver.effects[-1] == Run(None)
    assert driver.events == [FailedOpen(ID, DOWN)]


def test_who_wants_no_dedup_needs_no_store():
    driver = Driver(window=None)
    assert driver.process(lambda: 5, windows=DOWN).result == 5
    assert (set(driver.verbs), driver.events) == ({"windows"}, [])
    driver = Driver(window=None)
    assert driver.first_time(windows=DOWN) is True
    assert driver.first_time_many(windows=DOWN) == [True, True]
    assert (set(driver.verbs), driver.events) == ({"windows"}, [])


def test_who_wants_no_dedup_follows_what_is_known_of_the_store():
    driver = Driver(window=None, known=[stored(None, 50.0)])
    driver.process(windows=DOWN)
    assert driver.sent(Completion).window == 50.0


def test_a_stored_failure_is_kept_for_the_window_of_now():
    driver = Driver(store_failure=lambda error: True)

    def failing() -> None:
        driver.clock.advance(3)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        driver.process(failing, windows=[[], [stored(None, 50.0)]])
    assert (driver.sent(Completion).window, driver.sent(Completion).status) == (50.0, Status.FAILED)


def test_a_release_asks_for_no_windows_and_keeps_the_claims():
    driver = Driver()

    def failing() -> None:
        driver.clock.advance(3)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        driver.process(failing, windows=[[stored(None, 50.0)], [stored(None, 60.0)]])
    assert driver.verbs == ["windows", "claim", "release"]
    assert driver.sent(Release).window == 50.0


def test_an_interruption_while_the_completion_asks_for_windows_does_not_cost_the_completion():
    driver = Driver()
    with pytest.raises(KeyboardInterrupt):
        driver.process(lambda: driver.clock.advance(3), windows=[[], KeyboardInterrupt()])
    assert driver.verbs == ["windows", "claim", "windows", "complete"]


def test_an_interruption_before_the_claim_claims_nothing():
    driver = Driver()
    with pytest.raises(KeyboardInterrupt):
        driver.process(windows=KeyboardInterrupt())
    assert (driver.verbs, driver.ran) == (["windows"], 0)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_mark_is_made_with_the_window_of_now(many):
    driver = Driver(known=[stored("click", 50.0)], windows={"click": 40.0})
    mark = driver.first_time_many if many else driver.first_time
    assert mark("click", windows=[stored("click", 60.0)]) in (True, [True, False])
    assert driver.verbs == ["windows", "mark_seen"]
    assert driver.effects[-1].window == 60.0
    assert driver.events == [WindowsChanged("billing", {"click": 60.0})]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_none_in_the_store_marks_nothing_and_all_is_new(many):
    driver = Driver()
    mark = driver.first_time_many if many else driver.first_time
    assert mark(windows=[stored(None, None)]) in (True, [True, True])
    assert driver.verbs == ["windows"]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_while_nothing_is_known_nothing_is_marked(many):
    driver = Driver()
    mark = driver.first_time_many if many else driver.first_time
    with pytest.raises(StoreUnavailable):
        mark(windows=DOWN)
    assert set(driver.verbs) == {"windows"}
    driver = Driver(on_store_error="open")
    mark = driver.first_time_many if many else driver.first_time
    assert mark(windows=DOWN) in (True, [True, True])
    assert [type(event) for event in driver.events] == [FailedOpen] * (2 if many else 1)


def test_flows_of_a_batch_that_know_nothing_ask_in_one_call():
    driver = Driver()
    requests = [driver.request()._replace(id=ID._replace(key=f"{n}"), token=b"%d" % n) for n in range(5)]
    batch = together([process(driver.policy, request, driver.clock) for request in requests])
    calls: list[CallMany] = []
    answers = {"windows": [stored(None, 50.0)], "claim": Acquired(7, 1), "complete": True}

    def answer(effect: Any) -> Any:
        if isinstance(effect, CallMany):
            calls.append(effect)
            return [answers[VERBS[effect.kind]] for _ in effect.requests]
        return 5 if isinstance(effect, RunOne) else None

    def drive(value: Any = None) -> None:
        while True:
            value = answer(batch.send(value))

    with pytest.raises(StopIteration) as end:
        drive()
    assert [outcome.result for outcome in end.value.value] == [5] * 5
    assert [VERBS[call.kind] for call in calls] == ["windows", "claim", "complete"]
    assert {(request.window, request.lease) for request in calls[1].requests} == {(50.0, LEASE)}
    assert {completion.window for completion in calls[2].requests} == {50.0}


# --- engines ----------------------------------------------------------------------------------


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


def in_child(work: Callable[[], object]) -> Any:
    """What ``work`` returned in a child process, which then dies without a word."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs must not outlive the test
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said)


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
