"""What will be delivered and what will go wrong: drawn once from a seed, the same for every consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from random import Random

LEASE = 1.0  # seconds: our lease and the textbook's TTL
SLOW = 1.5 * LEASE  # how long a slow handler works before its effect
LATE = 1.25 * LEASE  # when a late copy comes: after LEASE, before SLOW

_ACCOUNTS = 20
_KILLS_PER_CENT = 3
_MOST_SLOW = 2  # each of them holds SQLite's one write lock for SLOW in the transactional consumer
_FARTHEST = 40  # places in the queue between a message and its copy


class Step(StrEnum):
    """Where in the handling of a message a worker can be killed."""

    RECEIVED = "received"
    CLAIMED = "claimed"  # after the claim or mark, before the handler
    EFFECT_BEGUN = "effect-begun"  # in the handler, before the effect
    EFFECT_DONE = "effect-done"  # after the effect, before the completion or commit
    COMPLETED = "completed"  # after the completion or commit, before the acknowledgement


@dataclass(frozen=True, slots=True)
class Payment:
    """One message: an amount in cents for an account."""

    id: str
    account: str
    amount: int
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill -9 at ``step``; the broker delivers the message again after ``redelivery`` seconds."""

    step: Step
    redelivery: float


@dataclass(frozen=True, slots=True)
class Plan:
    """``order`` is the queue, copies included. A slow payment gets one more, ``LATE`` into its handler."""

    payments: Mapping[str, Payment]
    order: tuple[str, ...]
    kills: Mapping[str, Kill]

    @property
    def copies(self) -> int:
        """How many acknowledgements empty the queue."""
        return len(self.order) + sum(payment.slow for payment in self.payments.values())

    @property
    def total(self) -> int:
        """The money that should have moved, in cents."""
        return sum(payment.amount for payment in self.payments.values())


def make_plan(messages: int, seed: int) -> Plan:
    """The same arguments give the same plan, on every machine."""
    rng = Random(seed)  # noqa: S311 - repeatable, not secret
    ids = [f"pay-{number:06d}" for number in range(messages)]
    kills = _kills(rng, ids)
    slow = set(rng.sample([i for i in ids if i not in kills], min(_MOST_SLOW, max(1, messages // 100))))
    payments = {
        i: Payment(i, f"acct-{rng.randrange(_ACCOUNTS):02d}", rng.randrange(100, 50_000), i in slow)
        for i in ids
    }
    return Plan(payments, _order(rng, [i for i in ids if i not in slow], ids), kills)


def _kills(rng: Random, ids: list[str]) -> dict[str, Kill]:
    """Every step in turn, redelivered at once (a closed connection) and late (a visibility timeout)."""
    kinds = [Kill(step, redelivery) for redelivery, step in product((0.0, LATE), Step)]
    count = max(len(kinds), len(ids) * _KILLS_PER_CENT // 100)
    victims = rng.sample(ids, count)
    return {victim: kinds[number % len(kinds)] for number, victim in enumerate(victims)}


def _order(rng: Random, repeated: list[str], ids: list[str]) -> tuple[str, ...]:
    """Half of the payments come twice: a third of those side by side, so at the same time."""
    places = [(float(place), i) for place, i in enumerate(ids)]
    place_of = {i: place for place, i in places}
    for i in rng.sample(repeated, len(ids) // 2):
        gap = 0.1 if rng.random() < 1 / 3 else rng.uniform(1, _FARTHEST)
        places.append((place_of[i] + gap, i))
    return tuple(i for _, i in sorted(places))
