"""One key, a few workers, a broker and a clock: everything that can happen, one action at a time.

The flows, the rules and the watchlist are the real ones. The world keeps its own books about grants,
owners and effects, from what the store answered, and raises ``Violation`` when a promise is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onceonly.core import flows
from onceonly.core.effects import VERBS, Ask, Claim, Effect, Emit, Flow, Run, Sleep
from onceonly.core.renewal import Watchlist
from onceonly.errors import LeaseLost, NotRecorded, OnceonlyError, StoreUnavailable
from onceonly.settings import Options, Policy, resolve
from onceonly.stores.memory import MemoryStore
from onceonly.stores.rules import Entry, Rules
from onceonly.testing.clock import ManualClock
from onceonly.types import Acquired, ClaimRequest, Outcome, RecordId, State, Verdict

LEASE = 10.0
WINDOW = 1_000_000.0  # never ends here: what its end allows is another test's matter
PART = 0.6 * LEASE  # two of these are more than a lease
ID = RecordId("search", "", "key")
START = 1_700_000_000.0

Action = tuple[str, int]  # what, and which worker; -1 is the world
FAULTS = (
    *("crash", "lose request", "lose reply", "time out", "raise before", "raise after", "probe raises"),
    *("stall", "tick", "renew"),
)


class Violation(AssertionError):
    """A promise was broken."""


class Boom(Exception):
    """The handler failed."""


@dataclass(frozen=True, eq=False)
class Config:
    """How large the world is and how often each fault may strike.

    ``stall`` is more than a lease, ``tick`` a part of one; ``time out`` is a reply that is lost, which the
    worker learns a part of a lease later.
    """

    name: str
    workers: int = 2
    copies: int = 2
    deliveries: int = 3
    faults: dict[str, int] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    rules: Callable[[], Rules] = Rules
    exact: bool = False  # no excuse counts: exactly one effect


@cache
def policy_of(config: Config) -> Policy:
    return resolve("search", {"window": WINDOW, "lease": LEASE, **config.options}, environ={})


class Worker:
    """One delivery in the hands of a worker; idle when ``flow`` is None."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"w{index}"
        self.rest()

    def rest(self) -> None:
        self.flow: Flow | None = None
        self.effect: Effect | None = None
        self.token = b""
        self.claim: Claim | None = None
        self.kept = False  # the keeper renews it
        self.running = False  # inside the handler
        self.acted = False  # the handler took effect
        self.landed = False  # the store has its completion


class World:
    """A state, and what can be done in it. The same actions always lead to the same state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.policy = policy_of(config)
        self.clock = ManualClock(START)
        self.store = MemoryStore(clock=self.clock, rules=config.rules())
        self.workers = [Worker(i) for i in range(config.workers)]
        self.left = {fault: config.faults.get(fault, 0) for fault in FAULTS}
        self.copies = config.copies  # unacknowledged, and with no worker
        self.deliveries = 0
        self.effects = 0
        self.starts = 0
        self.acked = False
        self.grants: dict[bytes, float] = {}  # token: end of its lease, as the store answered
        self.owner = b""  # the last to acquire
        self.fence = 0
        self.excused: set[bytes] = set()  # tokens whose effect may be repeated, for a named cause

    # --- what can happen ----------------------------------------------------------------------

    def actions(self) -> list[Action]:
        found: list[Action] = []
        active = [w for w in self.workers if w.flow is not None]
        for worker in active:
            found += self._actions_of(worker)
        idle = next((w for w in self.workers if w.flow is None), None)  # idle ones are all alike
        if idle is not None and self.copies and self.deliveries < self.config.deliveries:
            found.append(("deliver", idle.index))
        if self._time_matters(active):
            found += [(kind, -1) for kind in ("stall", "tick") if self.left[kind]]
        return found

    def _actions_of(self, worker: Worker) -> list[Action]:
        kinds = ["step"]
        if type(worker.effect) in VERBS:
            kinds += ["lose request", "lose reply", "time out"]
        elif isinstance(worker.effect, Ask):
            kinds.append("probe raises")
        elif worker.running:
            kinds += ["raise before", "raise after"]
        if worker.kept:
            kinds.append("renew")
        kinds.append("crash")
        return [(kind, worker.index) for kind in kinds if kind == "step" or self.left[kind]]

    def _time_matters(self, active: list[Worker]) -> bool:
        now = self.clock()
        if self.config.exact and any(w.token in self.grants for w in active):
            return False  # nobody stalls in this world: only the leases of the dead end
        return any(until > now for until in self.grants.values())

    def label(self, action: Action) -> str:
        """The action in words, as seen from the state before it."""
        kind, index = action
        if index < 0:
            return f"{kind}: time passes"
        worker = self.workers[index]
        effect = worker.effect
        if kind == "step" and worker.running:
            what = "handler takes effect and returns"
        elif kind == "step" and isinstance(effect, Run):
            what = "handler starts"
        elif type(effect) in VERBS:
            verb = VERBS[type(effect)]
            what = verb if kind == "step" else f"{kind} ({verb} pending)"
        else:
            what = kind
        return f"{worker.name}: {what}"

    def act(self, action: Action) -> None:
        kind, index = action
        if kind in self.left:
            self.left[kind] -= 1
        if index < 0:
            self.pass_time(LEASE + 1 if kind == "stall" else PART)
            return
        worker = self.workers[index]
        if kind == "step":
            self._step(worker)
        elif kind == "deliver":
            self._deliver(worker)
        elif kind == "crash":
            self._crash(worker)
        elif kind == "renew":
            self._renew(worker)
        else:
            self._fail(worker, kind)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock()
        for worker in self.workers:
            over = self.grants.get(worker.token, now + 1) <= now
            if worker.flow is not None and over and not worker.landed:
                self.excused.add(worker.token)  # it stalled past its lease

    # --- workers ------------------------------------------------------------------------------

    def _deliver(self, worker: Worker) -> None:
        self.copies -= 1
        self.deliveries += 1
        worker.token = b"%d-%d" % (worker.index, self.deliveries)
        request = ClaimRequest(ID, worker.token, self.policy.lease, WINDOW)
        worker.flow = flows.process(self.policy, request, self.clock)
        self._send(worker, None)

    def _step(self, worker: Worker) -> None:
        effect = worker.effect
        if type(effect) in VERBS:
            self._send(worker, self._ask(worker, effect))
        elif isinstance(effect, Ask):
            self._send(worker, self.effects > 0)
        elif worker.running:
            self._take_effect(worker)
            self._send(worker, "result")
        else:
            self._start_handler(worker)

    def _start_handler(self, worker: Worker) -> None:
        now = self.clock()
        if self._granted(worker, now):
            for other in self.workers:
                if other is not worker and other.running and self._granted(other, now):
                    raise Violation(f"{worker.name} starts while {other.name} runs under a live lease")
        worker.running = True
        self.starts += 1
        if self.policy.max_attempts is not None and self.starts > self.policy.max_attempts:
            raise Violation(f"the handler started {self.starts} times")

    def _granted(self, worker: Worker, now: float) -> bool:
        return self.grants.get(worker.token, now) > now

    def _take_effect(self, worker: Worker) -> None:
        self.effects += 1
        worker.acted = True
        if self.effects - 1 > len(self.excused):
            raise Violation(f"{self.effects} effects, {len(self.excused)} excuses")
        if self.config.exact and self.effects > 1:
            raise Violation("doubled, although the probe can tell")

    def _fail(self, worker: Worker, kind: str) -> None:
        if kind in ("raise before", "probe raises"):
            self._throw(worker, Boom())
        elif kind == "raise after":
            self._take_effect(worker)
            self.excused.add(worker.token)
            self._throw(worker, Boom())
        elif kind == "lose request":
            self._throw(worker, StoreUnavailable("no connection"))
        else:
            assert type(worker.effect) in VERBS
            self._ask(worker, worker.effect)
            if kind == "time out":
                self.pass_time(PART)
            self._throw(worker, StoreUnavailable("no reply", unknown=True))

    def _crash(self, worker: Worker) -> None:
        assert worker.flow is not None
        worker.flow.close()
        if worker.acted and not worker.landed:
            self.excused.add(worker.token)
        self._over(worker)

    def _renew(self, worker: Worker) -> None:
        assert worker.claim is not None
        watchlist = Watchlist(self.clock, lambda event: None)
        watchlist.add(worker.claim)
        sent = self.clock()
        (renewal,) = watchlist.renewals([worker.claim])
        ours = self._ask(worker, renewal)
        watchlist.answered([worker.claim], sent, [ours])
        worker.kept = bool(len(watchlist))
        self._check_belief(worker)

    def _send(self, worker: Worker, value: object) -> None:
        assert worker.flow is not None
        self._go_on(worker, worker.flow.send, value)

    def _throw(self, worker: Worker, error: Exception) -> None:
        assert worker.flow is not None
        self._go_on(worker, worker.flow.throw, error)

    def _go_on(self, worker: Worker, move: Callable[[Any], Effect], value: object) -> None:
        """To the next effect that others can come between, or to the end."""
        assert worker.flow is not None
        worker.running = False
        try:
            worker.effect = move(value)
            while isinstance(worker.effect, Sleep | Emit):
                if isinstance(worker.effect, Sleep):
                    self.pass_time(PART)
                worker.effect = worker.flow.send(None)
        except StopIteration as end:
            self._returned(worker, end.value)
        except (OnceonlyError, Boom) as error:
            self._raised(worker, error)
        else:
            if isinstance(worker.effect, Run) and worker.effect.claim is not None:
                worker.claim, worker.kept = worker.effect.claim, True
                self._check_belief(worker)

    def _returned(self, worker: Worker, outcome: Outcome[Any]) -> None:
        entry = self.entry()
        state = entry.state if entry is not None else None
        if outcome.ack and (state is None or not state.done):
            raise Violation(f"{worker.name} acks {outcome.verdict} while the record is {state}")
        if outcome.ack and not self.effects and state is State.PROCESSED:
            raise Violation(f"lost: {worker.name} acks {outcome.verdict}, and nothing took effect")
        if outcome.verdict is Verdict.PROCESSED and not (worker.landed and worker.acted):
            raise Violation(f"{worker.name} returns PROCESSED without effect or completion of its own")
        if outcome.verdict is Verdict.QUARANTINED and state is not State.QUARANTINED:
            raise Violation(f"{worker.name} dead-letters while the record is {state}")
        self.acked = self.acked or outcome.ack
        gone = outcome.ack or outcome.verdict is Verdict.QUARANTINED  # that one is dead-lettered
        self._over(worker, redeliver=not gone)

    def _raised(self, worker: Worker, error: Exception) -> None:
        if isinstance(error, LeaseLost) and self.owner == worker.token:
            raise Violation(f"{worker.name} is told LeaseLost, and nobody took its claim")
        if isinstance(error, NotRecorded) and worker.acted and not worker.landed:
            self.excused.add(worker.token)
        self._over(worker)

    def _over(self, worker: Worker, *, redeliver: bool = True) -> None:
        if not worker.acted or worker.landed:
            self.excused.discard(worker.token)
        self.copies += redeliver
        worker.rest()

    # --- the store, and our books about it ----------------------------------------------------

    def entry(self) -> Entry | None:
        entry = self.store._entries.get(ID)
        return entry if entry is not None and entry.expires > self.clock() else None

    def _ask(self, worker: Worker, request: object) -> Any:
        before, verb = self._record(), VERBS[type(request)]
        (answer,) = getattr(self.store, verb)([request])
        if verb == "claim":
            if type(answer) is Acquired:
                self._acquired(worker, answer)
            return answer
        if before is not None and before[1] != worker.token and self._record() != before:
            raise Violation(f"{worker.name}'s stale {verb} changes the record of another")
        self._written(worker, verb, answer)
        return answer

    def _record(self) -> tuple[object, ...] | None:
        entry = self.entry()
        if entry is None:
            return None
        return entry.state, entry.token, entry.until, entry.attempt, entry.fence, entry.result

    def _acquired(self, worker: Worker, answer: Acquired) -> None:
        now, token = self.clock(), worker.token
        if self.owner == token:
            if answer.fence != self.fence:
                raise Violation(f"{worker.name} asked again and got another claim")
            if self.grants.get(token, 0.0) <= now:
                self._grant(token)
            return
        if any(until > now for until in self.grants.values()):
            raise Violation(f"{worker.name} acquires while another lease runs")
        if answer.fence <= self.fence:
            raise Violation(f"fence {answer.fence} after {self.fence}")
        self.owner, self.fence = token, answer.fence
        self._grant(token)

    def _grant(self, token: bytes) -> None:
        now = self.clock()
        self.grants = {t: until for t, until in self.grants.items() if until > now}
        self.grants[token] = now + LEASE
        self.excused.discard(token)

    def _written(self, worker: Worker, verb: str, answer: bool) -> None:
        ours = self.owner == worker.token
        if answer and not ours:
            raise Violation(f"{worker.name}'s {verb} succeeds after another took over")
        if verb == "renew":
            if answer:
                self._grant(worker.token)
        elif answer:
            self.grants.pop(worker.token, None)
            worker.landed = worker.landed or verb == "complete"

    def _check_belief(self, worker: Worker) -> None:
        """A worker may think that its lease is shorter than the store says, never that it is longer."""
        claim, now = worker.claim, self.clock()
        until = self.grants.get(worker.token, now)
        if claim is not None and until > now and claim.deadline > until + 0.001 and not claim.finishing:
            late = claim.deadline - until
            raise Violation(f"{worker.name} trusts its lease {late:.1f} s longer than the store does")

    # --- the end ------------------------------------------------------------------------------

    def over(self) -> bool:
        """Are all deliveries over?"""
        idle = all(w.flow is None for w in self.workers)
        return idle and (not self.copies or self.deliveries >= self.config.deliveries)

    def probe(self) -> None:
        """At the end: a fresh delivery after all leases must settle the message. Uses the world up."""
        self._check_final()
        self.pass_time(2 * LEASE)
        worker = self.workers[0]
        self.copies += 1
        self._deliver(worker)
        copies = self.copies
        for _ in range(10):
            if worker.flow is None:
                break
            self._step(worker)
        if worker.flow is not None or self.copies != copies:
            raise Violation("a fresh delivery after all leases does not settle the message")
        self._check_final(settled=True)

    def _check_final(self, *, settled: bool = False) -> None:
        entry = self.entry()
        given_up = entry is not None and entry.state in {State.QUARANTINED, State.FAILED}
        if given_up or not (self.acked or settled):
            return
        if not self.effects:
            raise Violation("lost: settled, and nothing took effect")
        if not self.excused and self.effects != 1:
            raise Violation(f"{self.effects} effects without an excuse")

    # --- what makes two states the same -------------------------------------------------------

    def key(self) -> Hashable:
        now = self.clock()
        active = {w.token for w in self.workers if w.flow is not None}
        dead = max((u - now for t, u in self.grants.items() if t not in active), default=0.0)
        return (
            self._entry_key(now),
            tuple(self._worker_key(w, now) for w in self.workers),
            tuple(self.left.values()),
            (self.copies, self.deliveries, self.effects, self.acked),
            self.starts if self.policy.max_attempts is not None else 0,
            len(self.excused - active),
            _ahead(dead),
        )

    def _entry_key(self, now: float) -> Hashable:
        entry = self.entry()
        if entry is None:
            return None
        attempt = entry.attempt if self.policy.max_attempts is not None else 0
        return entry.state, _ahead(entry.until - now), attempt, entry.orphaned

    def _worker_key(self, worker: Worker, now: float) -> Hashable:
        if worker.flow is None:
            return None
        entry, token = self.entry(), worker.token
        return (
            frames(worker.flow, now),
            (worker.kept, worker.running, worker.acted, worker.landed),
            (self.owner == token, entry is not None and entry.token == token, token in self.excused),
            _ahead(self.grants.get(token, now) - now),
        )


def _ahead(seconds: float) -> float:
    return max(0.0, round(seconds, 2))


_SKIPPED = frozenset({"policy", "request", "clock", "completion", "release", "record_id"})


def frames(flow: Any, now: float) -> tuple[Hashable, ...]:
    """Where a flow and the flows in it stand, and what they know."""
    found = []
    while flow is not None:
        frame = flow.gi_frame
        known = tuple((n, _canonical(v, now)) for n, v in frame.f_locals.items() if n not in _SKIPPED)
        found.append((frame.f_code.co_name, frame.f_lasti, known))
        flow = flow.gi_yieldfrom
    return tuple(found)


def _canonical(value: Any, now: float) -> Hashable:
    if isinstance(value, Claim):
        return value.lost, value.finishing, value.attempt, value.orphaned, _ahead(value.deadline - now)
    if isinstance(value, float):
        return round(value - now, 2) if value > 1_000_000 else value
    if isinstance(value, StoreUnavailable):
        return type(value).__name__, value.unknown
    if isinstance(value, tuple | BaseException):
        return type(value).__name__
    return repr(value)
