"""``onceonly purge``: give the space of expired records back, once or as a job."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import Progress, SpinnerColumn, TextColumn

from onceonly.cli.common import Command, json_option, opened, store_option
from onceonly.cli.operate.shown import as_line, console, say
from onceonly.cli.operate.wording import iso
from onceonly.cli.signals import EndRequests
from onceonly.errors import StoreError
from onceonly.protocols import Store
from onceonly.windows import seconds

_STEP = 10_000
_LOOK = 0.2  # seconds between looks whether we are to end
_JITTER = 0.1  # of the pause, so that the jobs of several hosts do not meet for ever


@click.command(cls=Command)
@store_option
@click.option("--every", metavar="DURATION", help="Go on for ever, with such a pause: 15m.")
@json_option
def purge(*, store: str | None, every: str | None, as_json: bool) -> None:
    """Remove what has expired.

    In short steps beside the traffic; it never changes an answer. With --every a store that is away is
    tried again in the next round. SIGTERM and Ctrl-C end it after the step at hand. It is for all groups:
    what has expired is remembered for none of them.
    """
    pause = None if every is None else seconds(every, name="--every")
    with EndRequests() as asked, opened(store) as found:
        while True:
            _round(found, asked.check, again=pause is not None, as_json=as_json)
            if pause is None:
                return
            _sleep(pause * random.uniform(1 - _JITTER, 1 + _JITTER), asked.check)  # noqa: S311 - no secret


def _round(store: Store, check: Callable[[], None], *, again: bool, as_json: bool) -> None:
    start, removed = time.monotonic(), 0
    try:
        with _progress() as shown:
            while True:
                step = store.purge(limit=_STEP)
                removed += step
                shown(removed)
                check()
                if step < _STEP:
                    break
    except StoreError as error:
        if not again:
            raise
        say(f"{iso(time.time())} {error}", stderr=True)
        return
    taken = time.monotonic() - start
    if as_json:
        as_line({"at": iso(time.time()), "removed": removed, "seconds": round(taken, 3)})
    else:
        at = f"{iso(time.time())} " if again else ""
        say(f"{at}{removed:,} expired records removed in {taken:.1f} s")


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A line that counts, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} removed"))
    with Progress(*columns, console=console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)

        def removed(count: int) -> None:
            bar.update(task, completed=count)
            bar.refresh()

        yield removed


def _sleep(pause: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + pause
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _LOOK))
