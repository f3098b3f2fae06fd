"""The benchmark runs, compares what it says it compares, and no order of magnitude was lost since."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import deduped, filtered, leased
from bench.core import compare, measure
from tests.commands import ONCEONLY

SIZES = (0,)


@pytest.fixture(scope="module")
def ratios():
    rates = measure([*leased.cases(scale=1), *filtered.cases(SIZES)], rounds=3)
    return compare([*leased.RATIOS, *filtered.ratios(SIZES)], rates)


def test_every_ratio_has_both_its_sides(ratios):
    assert list(ratios) == [ratio.label for ratio in (*leased.RATIOS, *filtered.ratios(SIZES))]


@pytest.mark.parametrize(
    ("label", "least"),
    [  # a sixth or less of what a quiet machine shows: a busy one has shown a third
        ("memory: process / exactly-once without lease", 0.17),
        ("sqlite: process / exactly-once without lease", 0.2),
        ("memory: process / exactly-once with lease", 1.5),
        ("sqlite: process / exactly-once with lease", 1),
        ("sqlite: first_time_many / textbook, empty table", 0.65),
    ],
)
def test_no_order_of_magnitude_was_lost(ratios, label, least):
    assert ratios[label] > least


def test_profile_splits_the_whole_time():
    command = [sys.executable, "-m", "bench", "--profile", "--json"]
    root = Path(__file__).parent.parent
    printed = subprocess.run(command, capture_output=True, check=True, cwd=root, text=True).stdout
    shares = json.loads(printed)["profile"]
    assert {call: pytest.approx(1) for call in ("process", "first_time_many")} == {
        call: sum(parts.values()) for call, parts in shares.items()
    }


def test_dedupe_is_measured_beside_what_keeps_all_in_memory():
    found = deduped.measure((20_000,), rounds=lambda _: 1)
    assert set(found) == {
        *(deduped.OURS, deduped.OURS_AGAIN, deduped.OURS_PIPE, deduped.OURS_NDJSON),
        *(deduped.DUCKDB, deduped.AWK),
    }
    assert all(each.rate > 1000 and each.megabytes > 1 for runs in found.values() for each in runs)
    assert all(ratio > 0 for ratio in deduped.ratios(found).values())


def test_the_memory_of_dedupe_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for lines in (100_000, 600_000):
        deduped.write_lines(tmp_path / "in.txt", lines)
        options = ("--batch", "20000", "--output", str(tmp_path / f"out{lines}"))
        store = f"sqlite:///{tmp_path}/{lines}.db"
        command = [*ONCEONLY, "dedupe", str(tmp_path / "in.txt"), "--store", store, *options]
        peaks.append(deduped.timed(command).megabytes)
    assert peaks[1] - peaks[0] < 55  # about 30 are new rows in SQLite's page cache, which ends at 64
