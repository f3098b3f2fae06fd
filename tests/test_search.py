"""Explicit-state search: the real flows keep their promises in every order of events, for small sizes;
and when any one rule is removed the search finds out, and says how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from onceonly.core import flows
from onceonly.core.effects import Claim, Flow, Run, lease_lost
from onceonly.errors import StoreUnavailable
from onceonly.protocols import Clock
from onceonly.settings import Policy
from onceonly.stores.rules import Entry, Rules
from onceonly.testing.broken import claim_rules, rules
from onceonly.types import Acquired, Busy, ClaimRequest, Completion, Done, Outcome, Status, Verdict
from tests.search.explore import Report, explore
from tests.search.world import LEASE, Config

STALLS = Config("two workers, stalls and crashes", faults={"crash": 1, "stall": 1, "tick": 1, "renew": 1})
NETWORK = Config(
    "two workers, a bad network",
    faults={"lose request": 2, "lose reply": 2, "stall": 1},
)
BOTH = Config(
    "two workers, a bit of everything",
    faults={"crash": 1, "lose request": 1, "lose reply": 1, "raise after": 1, "stall": 1},
)
POISON = Config(
    "two workers, a poison message",
    deliveries=4,
    faults={"raise before": 3, "raise after": 1, "crash": 1, "stall": 1},
    options={"max_attempts": 2},
)
STORED = Config(
    "two workers, failures are stored",
    faults={"raise before": 1, "crash": 1, "lose reply": 1, "lose request": 1, "stall": 1},
    options={"store_failure": lambda error: True},
)
WAITING = Config(
    "two workers that wait",
    faults={"raise before": 1, "lose reply": 1, "stall": 1},
    options={"on_in_flight": "wait", "wait_timeout": LEASE},
)
THREE = Config(
    "three workers", workers=3, copies=3, deliveries=4, faults={"crash": 1, "stall": 1, "raise before": 1}
)
THREE_LOSING = Config(
    "three workers, replies lost",
    workers=3,
    copies=3,
    deliveries=4,
    faults={"crash": 1, "lose reply": 1, "stall": 1},
)
PROBED = Config(  # crashes only, and the probe tells: not one double is excused
    "three workers and a probe",
    workers=3,
    copies=3,
    deliveries=5,
    faults={"crash": 2, "stall": 2, "raise before": 1, "probe raises": 1},
    options={"on_orphan": lambda: None},
    exact=True,
)
# A reply that is lost is noticed late, as with a socket's timeout.
TIMEOUTS = Config("two workers, slow timeouts", faults={"time out": 2, "tick": 1, "renew": 1})

CONFIGS = (STALLS, NETWORK, BOTH, POISON, STORED, WAITING, THREE, THREE_LOSING, PROBED)


def _name(config: Config) -> str:
    return config.name


def _keeps_its_promises(config: Config) -> None:
    report = explore(config)
    print(f"\n{config.name}: {report}")  # noqa: T201 - seen with -s
    assert report.violation is None, f"{config.name}: {report}"
    assert report.states > 1000
    assert report.finals > 10
    assert all(report.kinds[fault] for fault in config.faults), f"a fault never struck: {report}"


@pytest.mark.parametrize("config", CONFIGS, ids=_name)
def test_no_order_of_events_breaks_a_promise(config):
    _keeps_its_promises(config)


def test_no_worker_trusts_its_lease_longer_than_the_store():
    _keeps_its_promises(TIMEOUTS)


def test_the_search_sees_doubles_that_are_excused():
    effects = explore(BOTH).effects
    assert effects[1]
    assert effects[2], "no double in spite of stalls and crashes: the faults do not bite"


# --- one rule removed -------------------------------------------------------------------------


class TakeOverKeepsFence(Rules):
    """Whoever takes over gets the fence of the one before."""

    def acquire(
        self,
        entry: Entry,
        request: ClaimRequest,
        now: float,
        mint: Callable[[], int],
        *,
        orphaned: bool = False,
    ) -> Acquired:
        fence = entry.fence
        return super().acquire(entry, request, now, (lambda: fence) if orphaned else mint, orphaned=orphaned)


BROKEN_RULES = (
    (rules.NoTokenCheckOnComplete, STALLS, "stale complete"),
    (rules.NoTokenCheckOnRelease, POISON, "stale release"),
    (rules.NoTokenCheckOnRenew, STALLS, "renew succeeds after another took over"),
    (rules.TakesOverRunningLease, STALLS, "acquires while another lease runs"),
    (rules.ReleaseForgetsAttempts, POISON, "started 3 times"),
    (rules.ReleaseDeletesTheRecord, POISON, "started 3 times"),
    (rules.LeaseNeverEnds, STALLS, "does not settle"),
    (rules.CompleteAlwaysTrue, STALLS, "complete succeeds after another took over"),
    (rules.CompleteOnlyOnce, NETWORK, "told LeaseLost, and nobody took its claim"),
    (rules.CompleteOfDoneSaysTrue, STALLS, "complete succeeds after another took over"),
    (rules.RenewAlwaysTrue, STALLS, "renew succeeds after another took over"),
    (claim_rules.ResentClaimMintsAnother, NETWORK, "got another claim"),
    (claim_rules.TakeOverResetsAttempts, POISON, "started 3 times"),
    (rules.UnstartedReleaseSettlesTheOrphan, PROBED, "although the probe can tell"),
    (claim_rules.OrphansAreNotTold, PROBED, "although the probe can tell"),
    (claim_rules.DoneRunsAgain, STALLS, "2 effects, 0 excuses"),
    (TakeOverKeepsFence, STALLS, "fence"),
)


def _title(value: object) -> str:
    return value.name if isinstance(value, Config) else getattr(value, "__name__", str(value))


def _is_found(report: Report, words: str) -> None:
    print(f"\n{report}")  # noqa: T201 - seen with -s
    assert report.violation is not None, f"the search found nothing wrong: {report}"
    assert words in report.violation, f"found something else: {report}"
    assert report.path


@pytest.mark.parametrize(("broken", "config", "words"), BROKEN_RULES, ids=_title)
def test_a_rule_removed_from_the_store_is_found(broken, config, words):
    _is_found(explore(replace(config, rules=broken)), words)


def _busy_is_a_duplicate(policy: Policy, request: ClaimRequest, answer: Busy | Done) -> Outcome[object]:
    """The textbook: SET NX said no, so somebody has handled it."""
    return Outcome(Verdict.DUPLICATE)


def _done_before_the_handler(policy: Policy, claim: Claim, clock: Clock) -> Flow:
    """The textbook: remember first, then handle."""
    yield from flows._complete(policy, claim, Status.PROCESSED, None, clock)
    result = yield Run(claim)
    return Outcome(Verdict.PROCESSED, result, claim.attempt)


def _never_completed(policy: Policy, claim: Claim, clock: Clock) -> Flow:
    """Acknowledges what it has not recorded."""
    result = yield Run(claim)
    return Outcome(Verdict.PROCESSED, result, claim.attempt)


def _released_when_in_doubt(policy: Policy, claim: Claim, *args: object, result: object = None) -> Flow:
    """A completion that fails is taken for a handler that failed."""
    completion = Completion(claim.id, claim.token, policy.window or 0.0)
    try:
        done = yield completion
    except StoreUnavailable:
        yield from flows._release(policy, claim)
        raise
    if not done:
        raise lease_lost(claim)
    return Outcome(Verdict.PROCESSED)


def _refusal_ignored(policy: Policy, claim: Claim, *args: object, result: object = None) -> Flow:
    """Does not look at what the store answered to its completion."""
    yield Completion(claim.id, claim.token, policy.window or 0.0)
    return Outcome(Verdict.PROCESSED)


BROKEN_FLOWS = (
    ("_settled", _busy_is_a_duplicate, STALLS, "acks duplicate while the record is claimed"),
    ("_run", _done_before_the_handler, STALLS, "nothing took effect"),
    ("_run", _never_completed, STALLS, "while the record is claimed"),
    ("_complete", _released_when_in_doubt, NETWORK, "2 effects, 0 excuses"),
    ("_complete", _refusal_ignored, STALLS, "acks processed while the record is claimed"),
)


@pytest.mark.parametrize(("name", "broken", "config", "words"), BROKEN_FLOWS, ids=_title)
def test_a_rule_removed_from_the_flows_is_found(monkeypatch, name, broken, config, words):
    monkeypatch.setattr(flows, name, broken)
    _is_found(explore(config), words)
