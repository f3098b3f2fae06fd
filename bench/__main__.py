"""``python -m bench``: one run, ratios first."""

from __future__ import annotations

import argparse
import json

from bench import filtered, leased, report
from bench.core import Report, compare, machine, measure
from bench.split import NOTE, profile_split

_ROUNDS = 5


def main() -> None:
    options = _options()
    if options.profile:
        _show_profile(as_json=options.json)
        return
    found = run(quick=options.quick)
    if options.json:
        print(report.as_json(found))
    else:
        report.show(found)


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
    parser.add_argument("--profile", action="store_true", help="where the time goes, instead of how fast")
    return parser.parse_args()


if __name__ == "__main__":
    main()
