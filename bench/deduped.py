"""``onceonly dedupe`` beside ``awk '!seen[$0]++'`` and DuckDB's DISTINCT, on the same file in one run."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.core import progress

OURS = "onceonly dedupe, to a file"
OURS_PIPE = "onceonly dedupe, to a pipe"
OURS_AGAIN = "onceonly dedupe, the same file again"
OURS_NDJSON = "onceonly dedupe, NDJSON by $.id"
AWK = "awk '!seen[$0]++'"
DUCKDB = "DuckDB, SELECT DISTINCT"

NOTES = (
    "The file: lines of 68 bytes, one in ten a repeat of an earlier one, at random. NDJSON: 90 bytes a line.",
    "awk and DuckDB keep what they have seen in memory and forget it at the end; ours is in SQLite by then.",
    "DuckDB uses all cores and does not keep the order. Whole processes are timed, start to end.",
    "To a file: written, synced, and marked in one transaction for every 200,000 lines.",
    "Memory is the peak of the process (ru_maxrss).",
)

_ALL_WAYS = 1_000_000  # lines; above that only what is compared

_DUCKDB = """
import sys, duckdb
connection = duckdb.connect()
columns = "{'line': 'VARCHAR'}"
read = f"read_csv('{sys.argv[1]}', header=false, delim='\\x01', quote='', escape='', columns={columns})"
connection.execute(f"COPY (SELECT DISTINCT line FROM {read}) TO '{sys.argv[2]}' (HEADER false, QUOTE '')")
"""
_OURS = "from onceonly.cli import main; main()"


class Run(NamedTuple):
    """One process, from start to end."""

    seconds: float
    megabytes: float


class Measured(NamedTuple):
    """Medians of all rounds."""

    lines: int
    rate: float
    megabytes: float


def measure(sizes: Sequence[int], rounds: Callable[[int], int]) -> dict[str, list[Measured]]:
    """Each way at each size; interleaved, so that a slow moment of the machine strikes all."""
    found: dict[str, list[Measured]] = {}
    for lines in sizes:
        runs: dict[str, list[Run]] = {}
        for number in range(rounds(lines)):
            with tempfile.TemporaryDirectory(prefix="onceonly-bench-") as name:
                directory = Path(name)
                write_lines(directory / "in.txt", lines)
                if lines <= _ALL_WAYS:
                    write_ndjson(directory / "in.ndjson", lines)
                for way, run in _ways(directory, lines).items():
                    progress(f"{lines:,} lines, round {number + 1} of {rounds(lines)}: {way}")
                    runs.setdefault(way, []).append(run())
        for way, each in runs.items():
            seconds, megabytes = median(r.seconds for r in each), median(r.megabytes for r in each)
            found.setdefault(way, []).append(Measured(lines, lines / seconds, megabytes))
    progress("")
    return found


def write_lines(path: Path, count: int) -> None:
    start = "2026-11-18T17:00:00Z"
    _write(path, count, lambda n: f"{start} order-{n:09d} customer-{n % 5000:04d} amount={n % 977:03d}.00")


def write_ndjson(path: Path, count: int) -> None:
    rest = '"currency": "EUR", "channel": "web"}'
    _write(
        path, count, lambda n: f'{{"id": "order-{n:09d}", "customer": {n % 5000}, "amount": {n % 977}, {rest}'
    )


def _write(path: Path, count: int, line: Callable[[int], str]) -> None:
    chosen = random.Random(7)  # noqa: S311 - the same file every time
    with path.open("w") as file:
        for n in range(count):
            print(line(n if chosen.random() < 0.9 else chosen.randrange(n + 1)), file=file)


def _ways(directory: Path, lines: int) -> dict[str, Callable[[], Run]]:
    text, rows = str(directory / "in.txt"), str(directory / "in.ndjson")

    def ours(store: str, *options: str) -> list[str]:
        return [sys.executable, "-c", _OURS, "dedupe", "--store", f"sqlite:///{directory / store}", *options]

    to_file = ours("a.db", text, "--output", str(directory / "out.txt"))
    by_id = ours("c.db", rows, "--key", "$.id", "--output", str(directory / "out.ndjson"))
    ways = {
        OURS: lambda: timed(to_file),
        OURS_AGAIN: lambda: timed(to_file),
        OURS_PIPE: lambda: timed(ours("b.db", text), discard=True),
        OURS_NDJSON: lambda: timed(by_id),
        DUCKDB: lambda: timed([sys.executable, "-c", _DUCKDB, text, str(directory / "duck.txt")]),
    }
    awk = shutil.which("awk")
    if awk is not None:
        ways[AWK] = lambda: timed([awk, "!seen[$0]++", text], into=directory / "awk.txt")
    return ways if lines <= _ALL_WAYS else {way: ways[way] for way in (OURS, DUCKDB, AWK) if way in ways}


def timed(command: Sequence[str], *, into: Path | None = None, discard: bool = False) -> Run:
    start = time.perf_counter()
    with (into or Path(os.devnull)).open("wb") as out:
        target = subprocess.PIPE if discard else out
        with subprocess.Popen(command, stdout=target, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
            if discard and process.stdout is not None:
                while process.stdout.read(2**20):
                    pass
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError((process.stderr.read() if process.stderr else b"").decode())
    return Run(time.perf_counter() - start, _megabytes(used))


def _megabytes(used: resource.struct_rusage) -> float:
    return used.ru_maxrss / 1024


def ratios(found: dict[str, list[Measured]]) -> dict[str, float]:
    """Ours to each other, at each size."""
    compared: dict[str, float] = {}
    for other in (AWK, DUCKDB):
        for ours, theirs in zip(found[OURS], found.get(other, ()), strict=False):
            compared[f"dedupe / {other}, {ours.lines:,} lines"] = ours.rate / theirs.rate
    first, last = found[OURS][0], found[OURS][-1]
    if last.lines != first.lines:
        label = f"dedupe: memory at {last.lines:,} lines / at {first.lines:,}"
        compared[label] = last.megabytes / first.megabytes
    return compared
