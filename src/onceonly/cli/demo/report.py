"""The verdict for people: progress on a terminal, then a table, the money, and every repeat explained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from onceonly.cli.demo.judge import Report
from onceonly.cli.demo.plan import LEASE, SLOW, Plan

_REFRESH = 0.1

_SHOWN = (
    "All three met the same duplicates, the same slow handlers and the same kill -9.\n"
    "The textbook loses a payment when its worker dies after the mark and the retry comes\n"
    "before the TTL, and doubles one when the TTL ends first: no TTL avoids both.\n"
    "onceonly lost none. Leased, it repeated an effect only if the process died between the\n"
    "effect and its completion: an on_orphan probe answers for that one. (A process that\n"
    "stalls past its lease can repeat one too, and a fence check downstream refuses it; none\n"
    "was stalled here.) Transactional, where the record commits with the effect, it repeats none."
)

_TABLE_WIDTH = 80


@contextmanager
def progress(console: Console, name: str, plan: Plan) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing in a pipe. Drawn by hand: no thread may run when a worker forks."""
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task(name, total=plan.copies)
        drawn = 0.0

        def acked() -> None:
            nonlocal drawn
            bar.advance(task)
            if time.monotonic() - drawn > _REFRESH:
                bar.refresh()
                drawn = time.monotonic()

        yield acked
        bar.refresh()


def introduce(console: Console, plan: Plan, workers: int, seed: int) -> None:
    faults = f"{len(plan.kills)} kill -9 over five steps, handlers of {SLOW:g} s"
    _say(
        console,
        f"{len(plan.payments):,} payments, {plan.copies:,} copies in the queue, {workers} worker processes.\n"
        f"{faults} under a lease or TTL of {LEASE:g} s; seed {seed}.",
    )


def conclude(console: Console, reports: Sequence[Report]) -> None:
    # In a narrow terminal a line that wraps can be read, a column that was left out cannot.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(_counts(reports))
    console.print(_balances(reports))
    met = ", ".join(f"{report.consumer} {report.overlaps}" for report in reports)
    _say(console, f"slow handlers that met a copy past their lease: {met}")
    for report in reports:
        if report.consumer == "onceonly-leased":
            _explain(console, report)
    broken = [f"{r.consumer}: {promise}" for r in reports for promise in r.broken_promises]
    if broken:
        _say(console, "\n".join(["BROKEN PROMISES", *broken]))
    elif not any(report.silent for report in reports):
        _say(console, _SHOWN)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=name != "kills fired")
    return table


def _counts(reports: Sequence[Report]) -> Table:
    table = _table("consumer", "delivered", "unique", "effects", "lost", "doubled", "kills fired")
    for r in reports:
        numbers = (r.delivered, r.unique, r.effects, r.lost, r.doubled, r.kills)
        table.add_row(r.consumer, *(f"{number:,}" for number in numbers))
    return table


def _balances(reports: Sequence[Report]) -> Table:
    table = _table("balances", "expected", "in the ledger", "difference")
    for r in reports:
        difference = f"{(r.total - r.expected) / 100:+,.2f}" if r.total != r.expected else "0.00"
        table.add_row(r.consumer, f"{r.expected / 100:,.2f}", f"{r.total / 100:,.2f}", difference)
    return table


def _explain(console: Console, report: Report) -> None:
    _say(console, f"{report.consumer}: {report.doubled} doubled")
    for cause, count in report.causes.items():
        _say(console, f"  {count} {cause}")
    for message in report.unexplained:
        _say(console, f"  {message} UNEXPLAINED")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
