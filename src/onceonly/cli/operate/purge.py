"""``onceonly purge``: give the space of expired records back, once or as a job."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import Progress, SpinnerColumn, TextColumn

from onceonly.cli.common import Command, Refused, json_option, length, opened, store_option
from onceonly.cli.operate.shown import as_line, console, say
from onceonly.cli.operate.wording import iso
from onceonly.cli.signals import EndRequests
from onceonly.core.engine import PURGE_STEP
from onceonly.errors import StoreError

_LOOK = 0.2  # seconds between looks whether we are to end
_JITTER = 0.1  # of the pause, so that the jobs of several hosts do not meet for ever


@click.command(cls=Command)
@store_option
@click.option("--every", callback=length, metavar="DURATION", help="Go on for ever, with such a pause: 15m.")
@json_option
def purge(*, store: str | None, every: float | None, as_json: bool) -> None:
    """Remove what has expired.

    In short steps beside the traffic; it never changes an answer. With --every a store that is away is
    tried again in the next round. SIGTERM and Ctrl-C end it after the step at hand. It is for all groups:
    what has expired is remembered for none of them.
    """
    with EndRequests() as asked:
        _round(store, asked.check, first=True, job=every is not None, as_json=as_json)
        while every is not None:
            _sleep(every * random.uniform(1 - _JITTER, 1 + _JITTER), asked.check)  # noqa: S311 - no secret
            _round(store, asked.check, first=False, job=True, as_json=as_json)


def _round(url: str | None, check: Callable[[], None], *, first: bool, job: bool, as_json: bool) -> None:
    """On a store that is opened for it: a job may outlive a file."""
    start, removed = time.monotonic(), 0
    try:
        with opened(url) as store, _progress() as shown:
            while True:
                step = store.purge(limit=PURGE_STEP)
                removed += step
                shown(removed)
                check()
                if step < PURGE_STEP:
                    break
    except (StoreError, Refused) as error:
        if not job or (first and isinstance(error, Refused)):  # a store that never was is a wrong setting
            raise
        said = error.message if isinstance(error, Refused) else error
        say(f"{iso(time.time())} {said}", stderr=True)
        return
    taken = time.monotonic() - start
    if as_json:
        as_line({"at": iso(time.time()), "removed": removed, "seconds": round(taken, 3)})
    else:
        at = f"{iso(time.time())} " if job else ""
        say(f"{at}{removed:,} expired records removed in {taken:.1f} s")
    sys.stdout.flush()


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
