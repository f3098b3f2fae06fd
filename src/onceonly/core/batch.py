"""Many flows driven as one, so that a batch costs one round trip to claim and one to complete.

The semantics stay in ``flows.py``; here is only who goes when.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from onceonly.core.flows import VERBS, Ask, Claim, Effect, Emit, Flow, NotStarted, Run, Sleep
from onceonly.errors import PayloadMismatch
from onceonly.types import Outcome, RecordId, Verdict


class CallMany(NamedTuple):
    """One call for many requests of a kind; the answer is a list of answers or exceptions."""

    kind: type
    requests: list[Any]


class RunOne(NamedTuple):
    """Run the handler of message ``index`` of a batch."""

    index: int
    effect: Run | Ask


class Keep(NamedTuple):
    """Keep these claims alive until the batch ends: their handlers wait for their turn."""

    claims: list[Claim]


BatchEffect = CallMany | RunOne | Keep | Sleep | Emit
BatchFlow = Generator[BatchEffect, Any, list[Outcome[Any]]]


def together(flows: list[Flow]) -> BatchFlow:
    """Many flows as one: equal verbs share a call, handlers run one after the other.

    A flow that raises an ``Exception`` becomes a FAILED outcome. Anything stronger stops the batch:
    what ran is completed, what did not start is given back, then it goes on.
    """
    outcomes: list[Outcome[Any]] = [Outcome(Verdict.FAILED)] * len(flows)
    waiting: dict[int, Effect] = {}
    stop: BaseException | None = None

    def resume(index: int, step: Callable[[Any], Effect], value: object) -> None:
        nonlocal stop
        waiting.pop(index, None)
        try:
            waiting[index] = step(value)
        except StopIteration as end:
            outcomes[index] = end.value
        except Exception as error:  # noqa: BLE001 - told in the outcome, as the caller asked
            outcomes[index] = Outcome(Verdict.FAILED, error=error)
        except NotStarted:
            pass
        except BaseException as error:  # noqa: BLE001 - raised below, once the batch is settled
            stop = error

    def reply(index: int, value: object) -> None:
        failed = isinstance(value, BaseException)
        resume(index, flows[index].throw if failed else flows[index].send, value)

    for index in range(len(flows)):
        reply(index, None)
    while waiting:
        yield from _emit_all(waiting, reply)
        runs = [index for index, effect in waiting.items() if isinstance(effect, (Run, Ask))]
        yield Keep([claim for index in runs if (claim := getattr(waiting[index], "claim", None))])
        for index in sorted(runs):
            if stop is not None:
                reply(index, NotStarted())
                continue
            try:
                result = yield RunOne(index, waiting[index])  # type: ignore[arg-type]
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - belongs to this message's flow
                if not isinstance(error, Exception):
                    stop = error
                reply(index, error)
            else:
                reply(index, result)
        yield from _emit_all(waiting, reply)
        yield from _call_all(waiting, reply)
        yield from _sleep_all(waiting, reply)
    if stop is not None:
        raise stop
    return outcomes


Reply = Callable[[int, object], None]


def _emit_all(waiting: dict[int, Effect], reply: Reply) -> Generator[BatchEffect, Any, None]:
    while emits := [(i, e) for i, e in waiting.items() if isinstance(e, Emit)]:
        for index, emit in emits:
            yield emit
            reply(index, None)


def _call_all(waiting: dict[int, Effect], reply: Reply) -> Generator[BatchEffect, Any, None]:
    calls = [(i, e) for i, e in waiting.items() if type(e) in VERBS]
    for kind in dict.fromkeys(type(request) for _, request in calls):
        chosen = [(i, request) for i, request in calls if type(request) is kind]
        answers = yield CallMany(kind, [request for _, request in chosen])
        for (index, _), answer in zip(chosen, answers, strict=True):
            reply(index, answer)


def _sleep_all(waiting: dict[int, Effect], reply: Reply) -> Generator[BatchEffect, Any, None]:
    """Only when nobody has anything else to do: wait for the shortest, then wake all."""
    sleeps = [(i, e.seconds) for i, e in waiting.items() if isinstance(e, Sleep)]
    if sleeps and len(sleeps) == len(waiting):
        yield Sleep(min(seconds for _, seconds in sleeps))
        for index, _ in sleeps:
            reply(index, None)


# --- the same key twice -----------------------------------------------------------------------


def firsts(ids: Sequence[RecordId | None]) -> list[int]:
    """For each message, the index of the first one in the batch with the same identity."""
    seen: dict[RecordId, int] = {}
    return [i if record_id is None else seen.setdefault(record_id, i) for i, record_id in enumerate(ids)]


def repeated(first: Outcome[Any], *, same_payload: bool) -> Outcome[Any]:
    """The outcome of a message whose key came earlier in its batch."""
    if not same_payload:
        error = PayloadMismatch("the same key came earlier in this batch with another payload")
        return Outcome(Verdict.FAILED, error=error)
    if first.verdict is Verdict.PROCESSED:
        return first._replace(verdict=Verdict.DUPLICATE)
    return first
