"""The flows, driven by hand: no store, no thread, no real time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onceonly.core.batch import CallMany, Keep, RunOne, together
from onceonly.core.effects import VERBS, Ask, Emit, NotStarted, Run, Sleep
from onceonly.core.flows import first_time, process, unguarded
from onceonly.errors import LeaseLost, NotRecorded, PayloadMismatch, StoredFailure, StoreUnavailable
from onceonly.events import FailedOpen, Raised, ReleaseFailed, ResultDropped, Settled
from onceonly.settings import Options, resolve
from onceonly.testing import ManualClock
from onceonly.types import (
    Acquired,
    Busy,
    ClaimRequest,
    Completion,
    Done,
    Happened,
    Mark,
    RecordId,
    Release,
    Status,
    Verdict,
)

ID = RecordId("billing", "", "k1")
DOWN = StoreUnavailable("down")
LOST_REPLY = StoreUnavailable("no reply", unknown=True)
FRESH = Acquired(fence=7, attempt=1)


class Driver:
    """Answers a flow's effects from lists; writes down what it asked for."""

    def __init__(self, *, fingerprint: bytes | None = None, options: Options | None = None, **more: Any):
        self.clock = ManualClock()
        settings: Any = {"lease": 10, "window": 100, **(options or {}), **more}
        self.policy = resolve("billing", settings, {})
        self.request = ClaimRequest(ID, b"token", self.policy.lease, 100.0, fingerprint)
        self.effects: list[Any] = []

    def drive(self, script: dict[str, Any], handler: Any = lambda: None) -> Any:
        """``script``: verb (or "ask") to an answer, an exception, or a list of these."""
        flow = process(self.policy, self.request, self.clock)
        step, value = flow.send, None
        try:
            while True:
                effect = step(value)
                self.effects.append(effect)
                try:
                    value = self._answer(effect, script, handler)
                    step = flow.send
                except BaseException as error:  # noqa: BLE001
                    step, value = flow.throw, error
        except StopIteration as end:
            return end.value

    def _answer(self, effect: Any, script: dict[str, Any], handler: Any) -> Any:
        if isinstance(effect, Sleep):
            self.clock.advance(effect.seconds)
            return None
        if isinstance(effect, Emit):
            return None
        if isinstance(effect, Run):
            return handler()
        answer = script["ask" if isinstance(effect, Ask) else VERBS[type(effect)]]
        if isinstance(answer, list):
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

    def sent(self, verb: str) -> list[Any]:
        return [e for e in self.effects if VERBS.get(type(e)) == verb]


def raising(error: BaseException):
    def handler():
        raise error

    return handler


# --- the good path ----------------------------------------------------------------------------


def test_claim_run_complete_in_this_order():
    driver = Driver()
    outcome = driver.drive({"claim": FRESH, "complete": True}, lambda: {"ok": 1})
    assert [type(e) for e in driver.effects] == [ClaimRequest, Run, Completion]
    assert driver.verbs == ["claim", "complete"]
    assert (outcome.verdict, outcome.result, outcome.attempt, outcome.ack) == (
        Verdict.PROCESSED,
        {"ok": 1},
        1,
        True,
    )


def test_the_completion_carries_the_token_and_the_window():
    driver = Driver()
    driver.drive({"claim": FRESH, "complete": True}, lambda: 5)
    assert driver.sent("complete") == [Completion(ID, b"token", 100.0, Status.PROCESSED, b"5")]


def test_a_verdict_is_emitted_only_to_a_listener():
    driver = Driver(on_event=lambda event: None)
    driver.drive({"claim": FRESH, "complete": True})
    assert driver.events == [Settled(ID, Verdict.PROCESSED, 1)]


@pytest.mark.parametrize("result", [0, "", False, [], {}, 0.0])
def test_a_falsy_result_is_stored_and_replays_as_itself(result):
    driver = Driver()
    driver.drive({"claim": FRESH, "complete": True}, lambda: result)
    stored = driver.sent("complete")[0].result
    assert stored is not None
    again = Driver().drive({"claim": Done(Status.PROCESSED, stored)})
    assert again.verdict is Verdict.DUPLICATE
    assert again.result == result
    assert type(again.result) is type(result)


def test_none_leaves_a_bare_record():
    driver = Driver()
    driver.drive({"claim": FRESH, "complete": True}, lambda: None)
    assert driver.sent("complete")[0].result is None
    assert Driver().drive({"claim": Done(Status.PROCESSED)}).result is None


def test_keep_result_false_stores_nothing_but_returns_the_result():
    driver = Driver(keep_result=False)
    outcome = driver.drive({"claim": FRESH, "complete": True}, lambda: 5)
    assert outcome.result == 5
    assert driver.sent("complete")[0].result is None
    assert driver.events == []


def test_window_none_runs_always_and_asks_no_store():
    flow = unguarded()
    assert next(flow) == Run(None)
    with pytest.raises(StopIteration) as end:
        flow.send(5)
    assert end.value.value.verdict is Verdict.PROCESSED
    assert end.value.value.result == 5


# --- results that cannot be kept --------------------------------------------------------------


@pytest.mark.parametrize(
    "result", [object(), "x" * 200, float("nan"), {1, 2}], ids=["object", "large", "nan", "set"]
)
def test_a_result_that_cannot_be_kept_is_dropped_and_the_record_is_done(result):
    driver = Driver(max_result_bytes=100)
    outcome = driver.drive({"claim": FRESH, "complete": True}, lambda: result)
    assert outcome.verdict is Verdict.PROCESSED
    assert outcome.result is result
    assert driver.verbs == ["claim", "complete"]
    assert driver.sent("complete")[0].result is None
    assert [type(e) for e in driver.events] == [ResultDropped]


# --- the store dies after the handler ---------------------------------------------------------


def test_complete_is_retried_within_the_lease():
    driver = Driver()
    outcome = driver.drive({"claim": FRESH, "complete": [DOWN, LOST_REPLY, True]}, lambda: 5)
    assert outcome.verdict is Verdict.PROCESSED
    assert driver.verbs == ["claim", "complete", "complete", "complete"]
    assert len(set(driver.sent("complete"))) == 1


def test_store_dead_until_the_lease_ends_is_not_recorded_and_never_released():
    driver = Driver()
    start = driver.clock()
    with pytest.raises(NotRecorded) as raised:
        driver.drive({"claim": FRESH, "complete": DOWN}, lambda: "paid")
    assert raised.value.result == "paid"
    assert raised.value.unknown
    assert raised.value.__cause__ is DOWN
    assert driver.verbs.count("complete") > 3
    assert "release" not in driver.verbs
    assert driver.clock() - start < 10
    assert driver.ran == 1


def test_completion_is_tried_until_close_to_the_end_of_the_lease():
    driver = Driver()
    start = driver.clock()
    with pytest.raises(NotRecorded):
        driver.drive({"claim": FRESH, "complete": DOWN})
    assert driver.clock() - start > 8


def test_complete_refused_is_lease_lost():
    driver = Driver()
    with pytest.raises(LeaseLost):
        driver.drive({"claim": FRESH, "complete": False})
    assert driver.verbs == ["claim", "complete"]


# --- the handler raises -----------------------------------------------------------------------


def test_a_handler_that_raises_releases_then_the_exception_goes_on():
    driver = Driver(retry_delay=3)
    error = ValueError("no")
    with pytest.raises(ValueError, match="no") as raised:
        driver.drive({"claim": FRESH, "release": True}, raising(error))
    assert raised.value is error
    assert driver.sent("release") == [Release(ID, b"token", 100.0, 3.0, started=True)]
    assert "complete" not in driver.verbs
    assert driver.events == [Raised(ID, 1, error, final=False)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_exception_releases_too(kind):
    driver = Driver(store_failure=lambda error: True)
    with pytest.raises(kind):
        driver.drive({"claim": FRESH, "release": True}, raising(kind()))
    assert driver.verbs == ["claim", "release"]


def test_a_release_that_cannot_be_written_does_not_hide_the_handlers_error():
    driver = Driver()
    with pytest.raises(ValueError, match="no"):
        driver.drive({"claim": FRESH, "release": DOWN}, raising(ValueError("no")))
    assert driver.events[0] == ReleaseFailed(ID, DOWN)


def test_generator_exit_writes_nothing():
    driver = Driver()
    flow = process(driver.policy, driver.request, driver.clock)
    next(flow)
    assert isinstance(flow.send(FRESH), Run)
    flow.close()  # a RuntimeError if the flow asked for anything


def test_generator_exit_in_a_probe_writes_nothing():
    driver = Driver(on_orphan=lambda: None)
    flow = process(driver.policy, driver.request, driver.clock)
    next(flow)
    assert isinstance(flow.send(Acquired(8, 2, orphaned=True)), Ask)
    flow.close()


def test_not_started_gives_the_claim_back_uncounted():
    driver = Driver(retry_delay=9)
    with pytest.raises(NotStarted):
        driver.drive({"claim": FRESH, "release": True}, raising(NotStarted()))
    assert driver.sent("release") == [Release(ID, b"token", 100.0, 0.0, started=False)]


# --- stored failures --------------------------------------------------------------------------


def test_store_failure_is_stored_and_the_exception_goes_on():
    driver = Driver(store_failure=lambda error: isinstance(error, ValueError))
    with pytest.raises(ValueError, match="card expired"):
        driver.drive({"claim": FRESH, "complete": True}, raising(ValueError("card expired")))
    (completion,) = driver.sent("complete")
    assert completion.status is Status.FAILED
    assert json.loads(completion.result) == ["ValueError", "card expired"]
    assert "release" not in driver.verbs
    assert driver.events[-1].final is True


def test_a_stored_failure_replays_and_is_acked():
    outcome = Driver().drive({"claim": Done(Status.FAILED, b'["ValueError", "card expired"]')})
    assert outcome.verdict is Verdict.FAILED
    assert isinstance(outcome.error, StoredFailure)
    assert (outcome.error.kind, outcome.error.message) == ("ValueError", "card expired")
    assert outcome.ack is True


def test_a_failure_that_is_not_final_is_released():
    driver = Driver(store_failure=lambda error: False)
    with pytest.raises(ValueError, match="x"):
        driver.drive({"claim": FRESH, "release": True}, raising(ValueError("x")))
    assert driver.verbs == ["claim", "release"]


def test_a_store_failure_predicate_that_raises_still_releases():
    driver = Driver(store_failure=raising_predicate)
    with pytest.raises(ValueError, match="x") as raised:
        driver.drive({"claim": FRESH, "release": True}, raising(ValueError("x")))
    assert driver.verbs == ["claim", "release"]
    assert raised.value.__notes__ == [
        "store_failure raised ZeroDivisionError() on this: not stored, to be delivered again"
    ]


@pytest.mark.parametrize("said", ["no", 1, object()])
def test_a_store_failure_predicate_that_does_not_say_true_stores_nothing(said):
    driver = Driver(store_failure=lambda error: said)
    with pytest.raises(ValueError, match="x") as raised:
        driver.drive({"claim": FRESH, "release": True}, raising(ValueError("x")))
    assert driver.verbs == ["claim", "release"]
    assert "must say True or False" in raised.value.__notes__[0]


def raising_predicate(error):
    raise ZeroDivisionError


def test_a_failure_that_cannot_be_stored_lets_the_handlers_error_go_on():
    driver = Driver(store_failure=lambda error: True)
    with pytest.raises(ValueError, match="x"):
        driver.drive({"claim": FRESH, "complete": False}, raising(ValueError("x")))
    assert isinstance(driver.events[0], ReleaseFailed)


# --- claiming ---------------------------------------------------------------------------------


def test_a_lost_claim_reply_is_asked_again_with_the_same_token():
    driver = Driver()
    outcome = driver.drive({"claim": [LOST_REPLY, FRESH], "complete": True}, lambda: 1)
    first, second = driver.sent("claim")
    assert first == second
    assert outcome.verdict is Verdict.PROCESSED
    assert driver.ran == 1


def test_claim_replies_lost_for_ever_fail_closed():
    driver = Driver()
    with pytest.raises(StoreUnavailable):
        driver.drive({"claim": LOST_REPLY})
    assert driver.ran == 0
    assert len(driver.sent("claim")) == 3


def test_store_down_fails_closed_without_running():
    driver = Driver()
    with pytest.raises(StoreUnavailable):
        driver.drive({"claim": DOWN})
    assert (driver.ran, driver.verbs) == (0, ["claim"])


def test_store_down_and_open_runs_unprotected_and_says_so():
    driver = Driver(on_store_error="open")
    outcome = driver.drive({"claim": DOWN}, lambda: 5)
    assert (outcome.verdict, outcome.result) == (Verdict.PROCESSED, 5)
    assert driver.events == [FailedOpen(ID, DOWN)]
    assert driver.verbs == ["claim"]


def test_the_lease_is_counted_from_before_the_claim_was_sent():
    driver = Driver()
    flow = process(driver.policy, driver.request, driver.clock)
    start = driver.clock()
    next(flow)
    driver.clock.advance(4)  # a slow reply
    run = flow.send(FRESH)
    assert isinstance(run, Run)
    assert run.claim is not None
    assert run.claim.deadline == start + 10


# --- in flight --------------------------------------------------------------------------------


def test_in_flight_is_rejected_and_not_acked():
    driver = Driver()
    outcome = driver.drive({"claim": Busy(4.0)})
    assert (outcome.verdict, outcome.retry_after, outcome.ack) == (Verdict.IN_FLIGHT, 4.0, False)
    assert driver.ran == 0


def test_waiting_gets_the_stored_result():
    driver = Driver(on_in_flight="wait", wait_timeout=5)
    outcome = driver.drive({"claim": [Busy(4.0), Busy(4.0), Done(Status.PROCESSED, b"5")]})
    assert (outcome.verdict, outcome.result) == (Verdict.DUPLICATE, 5)
    assert driver.ran == 0


def test_waiting_takes_over_what_was_released():
    driver = Driver(on_in_flight="wait", wait_timeout=5)
    outcome = driver.drive({"claim": [Busy(4.0), Acquired(8, 2)], "complete": True}, lambda: 6)
    assert (outcome.verdict, outcome.attempt) == (Verdict.PROCESSED, 2)


def test_waiting_ends_with_the_timeout():
    driver = Driver(on_in_flight="wait", wait_timeout=5)
    start = driver.clock()
    outcome = driver.drive({"claim": Busy(40.0)})
    assert outcome.verdict is Verdict.IN_FLIGHT
    assert driver.clock() - start == pytest.approx(5)


def test_waiting_survives_a_lost_reply():
    driver = Driver(on_in_flight="wait", wait_timeout=5)
    outcome = driver.drive({"claim": [Busy(4.0), LOST_REPLY, Done(Status.PROCESSED, b"5")]})
    assert outcome.verdict is Verdict.DUPLICATE


# --- orphans ----------------------------------------------------------------------------------

ORPHAN = Acquired(9, 2, orphaned=True)


def test_an_orphan_is_retried():
    driver = Driver()
    outcome = driver.drive({"claim": ORPHAN, "complete": True})
    assert (outcome.verdict, outcome.attempt, driver.ran) == (Verdict.PROCESSED, 2, 1)


def test_an_orphan_is_quarantined_where_told():
    driver = Driver(on_orphan="quarantine")
    outcome = driver.drive({"claim": ORPHAN, "complete": True})
    assert (outcome.verdict, outcome.ack, driver.ran) == (Verdict.QUARANTINED, False, 0)
    assert driver.sent("complete")[0].status is Status.QUARANTINED


def test_a_second_attempt_that_is_no_orphan_runs_under_quarantine():
    driver = Driver(on_orphan="quarantine")
    outcome = driver.drive({"claim": Acquired(9, 2), "complete": True})
    assert outcome.verdict is Verdict.PROCESSED


def probed(answer: object) -> tuple[Driver, Any]:
    driver = Driver(on_orphan=lambda: answer)
    outcome = driver.drive({"claim": ORPHAN, "complete": True, "ask": answer}, lambda: "ran")
    return driver, outcome


def test_a_probe_that_says_it_happened_completes_without_running():
    driver, outcome = probed(True)
    assert (outcome.verdict, outcome.ack, driver.ran) == (Verdict.DUPLICATE, True, 0)
    assert driver.sent("complete")[0].status is Status.PROCESSED


def test_a_probe_that_says_it_did_not_happen_runs():
    driver, outcome = probed(False)
    assert (outcome.verdict, driver.ran) == (Verdict.PROCESSED, 1)


def test_a_probe_that_cannot_tell_quarantines():
    driver, outcome = probed(None)
    assert (outcome.verdict, driver.ran) == (Verdict.QUARANTINED, 0)


def test_a_probe_may_bring_the_result():
    driver, outcome = probed(Happened({"charge": 9}))
    assert (outcome.verdict, outcome.result, driver.ran) == (Verdict.DUPLICATE, {"charge": 9}, 0)
    assert json.loads(driver.sent("complete")[0].result) == {"charge": 9}


def test_a_probed_result_that_cannot_be_kept_is_dropped_and_the_record_is_done():
    driver, outcome = probed(Happened(object()))
    assert (outcome.verdict, driver.ran) == (Verdict.DUPLICATE, 0)
    assert driver.sent("complete")[0].result is None
    assert [type(e) for e in driver.events] == [ResultDropped]


def test_a_probed_result_is_not_kept_where_results_are_not():
    driver = Driver(on_orphan=lambda: None, keep_result=False)
    driver.drive({"claim": ORPHAN, "complete": True, "ask": Happened(5)})
    assert driver.sent("complete")[0].result is None


def test_a_probe_that_raises_gives_the_claim_back_uncounted():
    driver = Driver(on_orphan=lambda: None)
    with pytest.raises(ZeroDivisionError):
        driver.drive({"claim": ORPHAN, "release": True, "ask": ZeroDivisionError()})
    assert driver.sent("release")[0].started is False
    assert driver.ran == 0


# --- attempts ---------------------------------------------------------------------------------


def test_the_last_allowed_attempt_runs():
    outcome = Driver(max_attempts=2).drive({"claim": Acquired(9, 2), "complete": True})
    assert outcome.verdict is Verdict.PROCESSED


def test_one_attempt_more_is_quarantined_and_not_acked():
    driver = Driver(max_attempts=2)
    outcome = driver.drive({"claim": Acquired(9, 3), "complete": True})
    assert (outcome.verdict, outcome.ack, driver.ran) == (Verdict.QUARANTINED, False, 0)


def test_a_quarantined_record_stays_so():
    outcome = Driver().drive({"claim": Done(Status.QUARANTINED, attempt=3)})
    assert (outcome.verdict, outcome.ack, outcome.attempt) == (Verdict.QUARANTINED, False, 3)


# --- fingerprints -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [Done(Status.PROCESSED, b"5", b"other"), Done(Status.QUARANTINED, None, b"other"), Busy(4.0, b"other")],
    ids=["done", "quarantined", "in flight"],
)
@pytest.mark.parametrize("wait", ["reject", "wait"])
def test_another_payload_is_refused(answer, wait):
    driver = Driver(fingerprint=b"ours", on_in_flight=wait)
    with pytest.raises(PayloadMismatch):
        driver.drive({"claim": answer})
    assert (driver.ran, driver.verbs) == (0, ["claim"])


@pytest.mark.parametrize("orphaned", [False, True], ids=["released", "orphaned"])
def test_another_payload_on_a_free_record_gives_the_claim_back_uncounted(orphaned):
    driver = Driver(fingerprint=b"ours", max_attempts=1)
    answer = Acquired(9, 2, orphaned=orphaned, fingerprint=b"other")
    with pytest.raises(PayloadMismatch):
        driver.drive({"claim": answer, "release": True})
    assert driver.sent("release")[0].started is False
    assert (driver.ran, driver.verbs) == (0, ["claim", "release"])


def test_the_same_payload_runs_again_after_a_release():
    driver = Driver(fingerprint=b"ours")
    answer = Acquired(9, 2, fingerprint=bytes(bytearray(b"ours")))
    assert driver.drive({"claim": answer, "complete": True}).verdict is Verdict.PROCESSED


def test_a_record_without_fingerprint_fits_any_payload():
    outcome = Driver(fingerprint=b"ours").drive({"claim": Done(Status.PROCESSED, b"5")})
    assert outcome.verdict is Verdict.DUPLICATE


# --- filter mode ------------------------------------------------------------------------------


def test_a_mark_is_sent_once_and_never_again():
    driver = Driver()
    flow = first_time(driver.policy, Mark(ID, 100.0), driver.clock)
    next(flow)
    with pytest.raises(StoreUnavailable):
        flow.throw(LOST_REPLY)


def test_a_mark_fails_open_only_where_told():
    driver = Driver(on_store_error="open")
    flow = first_time(driver.policy, Mark(ID, 100.0), driver.clock)
    next(flow)
    assert flow.throw(DOWN) == Emit(FailedOpen(ID, DOWN))
    with pytest.raises(StopIteration) as end:
        next(flow)
    assert end.value.value is True


# --- many flows as one ------------------------------------------------------------------------


def batch_of(
    keys: str, handler: Any, *, answers: Any = None, interrupt: str | None = None, **options: Any
) -> tuple[Any, list[Any]]:
    """Drive a batch against a store that grants all; returns its outcomes (or error) and its calls.

    ``interrupt`` names the first verb, or "sleep", that Ctrl-C strikes.
    """
    clock = ManualClock()
    policy = resolve("billing", {"lease": 10, "window": 100, **options}, {})  # type: ignore[typeddict-item]
    requests = [ClaimRequest(RecordId("billing", "", k), k.encode(), 10, 100) for k in keys]
    flow = together([process(policy, request, clock) for request in requests])
    calls: list[Any] = []
    step, value = flow.send, None
    try:
        while True:
            effect = step(value)
            step, value, verb = flow.send, None, ""
            if isinstance(effect, CallMany):
                verb = VERBS[effect.kind]
                calls.append((verb, [r.id.key for r in effect.requests]))
                grants = {"claim": FRESH}
                value = [
                    (answers or {}).get((verb, r.id.key), grants.get(verb, True)) for r in effect.requests
                ]
            elif isinstance(effect, RunOne):
                try:
                    value = handler(keys[effect.number])
                except BaseException as error:  # noqa: BLE001
                    step, value = flow.throw, error  # type: ignore[assignment]
            elif isinstance(effect, Keep):
                calls.append(("keep", [claim.key for claim in effect.claims]))
            elif isinstance(effect, Sleep):
                clock.advance(effect.seconds)
                verb = "sleep"
            if verb == interrupt:
                step, value, interrupt = flow.throw, KeyboardInterrupt(), None  # type: ignore[assignment]
    except StopIteration as end:
        return end.value, [c for c in calls if c[1]]
    except BaseException as error:  # noqa: BLE001
        return error, [c for c in calls if c[1]]


def test_a_batch_claims_once_runs_in_order_completes_once():
    order: list[str] = []

    def handle(key: str) -> str:
        order.append(key)
        return key

    outcomes, calls = batch_of("abc", handle)
    assert order == ["a", "b", "c"]
    assert [o.result for o in outcomes] == ["a", "b", "c"]
    assert calls == [("claim", ["a", "b", "c"]), ("keep", ["a", "b", "c"]), ("complete", ["a", "b", "c"])]


def test_a_batch_tells_a_handlers_error_in_its_outcome():
    outcomes, calls = batch_of("abc", lambda k: 1 / (k != "b"))
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED, Verdict.FAILED, Verdict.PROCESSED]
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    assert outcomes[1].ack is False
    assert ("release", ["b"]) in calls
    assert ("complete", ["a", "c"]) in calls


def test_an_interrupt_completes_what_ran_and_gives_back_the_rest():
    def handler(key):
        if key == "b":
            raise KeyboardInterrupt
        return key

    error, calls = batch_of("abcd", handler)
    assert isinstance(error, KeyboardInterrupt)
    assert ("complete", ["a"]) in calls
    assert ("release", ["b", "c", "d"]) in calls


def test_one_refused_claim_fails_alone():
    outcomes, _ = batch_of("abc", lambda k: k, answers={("claim", "b"): DOWN, ("claim", "c"): Busy(3.0)})
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED, Verdict.FAILED, Verdict.IN_FLIGHT]
    assert outcomes[1].error is DOWN


def test_a_batch_whose_completion_is_down_tries_again_then_says_not_recorded():
    outcomes, calls = batch_of("ab", lambda k: k, answers={("complete", "b"): DOWN})
    assert outcomes[0].verdict is Verdict.PROCESSED
    assert isinstance(outcomes[1].error, NotRecorded)
    assert not any(verb == "release" for verb, _ in calls)
    assert sum(verb == "complete" for verb, _ in calls) > 3


def test_an_interrupt_while_claiming_gives_back_what_the_store_may_have_granted():
    error, calls = batch_of("ab", pytest.fail, interrupt="claim")
    assert isinstance(error, KeyboardInterrupt)
    assert calls[-1] == ("release", ["a", "b"])


def test_an_interrupt_while_completing_completes_again():
    error, calls = batch_of("ab", str, interrupt="complete")
    assert isinstance(error, KeyboardInterrupt)
    assert [call for call in calls if call[0] != "keep"] == [
        ("claim", ["a", "b"]),
        ("complete", ["a", "b"]),
        ("complete", ["a", "b"]),
    ]


def test_an_interrupt_between_tries_to_complete_goes_on_trying():
    error, calls = batch_of("ab", str, answers={("complete", "b"): DOWN}, interrupt="sleep")
    assert isinstance(error, KeyboardInterrupt)
    assert sum(verb == "complete" for verb, _ in calls) > 3


def test_an_interrupt_while_waiting_for_another_worker_ends_the_wait():
    busy = {("claim", "a"): Busy(3.0)}
    error, calls = batch_of("a", pytest.fail, answers=busy, interrupt="sleep", on_in_flight="wait")
    assert isinstance(error, KeyboardInterrupt)
    assert calls == [("claim", ["a"])]


@pytest.mark.parametrize("started", [True, False])
def test_a_run_that_was_refused_is_given_back_uncounted(started):
    driver = Driver()
    error = KeyboardInterrupt() if started else NotStarted()
    with pytest.raises(type(error)):
        driver.drive({"claim": FRESH, "release": True}, lambda: (_ for _ in ()).throw(error))
    assert driver.sent("release")[0].started is started
