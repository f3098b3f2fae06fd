"""Where the time of one message goes: SQL, store or engine."""

from __future__ import annotations

import cProfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType

from bench.core import sqlite_url
from bench.filtered import BATCH
from bench.leased import messages_of, run_one_by_one
from onceonly import Once

NOTE = "cProfile slows Python down and leaves C alone: the SQL's true share is larger than shown."


def profile_split(messages: int) -> dict[str, dict[str, float]]:
    """Shares of this thread's time on SQLite, for each of the two calls."""
    work = messages_of(messages)
    batches = [[f"event-{n}" for n in range(first, first + BATCH)] for first in range(0, 20 * BATCH, BATCH)]
    return {
        "process": _profiled(lambda once: run_one_by_one(once, work)),
        "first_time_many": _profiled(lambda once: [once.first_time_many(batch) for batch in batches]),
    }


def _profiled(work: Callable[[Once], object]) -> dict[str, float]:
    profiler = cProfile.Profile()
    with (
        tempfile.TemporaryDirectory(prefix="onceonly-bench-") as directory,
        Once(sqlite_url(Path(directory)), group="bench") as once,
    ):
        profiler.enable()
        work(once)
        profiler.disable()
    return _shares(profiler)


def _shares(profiler: cProfile.Profile) -> dict[str, float]:
    times: Counter[str] = Counter()
    for entry in profiler.getstats():
        if not isinstance(entry.code, CodeType):
            continue  # counted where it is called, below
        part = _part(entry.code.co_filename)
        times[part] += entry.inlinetime  # type: ignore[assignment]
        for called in entry.calls or ():
            if isinstance(called.code, str):
                times["SQL" if "sqlite3" in called.code else part] += called.inlinetime  # type: ignore[assignment]
    total = sum(times.values())
    return {part: seconds / total for part, seconds in times.most_common()}


def _part(filename: str) -> str:
    parts = Path(filename).parts
    if "stores" in parts:
        return "store"
    return "engine" if "onceonly" in parts else "the rest"
