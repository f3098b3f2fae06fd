"""Every store against the model; and the machine against stores that are broken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.stores.rules import Entry, Rules
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import Harness, ManualClock, SyncView
from onceonly.testing.broken import BrokenKind, build, claim_rules, operating, rules, stores
from onceonly.testing.machine import store_machine
from onceonly.types import Completion

FOUND = (
    rules.NoTokenCheckOnComplete,
    rules.NoTokenCheckOnRelease,
    rules.NoTokenCheckOnRenew,
    rules.TakesOverRunningLease,
    rules.ReleaseForgetsAttempts,
    rules.FalsyResultIsNone,
    claim_rules.OrphanIsToldOnce,
    rules.WindowTooLong,
    stores.FenceRestarts,
    stores.PurgeRemovesUnfinished,
    stores.ExpiredStillAnswers,
    claim_rules.MarkForgetsResult,
    claim_rules.LastMarkResultWins,
    stores.ColumnsLoseTheResults,
    operating.RevokeKeepsToken,
    operating.RevokeKeepsDeadline,
    operating.RevokeForgetsAttempts,
    operating.RevokeTrustsAnything,
    operating.RestartKeepsAttempts,
    operating.RestartTakesProcessed,
    operating.ForgetTakesEveryState,
    operating.ForgetCountsTwice,
    operating.FindIgnoresOrphaned,
    operating.FindLimitsFirst,
    operating.FindShowsExpired,
)


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def _memory() -> Harness:
    clock = ManualClock()
    return Harness(MemoryStore(clock=clock), clock.advance)


def _async_memory() -> Harness:
    clock = ManualClock()
    return Harness(SyncView(AsyncMemoryStore(clock=clock)), clock.advance)


@pytest.mark.parametrize("make", [_memory, _async_memory])
def test_memory_is_what_the_model_says(make: Callable[[], Harness]) -> None:
    run_state_machine_as_test(store_machine(make), settings=_settings(100))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sqlite", "async-sqlite"])
def test_sqlite_is_what_the_model_says(asynchronous: bool, tmp_path: Path) -> None:
    numbers = count()

    def make() -> Harness:
        clock, path = ManualClock(), tmp_path / f"{next(numbers)}.db"
        if asynchronous:
            return Harness(SyncView(AsyncSqliteStore(path, clock=clock)), clock.advance)
        return Harness(SqliteStore(path, clock=clock), clock.advance)

    run_state_machine_as_test(store_machine(make), settings=_settings(30))


@pytest.mark.parametrize("kind", FOUND, ids=lambda kind: kind.__name__)
def test_machine_finds_what_is_broken(kind: BrokenKind, tmp_path: Path) -> None:
    def make() -> Harness:
        clock = ManualClock()
        return Harness(build(kind, clock, tmp_path / "unused.db"), clock.advance)

    thorough = settings(
        _settings(1000), phases=[Phase.generate], report_multiple_bugs=False, derandomize=True
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(store_machine(make), settings=thorough)


def test_machine_stays_away_from_edges_where_time_is_not_exact() -> None:
    """A store that keeps records an eighth longer conforms, and passes."""

    class Slack(Rules):
        def complete(self, entry: Entry | None, completion: Completion, now: float) -> bool:
            return super().complete(entry, completion._replace(window=completion.window * 1.12), now)

    def make() -> Harness:
        clock = ManualClock()
        return Harness(MemoryStore(clock=clock, rules=Slack()), clock.advance)

    run_state_machine_as_test(store_machine(make, exact=False), settings=_settings(50))
