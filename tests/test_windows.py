"""Windows: presets, by type, and set in the store while workers run. Who wins, and from when on."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from onceonly import (
    ConfigurationError,
    StoreUnavailable,
    Verdict,
)
from onceonly.core.batch import CallMany, RunOne, together
from onceonly.core.effects import VERBS, Emit, Run, Sleep
from onceonly.core.flows import first_time, first_time_many, process
from onceonly.events import FailedOpen, WindowsChanged
from onceonly.settings import Policy, resolve
from onceonly.testing import ManualClock
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


def test_a_misspelt_preset_of_a_type_is_answered_with_the_presets():
    with pytest.raises(ConfigurationError, match="presets payment, order"):
        policy_of(windows={"click": "analytic"})
