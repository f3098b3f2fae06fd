"""Filter mode on SQLite: ``first_time_many`` beside the raw limit and the textbook's way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bench.core import Case, Rates, Ratio, sqlite_like_ours, sqlite_url
from onceonly import Once

T = TypeVar("T")

BATCH = 10_000
TIMED = 5  # batches measured at each size
SINGLES = 5_000  # of the textbook, measured at each size


NOTES = (
    f"'N ids in the table': filled to N untimed, then {TIMED} batches of {BATCH:,} new ids are timed.",
    "Raw limit: executemany INSERT OR IGNORE of ready-made sorted 16-byte ids, same pragmas as ours.",
    "It writes one column WITHOUT ROWID, and tells nobody which ids were new.",
    "Textbook: INSERT OR IGNORE of (event_id, processor_id, processed_at), same pragmas, each with a commit.",
    f"{SINGLES:,} are timed; its ids come almost in order, which favours it over random ones.",
)


def _ours(size: int) -> str:
    return f"sqlite: first_time_many, {_table(size)}"


def _raw(size: int) -> str:
    return f"sqlite: raw limit, {_table(size)}"


def _textbook(size: int) -> str:
    return f"sqlite: textbook, one INSERT each, {_table(size)}"


def _table(size: int) -> str:
    return f"{size // 1000}k ids in the table" if size else "empty table"


def ratios(sizes: Sequence[int]) -> list[Ratio]:
    found = []
    for size in sizes:
        at = f"at {size // 1000}k ids" if size else "empty table"
        found.append(Ratio(f"sqlite: first_time_many / textbook, {at}", _ours(size), _textbook(size)))
        found.append(Ratio(f"sqlite: first_time_many / raw limit, {at}", _ours(size), _raw(size)))
    return found


def cases(sizes: Sequence[int]) -> list[Case]:
    """``sizes`` grow; each case fills one file and stops at each size to measure."""
    return [
        Case("first_time_many", lambda at: _run_ours(at, sizes)),
        Case("raw limit", lambda at: _run_raw(at, sizes)),
        Case("textbook", lambda at: _run_textbook(at, sizes)),
    ]


def _run_ours(directory: Path, sizes: Sequence[int]) -> Rates:
    rates: Rates = {}
    with Once(sqlite_url(directory), group="bench") as once:
        keys = _batches(lambda n: [f"event-{i}" for i in range(n, n + BATCH)])
        held = 0
        for size in sizes:
            while held < size:
                once.first_time_many(next(keys))
                held += BATCH
            rates[_ours(size)] = _rate(once.first_time_many, keys)
            held += TIMED * BATCH
    return rates


def _run_raw(directory: Path, sizes: Sequence[int]) -> Rates:
    connection = sqlite_like_ours(directory)
    connection.execute("CREATE TABLE raw (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def insert(batch: Sequence[tuple[bytes]]) -> None:
        with connection:
            connection.executemany("INSERT OR IGNORE INTO raw VALUES (?)", batch)

    rates: Rates = {}
    source = random.Random(20)  # noqa: S311 - ids to compare with, the same each round
    ids = _batches(lambda _: sorted((source.randbytes(16),) for _ in range(BATCH)))
    held = 0
    for size in sizes:
        while held < size:
            insert(next(ids))
            held += BATCH
        rates[_raw(size)] = _rate(insert, ids)
        held += TIMED * BATCH
    connection.close()
    return rates


def _run_textbook(directory: Path, sizes: Sequence[int]) -> Rates:
    connection = sqlite_like_ours(directory)
    connection.execute(
        "CREATE TABLE processed (event_id TEXT, processor_id TEXT, processed_at REAL, "
        "PRIMARY KEY (event_id, processor_id))"
    )
    rates: Rates = {}
    held = 0
    for size in sizes:
        with connection:
            connection.executemany(_INSERT, (_event(number) for number in range(held, size)))
        start = time.perf_counter()
        for number in range(size, size + SINGLES):
            connection.execute(_INSERT, _event(number))
            connection.commit()
        rates[_textbook(size)] = SINGLES / (time.perf_counter() - start)
        held = size + SINGLES
    connection.close()
    return rates


_INSERT = "INSERT OR IGNORE INTO processed VALUES (?, ?, ?)"


def _event(number: int) -> tuple[str, str, float]:
    return f"event-{number}", "bench", time.time()


def _batches(make: Callable[[int], list[T]]) -> Iterator[list[T]]:
    first = 0
    while True:
        yield make(first)
        first += BATCH


def _rate(call: Callable[[list[T]], object], batches: Iterator[list[T]]) -> float:
    """Batches are made outside the time that is measured."""
    ready = [next(batches) for _ in range(TIMED)]
    start = time.perf_counter()
    for batch in ready:
        call(batch)
    return TIMED * BATCH / (time.perf_counter() - start)
