"""A run as JSON, as a table on a terminal, or as plain text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.core import Report

Rows = Sequence[tuple[str, ...]]


def as_json(report: Report) -> str:
    rates = {name: rate._asdict() for name, rate in report.rates.items()}
    return json.dumps({**report._asdict(), "rates": rates}, indent=2)


def show(report: Report) -> None:
    """Ratios first: they carry over to another machine better than rates do."""
    ratios = [(label, f"{ratio:.2f} ×") for label, ratio in report.ratios.items()]
    show_table(("ratio of medians", "times"), ratios)
    rates = [
        (name, f"{rate.median:,.0f}", f"{rate.slowest:,.0f} – {rate.fastest:,.0f}")
        for name, rate in report.rates.items()
    ]
    show_table(("messages per second", "median", "range"), rates)
    print(f"{report.rounds} interleaved rounds, " + ", ".join(f"{k} {v}" for k, v in report.machine.items()))
    for note in report.notes:
        print(f"- {note}")


def show_table(heads: tuple[str, ...], rows: Rows) -> None:
    if sys.stdout.isatty():
        table = Table(*heads)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    else:
        _plain(heads, rows)


def _plain(heads: tuple[str, ...], rows: Rows) -> None:
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        first, *rest = (
            text.ljust(w) if i == 0 else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *rest)))
    print()
