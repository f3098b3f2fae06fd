"""A bar on a terminal: lines, duplicates, rate, and the time left where the size is known."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from onceonly.cli.dedupe.filtering import Counts
from onceonly.cli.dedupe.reading import Source

_REFRESH = 0.1

Progress = Callable[[int], None]
"""Told how many bytes were read."""


@contextmanager
def progress(sources: Sequence[Source], counts: Counts, *, to_file: bool) -> Iterator[Progress]:
    """On the standard error, if that is a terminal and no records go to the same one."""
    if not sys.stderr.isatty() or (sys.stdout.isatty() and not to_file):
        yield lambda _size: None
        return
    sizes = [each.size for each in sources]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    with Bar(*_columns(total), console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total, said="")
        start, drawn = time.monotonic(), 0.0

        def read(size: int) -> None:
            nonlocal drawn
            bar.advance(task, size)
            now = time.monotonic()
            if now - drawn > _REFRESH:
                drawn = now
                bar.update(task, said=_said(counts, now - start))
                bar.refresh()

        yield read
        bar.update(task, said=_said(counts, time.monotonic() - start))
        bar.refresh()


def _columns(total: int | None) -> list[TextColumn | BarColumn | TimeElapsedColumn | TimeRemainingColumn]:
    said = TextColumn("{task.fields[said]}")
    return [said, TimeElapsedColumn()] if total is None else [BarColumn(20), said, TimeRemainingColumn()]


def _said(counts: Counts, seconds: float) -> str:
    rate = counts.lines / seconds if seconds else 0.0
    return f"{counts.lines:,} lines, {counts.duplicates:,} duplicates, {rate:,.0f}/s"
