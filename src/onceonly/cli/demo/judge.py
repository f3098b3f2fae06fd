"""What the ledgers say. The judge looks at effects and fired faults only, never at a store's records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceonly.cli.demo.plan import Plan, Step

KILL = "kill:"
OVERLAP = "a copy during a handler past its lease"

# The only excuse. Nobody stops a worker or takes its store away, so a lost lease is none here.
_EXCUSE = f"{KILL}{Step.EFFECT_DONE}"
_CAUSE = "killed between effect and completion"


class Effect(NamedTuple):
    """One ledger entry."""

    message: str
    amount: int
    pid: int


@dataclass(frozen=True, slots=True)
class Report:
    """One consumer's verdict.

    ``causes`` count the explained repeats, by what caused them; ``silent`` are the kinds of faults
    that were planned and never fired, without which the numbers prove little.
    """

    consumer: str
    delivered: int
    unique: int
    effects: int
    lost: int
    doubled: int
    kills: int
    total: int
    expected: int
    overlaps: int
    causes: Mapping[str, int] = field(default_factory=dict)
    unexplained: Sequence[str] = ()
    silent: Sequence[str] = ()

    def as_json(self) -> dict[str, object]:
        names = ("consumer", "delivered", "unique", "effects", "lost", "doubled", "kills")
        return {name: getattr(self, name) for name in names}

    @property
    def broken_promises(self) -> list[str]:
        """What this consumer promised and did not keep. The textbook promised nothing."""
        if self.consumer == "textbook":
            return []
        broken = [f"{self.lost} lost"] if self.lost else []
        if self.consumer == "onceonly-transactional":
            return broken + ([f"{self.doubled} doubled"] if self.doubled else [])
        return broken + [f"{message} doubled, UNEXPLAINED" for message in self.unexplained]


def judge(
    consumer: str, plan: Plan, delivered: int, effects: Sequence[Effect], faults: Sequence[Mapping[str, Any]]
) -> Report:
    """Compare the ledger with the plan, and every repeat with the faults that fired."""
    by_message: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_message[effect.message].append(effect)
    unknown = by_message.keys() - plan.payments.keys()
    if unknown:
        msg = f"the ledger of {consumer} has effects of messages nobody sent: {sorted(unknown)[:3]}"
        raise ValueError(msg)
    repeated = {message: found for message, found in by_message.items() if len(found) > 1}
    causes, unexplained = _explain(repeated, faults)
    return Report(
        consumer=consumer,
        delivered=delivered,
        unique=len(plan.payments),
        effects=len(effects),
        lost=len(plan.payments.keys() - by_message.keys()),
        doubled=len(repeated),
        kills=sum(fault["what"].startswith(KILL) for fault in faults),
        total=sum(effect.amount for effect in effects),
        expected=plan.total,
        overlaps=sum(fault["what"] == OVERLAP for fault in faults),
        causes=causes,
        unexplained=unexplained,
        silent=_silent(plan, faults),
    )


def _explain(
    repeated: Mapping[str, list[Effect]], faults: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, int], list[str]]:
    """Each effect but the last needs a death of its own: of its worker, right after it."""
    deaths = Counter((fault["message"], fault["pid"]) for fault in faults if fault["what"] == _EXCUSE)
    explained = 0
    unexplained = []
    for message, effects in repeated.items():
        followed = Counter((message, effect.pid) for effect in effects[:-1])
        explained += (followed & deaths).total()
        if followed - deaths:
            unexplained.append(message)
    return {_CAUSE: explained} if explained else {}, unexplained


def _silent(plan: Plan, faults: Iterable[Mapping[str, Any]]) -> list[str]:
    planned = {f"{KILL}{kill.step}" for kill in plan.kills.values()}
    if any(payment.slow for payment in plan.payments.values()):
        planned.add(OVERLAP)
    return sorted(planned - {fault["what"] for fault in faults})
