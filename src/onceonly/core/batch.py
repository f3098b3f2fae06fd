"""Many flows driven as one, so that a batch costs one round trip to claim and one to complete.

The semantics stay in ``flows.py``; here is only who goes when.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence
from typing import Any, NamedTuple

from onceonly.core.effects import VERBS, Ask, Claim, Effect, Emit, Flow, NotStarted, Run, Sleep
from onceonly.errors import PayloadMismatch, StoreUnavailable
from onceonly.types import ClaimRequest, Outcome, ReadWindows, RecordId, Verdict


class CallMany(NamedTuple):
    """One call for many requests of a kind; the answer is a list of answers or exceptions."""

    kind: type
    requests: list[Any]


class RunOne(NamedTuple):
    """Run the handler of flow ``number``, or ask its probe."""

    number: int
    effect: Run | Ask


class Keep(NamedTuple):
    """Keep these claims alive until the batch ends: their handlers wait for their turn."""

    claims: list[Claim]


BatchEffect = CallMany | RunOne | Keep | Sleep | Emit
Steps = Generator[BatchEffect, Any, None]


def together(flows: list[Flow]) -> Generator[BatchEffect, Any, list[Outcome[Any]]]:
    """Many flows as one: equal verbs share a call, handlers run one after the other.

    A flow that raises an ``Exception`` becomes a FAILED outcome. Anything stronger stops the batch:
    what ran is completed, what did not start is given back, then it goes on.
    """
    crowd = _Crowd(flows)
    while crowd.waiting:
        yield from crowd.emit()
        if not crowd.undecided():
            yield from crowd.run()
        yield from crowd.emit()
        yield from crowd.call()
        yield from crowd.sleep()
    if crowd.stop is not None:
        raise crowd.stop
    return crowd.outcomes


class _Crowd:
    """The flows, and what each of them waits for."""

    def __init__(self, flows: list[Flow]) -> None:
        self._flows = flows
        self.waiting: dict[int, Effect] = {}
        self.outcomes: list[Outcome[Any]] = [Outcome(Verdict.FAILED)] * len(flows)
        self.stop: BaseException | None = None
        for number, flow in enumerate(flows):
            self._resume(number, flow.send, None)

    def emit(self) -> Steps:
        while emits := [(n, e) for n, e in self.waiting.items() if isinstance(e, Emit)]:
            for number, emit in emits:
                yield emit
                self._send(number, None)

    def undecided(self) -> bool:
        """Nobody starts before all know whether they may, so that they start in order."""
        return any(type(e) is ClaimRequest or type(e) is ReadWindows for e in self.waiting.values())

    def run(self) -> Steps:
        runs = sorted((n, e) for n, e in self.waiting.items() if isinstance(e, (Run, Ask)))
        yield from self._keep(runs)
        for number, effect in runs:
            if self.waiting.get(number) is not effect:  # it was told already that it will not run
                continue
            if self.stop is not None:
                self._throw(number, NotStarted())
                continue
            try:
                result = yield RunOne(number, effect)
            except GeneratorExit:
                raise
            except NotStarted as refused:
                if not isinstance(refused.reason, Exception):
                    self.stop = refused.reason
                self._throw(number, refused)
            except BaseException as error:  # noqa: BLE001 - belongs to this message's flow
                if not isinstance(error, Exception):
                    self.stop = error
                self._throw(number, error)
            else:
                self._send(number, result)

    def _keep(self, runs: list[tuple[int, Run | Ask]]) -> Steps:
        try:
            yield from self._done(Keep([effect.claim for _, effect in runs if effect.claim]))
        except NotStarted as refused:
            for number, _ in runs:
                self._throw(number, refused)

    def call(self) -> Steps:
        """Windows first, so that all of a batch is completed in one call."""
        yield from self._call((ReadWindows,))
        yield from self.emit()
        yield from self._call(VERBS)

    def _call(self, kinds: Container[type]) -> Steps:
        calls = [(n, e) for n, e in self.waiting.items() if type(e) in kinds]
        for kind in dict.fromkeys(type(request) for _, request in calls):
            chosen = [(n, request) for n, request in calls if type(request) is kind]
            answers = yield from self._done(CallMany(kind, [request for _, request in chosen]))
            if answers is None:
                answers = [StoreUnavailable("interrupted", unknown=True)] * len(chosen)
            for (number, _), answer in zip(chosen, answers, strict=True):
                (self._throw if isinstance(answer, BaseException) else self._send)(number, answer)

    def sleep(self) -> Steps:
        """Only when nobody has anything else to do: wait for the shortest, then wake all."""
        sleeps = [(n, e) for n, e in self.waiting.items() if isinstance(e, Sleep)]
        if not sleeps or len(sleeps) < len(self.waiting):
            return
        yield from self._done(Sleep(min(effect.seconds for _, effect in sleeps)))
        for number, effect in sleeps:
            if self.stop and not effect.owed:
                self._throw(number, NotStarted())
            else:
                self._send(number, None)

    def _done(self, effect: CallMany | Keep | Sleep) -> Generator[BatchEffect, Any, Any]:
        """Have it done. If that is interrupted the answer is None, and the batch stops once it is settled."""
        try:
            return (yield effect)
        except (GeneratorExit, NotStarted):
            raise
        except BaseException as error:  # noqa: BLE001 - raised once the batch is settled
            self.stop = error
            return None

    def _send(self, number: int, value: object) -> None:
        self._resume(number, self._flows[number].send, value)

    def _throw(self, number: int, error: BaseException) -> None:
        self._resume(number, self._flows[number].throw, error)

    def _resume(self, number: int, step: Callable[[Any], Effect], value: object) -> None:
        self.waiting.pop(number, None)
        try:
            self.waiting[number] = step(value)
        except StopIteration as end:
            self.outcomes[number] = end.value
        except Exception as error:  # noqa: BLE001 - told in the outcome, as the caller asked
            self.outcomes[number] = Outcome(Verdict.FAILED, error=error)
        except NotStarted:
            pass
        except BaseException as error:  # noqa: BLE001 - raised once the batch is settled
            self.stop = error


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
