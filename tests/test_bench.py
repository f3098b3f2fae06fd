"""The benchmark runs, compares what it says it compares, and no order of magnitude was lost since."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import filtered, leased
from bench.core import compare, measure

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
