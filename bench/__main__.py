"""``python -m bench``: one run, ratios first."""

from __future__ import annotations

import argparse
import json

from bench import deduped, filtered, leased, report
from bench.core import Report, compare, machine, measure
from bench.split import NOTE, profile_split

_ROUNDS = 5


def main() -> None:
    options = _options()
    if options.profile:
        _show_profile(as_json=options.json)
        return
    if options.only != "dedupe":
        _show(run(quick=options.quick), as_json=options.json)
    if options.only != "core":
        _show_dedupe(quick=options.quick, as_json=options.json)


def _show(found: Report, *, as_json: bool) -> None:
    if as_json:
        print(report.as_json(found))
    else:
        report.show(found)


def _show_dedupe(*, quick: bool, as_json: bool) -> None:
    sizes = (100_000,) if quick else (1_000_000, 10_000_000)
    found = deduped.measure(sizes, rounds=lambda lines: 3 if lines <= 1_000_000 else 1)
    ratios = deduped.ratios(found)
    if as_json:
        ways = {way: [each._asdict() for each in runs] for way, runs in found.items()}
        print(json.dumps({"dedupe": ways, "ratios": ratios, "notes": deduped.NOTES}, indent=2))
        return
    report.show_table(("ratio of medians", "times"), [(label, f"{r:.2f} ×") for label, r in ratios.items()])
    rows = [
        (way, f"{each.lines:,}", f"{each.rate:,.0f}", f"{each.megabytes:,.0f}")
        for way, runs in found.items()
        for each in runs
    ]
    report.show_table(("dedupe", "lines", "lines per second", "peak MB"), rows)
    for note in deduped.NOTES:
        print(f"- {note}")


def run(*, quick: bool) -> Report:
    sizes = (0, 100_000) if quick else (0, 100_000, 500_000)
    cases = [*leased.cases(scale=1 if quick else 5), *filtered.cases(sizes)]
    rates = measure(cases, _ROUNDS)
    ratios = compare([*leased.RATIOS, *filtered.ratios(sizes)], rates)
    return Report(ratios, rates, _ROUNDS, quick, machine(), [*leased.NOTES, *filtered.NOTES])


def _show_profile(*, as_json: bool) -> None:
    shares = profile_split(messages=5000)
    if as_json:
        print(json.dumps({"profile": shares, "notes": [NOTE]}, indent=2))
        return
    parts = list(shares["process"])
    rows = [(call, *(f"{found.get(part, 0):.0%}" for part in parts)) for call, found in shares.items()]
    report.show_table(("on SQLite, of the time", *parts), rows)
    print(f"- {NOTE}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, 100k ids only")
    parser.add_argument("--only", choices=("core", "dedupe"), help="one half of it")
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead of how fast")
    return parser.parse_args()


if __name__ == "__main__":
    main()
