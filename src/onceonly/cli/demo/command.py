"""The command: options in, reports out."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import click
from rich.console import Console

from onceonly.cli.demo.consumers import CONSUMERS, Consumer
from onceonly.cli.demo.courier import Courier, DemoFailed
from onceonly.cli.demo.faults import Faults
from onceonly.cli.demo.judge import Report, judge
from onceonly.cli.demo.plan import Plan, make_plan
from onceonly.cli.demo.report import conclude, introduce, progress

_WORKERS = "Processes; two at least, or no copy could meet a slow handler."
_Watch = Callable[[str], AbstractContextManager[Callable[[], None]]]


@click.command()
@click.option("--messages", type=click.IntRange(min=50), default=2000, show_default=True, help="Payments.")
@click.option("--workers", type=click.IntRange(2, 16), default=4, show_default=True, help=_WORKERS)
@click.option("--seed", type=int, default=20, show_default=True, help="Same seed, same plan of faults.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per consumer and line.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep ledgers, logs and databases in DIR, which must be new or empty.",
)
def demo(*, messages: int, workers: int, seed: int, as_json: bool, keep: Path | None) -> None:
    """Deliver payments more than once to workers that die, and count the effects.

    The same duplicates, slow handlers and kill -9 meet the textbook's dedup and both modes of
    onceonly, on SQLite, without a server. Ends with 1 if onceonly broke a promise.
    """
    plan = make_plan(messages, seed)
    with _ended_by_signals(), _work_files(keep) as directory:
        try:
            reports = _as_json(plan, workers, directory) if as_json else _run(plan, workers, seed, directory)
            _all_fired(reports)
        except DemoFailed as error:
            raise click.ClickException(str(error)) from error
    sys.exit(1 if any(report.broken_promises for report in reports) else 0)


def _run(plan: Plan, workers: int, seed: int, directory: Path) -> list[Report]:
    console = Console()
    introduce(console, plan, workers, seed)
    reports = list(_reports(plan, workers, directory, lambda name: progress(console, name, plan)))
    conclude(console, reports)
    return reports


def _as_json(plan: Plan, workers: int, directory: Path) -> list[Report]:
    reports = []
    for report in _reports(plan, workers, directory, lambda _: nullcontext(lambda: None)):
        click.echo(json.dumps(report.as_json()))
        for promise in report.broken_promises:
            click.echo(f"{report.consumer}: {promise}", err=True)
        reports.append(report)
    return reports


def _reports(plan: Plan, workers: int, directory: Path, watch: _Watch) -> Iterator[Report]:
    """Each consumer in turn, in a directory of its own, under the same plan."""
    for kind in CONSUMERS:
        place = directory / kind.name
        place.mkdir()
        consumer = kind(place, Faults(place, plan.kills))
        with watch(kind.name) as acked:
            report = _consume(plan, consumer, workers, acked)
        yield report


def _all_fired(reports: list[Report]) -> None:
    silent = [f"{report.consumer}: never fired: {kind}" for report in reports for kind in report.silent]
    if silent:
        raise DemoFailed("\n".join(silent))


def _consume(plan: Plan, consumer: Consumer, workers: int, acked: Callable[[], None]) -> Report:
    consumer.prepare()
    courier = Courier(plan, consumer, workers, acked)
    courier.run(seconds=60 + plan.copies / 50)
    return judge(consumer.name, plan, courier.delivered, consumer.effects(), consumer.faults.entries())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does: workers stopped, files removed."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


@contextmanager
def _work_files(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="onceonly-demo-") as name:
            yield Path(name)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        msg = f"{keep} is not empty: the demo keeps its files in a new or empty directory"
        raise click.BadParameter(msg, param_hint="'--keep'")
    yield keep
