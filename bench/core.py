"""Rounds, medians and ratios. Nothing here knows what is measured."""

from __future__ import annotations

import gc
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Rates = dict[str, float]
"""Messages per second by name."""


class Case(NamedTuple):
    """Something to measure: given an empty directory, it says how fast it was."""

    name: str
    run: Callable[[Path], Rates]


class Ratio(NamedTuple):
    """One rate divided by another, both of the same run."""

    label: str
    ours: str
    other: str


class Measured(NamedTuple):
    """The median of all rounds, with the slowest and the fastest."""

    median: float
    slowest: float
    fastest: float


class Report(NamedTuple):
    """What one run found."""

    ratios: dict[str, float]
    rates: dict[str, Measured]
    rounds: int
    quick: bool
    machine: dict[str, str]
    notes: Sequence[str]


def measure(cases: Sequence[Case], rounds: int) -> dict[str, Measured]:
    """Interleaved, so that a slow moment of the machine strikes every case and not just one."""
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for case in cases:
            progress(f"round {number + 1} of {rounds}: {case.name}")
            for name, rate in _once(case).items():
                found[name].append(rate)
    progress("")
    return {name: Measured(statistics.median(r), min(r), max(r)) for name, r in found.items()}


def compare(ratios: Sequence[Ratio], rates: dict[str, Measured]) -> dict[str, float]:
    """Those whose both sides were measured; ``--quick`` leaves some out."""
    return {
        ratio.label: rates[ratio.ours].median / rates[ratio.other].median
        for ratio in ratios
        if ratio.ours in rates and ratio.other in rates
    }


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'ours.db'}"


def sqlite_like_ours(directory: Path) -> sqlite3.Connection:
    """A new file with the settings of SqliteStore, for whoever is compared with it."""
    connection = sqlite3.connect(directory / "other.db")
    for pragma in ("page_size=2048", "journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
    for pragma in ("wal_autocheckpoint=16384", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def machine() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.system(),
        "cpus": str(os.cpu_count()),
    }


def _once(case: Case) -> Rates:
    with tempfile.TemporaryDirectory(prefix="onceonly-bench-") as directory:
        gc.collect()
        return case.run(Path(directory))


def progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
