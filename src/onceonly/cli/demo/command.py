"""The command: options in, reports out."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from onceonly.cli.common import json_option
from onceonly.cli.demo.consumers import CONSUMERS, Consumer
from onceonly.cli.demo.courier import Courier, DemoFailed
from onceonly.cli.demo.faults import Faults
from onceonly.cli.demo.judge import Report, judge
from onceonly.cli.demo.plan import Plan, make_plan
from onceonly.cli.demo.report import conclude, introduce, progress
from onceonly.cli.signals import EndRequests

_WORKERS = "Processes; two at least, or no copy could meet a slow handler."
_Watch = Callable[[str], AbstractContextManager[Callable[[], None]]]


@click.command()
@click.option("--messages", type=click.IntRange(min=50), default=2000, show_default=True, help="Payments.")
@click.option("--workers", type=click.IntRange(2, 16), default=4, show_default=True, help=_WORKERS)
@click.option("--seed", type=int, default=20, show_default=True, help="Same seed, same plan of faults.")
@json_option
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep ledgers, logs and databases in DIR, which must be new or empty.",
)
def demo(*, messages: int, workers: int, seed: int, as_json: bool, keep: Path | None) -> None:
    """Kill workers, and count the effects.

    Payments are delivered more than once to workers that die. The same duplicates, slow handlers and kill
    -9 meet the textbook's dedup and both modes of onceonly, on SQLite, without a server. Ends with 1 if
    onceonly broke a promise.
    """
    plan = make_plan(messages, seed)
    with EndRequests() as asked, _work_files(keep) as directory:
        stage = _Stage(plan, workers, directory, asked)
        try:
            reports = _as_json(stage) if as_json else _run(stage, seed)
            _all_fired(reports)
        except DemoFailed as error:
            raise click.ClickException(str(error)) from error
    sys.exit(1 if any(report.broken_promises for report in reports) else 0)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What every consumer meets alike."""

    plan: Plan
    workers: int
    directory: Path
    asked: EndRequests


def _run(stage: _Stage, seed: int) -> list[Report]:
    console = Console()
    introduce(console, stage.plan, stage.workers, seed)
    reports = list(_reports(stage, lambda name: progress(console, name, stage.plan)))
    conclude(console, reports)
    return reports


def _as_json(stage: _Stage) -> list[Report]:
    reports = []
    for report in _reports(stage, lambda _: nullcontext(lambda: None)):
        click.echo(json.dumps(report.as_json()))
        for promise in report.broken_promises:
            click.echo(f"{report.consumer}: {promise}", err=True)
        reports.append(report)
    return reports


def _reports(stage: _Stage, watch: _Watch) -> Iterator[Report]:
    """Each consumer in turn, in a directory of its own, under the same plan."""
    for kind in CONSUMERS:
        place = stage.directory / kind.name
        place.mkdir()
        consumer = kind(place, Faults(place, stage.plan.kills))
        with watch(kind.name) as acked:
            report = _consume(stage, consumer, acked)
        yield report


def _all_fired(reports: list[Report]) -> None:
    silent = [f"{report.consumer}: never fired: {kind}" for report in reports for kind in report.silent]
    if silent:
        raise DemoFailed("\n".join(silent))


def _consume(stage: _Stage, consumer: Consumer, acked: Callable[[], None]) -> Report:
    consumer.prepare()
    courier = Courier(stage.plan, consumer, stage.workers, acked, stage.asked.check)
    courier.run(seconds=60 + stage.plan.copies / 50)
    return judge(consumer.name, stage.plan, courier.delivered, consumer.effects(), consumer.faults.entries())


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
