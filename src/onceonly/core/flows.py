"""The semantics of exactly-once processing, written once, as flows: generators that yield effects.

The effects are in ``core/effects.py``, the two runners that do them in ``core/runners.py``; tests drive the
same flows step by step, without I/O, through every crash and interleaving.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from onceonly.core.effects import Ask, Claim, Effect, Emit, Flow, NotStarted, Run, Sleep, lease_lost
from onceonly.core.terms import on_terms_of_now, window_at_end, windows_of_now
from onceonly.errors import (
    ConfigurationError,
    LeaseLost,
    NotRecorded,
    OnceonlyError,
    PayloadMismatch,
    ResultUnreadable,
    StoreClosed,
    StoredFailure,
    StoreError,
    StoreUnavailable,
)
from onceonly.events import FailedOpen, Raised, ReleaseFailed, ResultDropped, Settled
from onceonly.protocols import Clock
from onceonly.settings import Policy
from onceonly.types import (
    Acquired,
    Busy,
    ClaimRequest,
    Completion,
    Done,
    Happened,
    Mark,
    Marks,
    Outcome,
    RecordId,
    Release,
    Status,
    Verdict,
)

_CLAIM_TRIES = 3  # the same token may be sent again, so a lost reply need not cost a whole lease
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_LONGEST_FAILURE = 1000  # characters of a stored failure's message
_PROCESSED, _RAN = Status.PROCESSED, Verdict.PROCESSED  # an enum's attribute costs 100 ns to look up


def process(policy: Policy, request: ClaimRequest, clock: Clock) -> Flow:
    """One delivery, from claim to verdict. Raises what the handler raised, after releasing."""
    sent = clock()
    answer: Any = None
    try:
        if sent >= policy.overrides.due:
            request = yield from on_terms_of_now(policy, request, sent)
        if request.window:
            try:
                answer = yield request
            except StoreUnavailable as error:
                answer = yield from _claim_again(request, error)
            if type(answer) is not Acquired:
                answer, sent = yield from _wait_for_claim(policy, request, answer, sent, clock)
    except StoreUnavailable as error:
        if not policy.fail_open:
            raise
        return (yield from _unprotected(request.id, error))
    if answer is None:
        return (yield from unguarded())
    outcome = yield from _answered(policy, request, answer, sent, clock)
    if policy.on_event is not None:
        yield Emit(Settled(request.id, outcome.verdict, outcome.attempt))
    return outcome


def unguarded() -> Flow:
    """``window=None``: no dedup, the handler just runs."""
    result = yield Run(None)
    return Outcome(Verdict.PROCESSED, result)


def first_time(policy: Policy, mark: Mark, clock: Clock) -> Generator[Effect, Any, bool]:
    """Filter mode: mark, and say whether the key was new. A mark is sent once and never again."""
    try:
        yield from windows_of_now(policy, clock())
        window, _ = policy.terms(mark.type)
        if not window:
            return True
        new: bool = yield mark if window == mark.window else mark._replace(window=window)
    except StoreUnavailable as error:
        if not policy.fail_open:
            raise
        yield Emit(FailedOpen(mark.id, error))
        return True
    return new


def first_time_many(policy: Policy, marks: Marks, clock: Clock) -> Generator[Effect, Any, list[bool]]:
    try:
        yield from windows_of_now(policy, clock())
        marks.window, _ = policy.terms(marks.type)
        if not marks.window:
            return [True] * len(marks)
        new: list[bool] = yield marks
    except StoreUnavailable as error:
        if not policy.fail_open:
            raise
        for mark in marks:
            yield Emit(FailedOpen(mark.id, error))
        return [True] * len(marks)
    return new


# --- claiming ---------------------------------------------------------------------------------


def _wait_for_claim(
    policy: Policy, request: ClaimRequest, answer: Busy | Done, sent: float, clock: Clock
) -> Generator[Effect, Any, tuple[Any, float]]:
    """While the record is in flight, ask again until it is done, free, or the time is up."""
    pause, give_up = _FIRST_PAUSE, sent + policy.wait_timeout
    while type(answer) is Busy and not _differs(request, answer.fingerprint):
        left = give_up - clock()
        if left <= 0:
            break
        yield Sleep(min(pause, left, answer.retry_after))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        sent = clock()
        try:
            answer = yield request
        except StoreUnavailable as error:
            answer = yield from _claim_again(request, error)
    return answer, sent


def _claim_again(request: ClaimRequest, error: StoreUnavailable) -> Generator[Effect, Any, Any]:
    """A reply was lost: ask again with the same token.

    If the lost request was heard, its lease has been running ever since: the caller counts the lease
    from the first request, never from this one.
    """
    for _ in range(_CLAIM_TRIES - 1):
        if not error.unknown:
            break
        try:
            return (yield request)
        except StoreUnavailable as again:
            error = again
    raise error


def _unprotected(record_id: RecordId, error: StoreUnavailable) -> Flow:
    yield Emit(FailedOpen(record_id, error))
    result = yield Run(None)
    return Outcome(Verdict.PROCESSED, result)


def _answered(policy: Policy, request: ClaimRequest, answer: Any, sent: float, clock: Clock) -> Flow:
    if type(answer) is not Acquired:
        return _settled(policy, request, answer)
    claim = Claim(request, answer, sent, policy)
    if answer.attempt > 1 or answer.fingerprint is not request.fingerprint:  # not the first time
        outcome = yield from _not_to_run(policy, request, claim, answer, clock)
        if outcome is not None:
            return outcome
    return (yield from _run(policy, claim, clock))


def _settled(policy: Policy, request: ClaimRequest, answer: Busy | Done) -> Outcome[Any]:
    """The verdict on a record that is not ours to run."""
    if _differs(request, answer.fingerprint):
        raise _mismatch(request.id)
    if isinstance(answer, Busy):
        return Outcome(Verdict.IN_FLIGHT, retry_after=answer.retry_after)
    return _replay(policy, answer)


def _replay(policy: Policy, done: Done) -> Outcome[Any]:
    if done.status is Status.QUARANTINED:
        return Outcome(Verdict.QUARANTINED, attempt=done.attempt)
    if done.status is Status.FAILED:
        failure = StoredFailure(*json.loads(done.result or b'["failed", ""]'))
        return Outcome(Verdict.FAILED, attempt=done.attempt, error=failure, final=True)
    if done.result is None:
        return Outcome(Verdict.DUPLICATE, None, done.attempt)
    try:
        return Outcome(Verdict.DUPLICATE, policy.codec.decode(done.result), done.attempt)
    except Exception as error:  # noqa: BLE001 - done is done: it may be acknowledged all the same
        unreadable = ResultUnreadable(f"the stored result cannot be decoded: {_text(error)}")
        unreadable.__cause__ = error
        return Outcome(Verdict.DUPLICATE, None, done.attempt, error=unreadable)


def _differs(request: ClaimRequest, fingerprint: bytes | None) -> bool:
    ours = request.fingerprint
    return ours is not None and fingerprint is not None and ours != fingerprint


def _mismatch(record_id: RecordId) -> PayloadMismatch:
    msg = (
        f"key {record_id.key!r} of group {record_id.group!r} came before with another payload: "
        "the producer reuses a key, or the key leaves out what makes the message unique"
    )
    return PayloadMismatch(msg)


# --- the claim is ours ------------------------------------------------------------------------


def _not_to_run(
    policy: Policy, request: ClaimRequest, claim: Claim, answer: Acquired, clock: Clock
) -> Generator[Effect, Any, Outcome[Any] | None]:
    """What an earlier attempt left behind may forbid another. None means: run the handler."""
    if _differs(request, answer.fingerprint):
        yield from _release(policy, claim, started=False)
        raise _mismatch(request.id)
    if policy.max_attempts is not None and claim.attempt > policy.max_attempts:
        return (yield from _quarantine(policy, claim, clock))
    if claim.orphaned and policy.on_orphan != "retry":
        return (yield from _orphan(policy, claim, clock))
    return None


def _run(policy: Policy, claim: Claim, clock: Clock) -> Flow:
    try:
        result = yield Run(claim)
    except GeneratorExit:
        raise  # abandoned without a runner: the lease will end
    except NotStarted as refused:
        yield from _release(policy, claim, started=False)
        if isinstance(refused.reason, Exception):
            raise refused.reason from None
        raise
    except BaseException as error:
        yield from _raised(policy, claim, error, clock)
        raise
    if claim.elsewhere:
        yield from _confirm(policy, claim)
    else:
        stored = None if result is None else (yield from _encode(policy, claim, result))
        yield from _complete(policy, claim, _PROCESSED, stored, clock, result=result)
    return Outcome(_RAN, result, claim.attempt)


def _encode(policy: Policy, claim: Claim, result: object) -> Generator[Effect, Any, bytes | None]:
    """The result as it is kept, or None: the effect happened, so whatever goes wrong here, the record
    becomes done."""
    if not policy.keep_result:
        return None
    try:
        stored = policy.codec.encode(result)
        reason = f"{len(stored)} bytes are more than max_result_bytes={policy.max_result_bytes}"
        if len(stored) <= policy.max_result_bytes:
            return stored
    except Exception as error:  # noqa: BLE001 - whatever a codec may raise
        reason = _text(error)
    yield Emit(ResultDropped(claim.id, reason))
    return None


def _complete(
    policy: Policy,
    claim: Claim,
    status: Status,
    stored: bytes | None,
    clock: Clock,
    *,
    result: object = None,
    interrupted: bool = False,
) -> Generator[Effect, Any, None]:
    """Write *done*. While the store is away try again until the lease ends; never release.

    What a signal handler raises meanwhile, for Ctrl-C or a time limit, goes on once it is written.
    """
    claim.finishing = True
    pause = _FIRST_PAUSE
    try:
        if not interrupted and (now := clock()) >= policy.overrides.due:
            with suppress(StoreError):  # the effect happened: it must be told, under whatever window
                yield from windows_of_now(policy, now)
        completion = Completion(claim.id, claim.token, window_at_end(policy, claim), status, stored)
        while True:
            try:
                if (yield completion):
                    return
                claim.lost = True
                raise lease_lost(claim)
            except StoreUnavailable as error:
                if isinstance(error, StoreClosed) or clock() + pause >= claim.deadline:
                    raise _not_recorded(claim, result) from error
            yield Sleep(pause, owed=True)
            pause = min(pause * 2, _LONGEST_PAUSE)
    except (OnceonlyError, GeneratorExit):
        raise
    except BaseException:
        if not interrupted:
            with suppress(OnceonlyError):
                yield from _complete(policy, claim, status, stored, clock, result=result, interrupted=True)
        raise


def _confirm(policy: Policy, claim: Claim) -> Generator[Effect, Any, None]:
    """It was completed in the caller's own transaction. If that was rolled back, the work was too.

    Asking once more with the same token tells, and changes nothing.
    """
    claim.finishing = True
    answer = yield ClaimRequest(claim.id, claim.token, claim.lease, claim.window, None, None)
    if type(answer) is Done:
        return
    if type(answer) is not Acquired:
        claim.lost = True
        raise lease_lost(claim)
    yield from _release(policy, claim)
    msg = (
        f"{claim.key!r} of group {claim.id.group!r} was completed in a transaction that was not committed; "
        "it was given back. Commit before leaving the handler or block, or raise"
    )
    raise ConfigurationError(msg)


def _raised(policy: Policy, claim: Claim, error: BaseException, clock: Clock) -> Generator[Effect, Any, None]:
    """The handler raised: store the failure if it is final, else give the claim back."""
    final = _is_final(policy, error)
    if not final:
        yield from _release(policy, claim)
    else:
        failure = json.dumps([type(error).__name__, _text(error)[:_LONGEST_FAILURE]]).encode()
        try:
            yield from _complete(policy, claim, Status.FAILED, failure, clock)
        except (LeaseLost, StoreUnavailable) as refused:
            yield Emit(ReleaseFailed(claim.id, refused))
    yield Emit(Raised(claim.id, claim.attempt, error, final))


def _is_final(policy: Policy, error: BaseException) -> bool:
    """What ``store_failure`` says. Where it says nothing sensible the handler's own error still goes on."""
    if policy.store_failure is None or not isinstance(error, Exception):
        return False
    try:
        final: object = policy.store_failure(error)
    except Exception as broken:  # noqa: BLE001 - somebody else's code
        error.add_note(f"store_failure raised {broken!r} on this: not stored, to be delivered again")
        return False
    if final and final is not True:
        error.add_note(f"store_failure must say True or False, not {final!r}: not stored")
    return final is True


def _release(policy: Policy, claim: Claim, *, started: bool = True) -> Generator[Effect, Any, None]:
    """Give the claim back. What a signal handler raises meanwhile goes on after one more try."""
    claim.finishing = True
    delay = policy.retry_delay if started else 0.0
    release = Release(claim.id, claim.token, claim.window, delay, started)
    try:
        yield release
    except StoreError as error:
        yield Emit(ReleaseFailed(claim.id, error))
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(StoreError):
            yield release
        raise


def _quarantine(policy: Policy, claim: Claim, clock: Clock) -> Flow:
    yield from _complete(policy, claim, Status.QUARANTINED, None, clock)
    return Outcome(Verdict.QUARANTINED, attempt=claim.attempt)


def _orphan(policy: Policy, claim: Claim, clock: Clock) -> Generator[Effect, Any, Outcome[Any] | None]:
    """An earlier run stopped without a word. None means: run the handler."""
    if not callable(policy.on_orphan):
        return (yield from _quarantine(policy, claim, clock))
    try:
        happened = yield Ask(claim, policy.on_orphan)
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from _release(policy, claim, started=False)
        if isinstance(error, NotStarted) and isinstance(error.reason, Exception):
            raise error.reason from None
        raise
    if happened is None:
        return (yield from _quarantine(policy, claim, clock))
    if happened is False:
        return None
    if happened is not True and not isinstance(happened, Happened):
        yield from _release(policy, claim, started=False)
        kind = type(happened).__name__
        msg = f"the on_orphan probe must answer True, False, None or Happened(result), not a {kind}"
        raise ConfigurationError(msg)
    result = happened.result if isinstance(happened, Happened) else None
    stored = None if result is None else (yield from _encode(policy, claim, result))
    yield from _complete(policy, claim, _PROCESSED, stored, clock, result=result)
    return Outcome(Verdict.DUPLICATE, result, claim.attempt)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - somebody else's class; its message is not worth a record
        return ""


def _not_recorded(claim: Claim, result: object) -> NotRecorded:
    msg = (
        f"the effect of {claim.key!r} of group {claim.id.group!r} happened, but the store could not "
        "be told before the lease ended; a redelivery will run it again unless on_orphan prevents it"
    )
    return NotRecorded(msg, result=result)
