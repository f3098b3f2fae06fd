"""Where the time of one message goes: SQL, store or engine."""

from __future__ import annotations

import cProfile
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType

from bench.core import sqlite_url
from bench.leased import messages_of, run_one_by_one
from onceonly import Once

NOTE = "cProfile slows Python down and leaves C alone: the SQL's true share is larger than shown."


def profile_split(messages: int) -> dict[str, float]:
    """Shares of ``Once.process`` on SQLite, of this thread's time."""
    profiler = cProfile.Profile()
    with (
        tempfile.TemporaryDirectory(prefix="onceonly-bench-") as directory,
        Once(sqlite_url(Path(directory)), group="bench") as once,
    ):
        work = messages_of(messages)
        profiler.enable()
        run_one_by_one(once, work)
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
