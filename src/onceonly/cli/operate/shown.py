"""Tables for people, objects for machines. What comes from records is text, never markup or control codes."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly.cli.common import safe
from onceonly.cli.operate.wording import condition, iso
from onceonly.types import Record

_WIDEST = 100_000


def console(*, stderr: bool = False) -> Console:
    """Shows text as it is."""
    _tolerant(stderr=stderr)
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def say(text: str, *, stderr: bool = False) -> None:
    """One line, as long as it is."""
    _tolerant(stderr=stderr).write(safe(text) + "\n")


def _tolerant(*, stderr: bool = False) -> TextIO:
    """What the stream's encoding cannot write is escaped: a key must not end the command."""
    stream: TextIO | None = sys.stderr if stderr else sys.stdout
    if stream is None:  # closed by whoever started us
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[str] = ()) -> None:
    """A table, without its empty columns. Nothing is ever cut off: a terminal that is too narrow
    gets one line per cell instead; a pipe gets aligned columns and nothing else."""
    kept = [i for i, _ in enumerate(headers) if any(row[i] for row in rows)]
    names = [headers[i] for i in kept]
    cells = [[safe(row[i]) for i in kept] for row in rows]
    if not _tolerant().isatty():
        _columns([names, *cells])
        return
    out = console()
    drawn = _drawn(names, cells, set(numbers))
    if out.measure(drawn, options=out.options.update(max_width=_WIDEST)).maximum > out.width:
        blocks([list(zip(names, row, strict=True)) for row in cells])
    else:
        out.print(drawn)


def _drawn(names: Sequence[str], cells: Sequence[Sequence[str]], numbers: set[str]) -> Table:
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        drawn.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _columns(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(cell_len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        say(
            "  ".join(
                cell + " " * (w - cell_len(cell)) for cell, w in zip(line, widths, strict=True)
            ).rstrip()
        )


def blocks(records: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Each record as lines of name and value, with an empty line between two records."""
    for number, fields in enumerate(records):
        if number:
            say("")
        widest = max(len(name) for name, _ in fields)
        for name, value in fields:
            if value:
                say(f"{name:<{widest}}  {value}")


def as_line(values: Mapping[str, object]) -> None:
    """One JSON object on one line, in ASCII."""
    _tolerant().write(json.dumps(values) + "\n")


def both(name: str, moment: float | None) -> dict[str, object]:
    """A time for machines and for people."""
    return {name: moment, f"{name}_iso": None if moment is None else iso(moment)}


def record_object(record: Record) -> dict[str, object]:
    """All of a record but its result."""
    return {
        "group": record.id.group,
        "scope": record.id.scope,
        "key": record.id.key,
        "state": condition(record).value,
        "type": record.type,
        "attempt": record.attempt,
        "fence": record.fence,
        **both("claimed_at", record.claimed_at),
        **both("lease_until", record.lease_until),
        **both("not_before", record.not_before),
        **both("done_at", record.done_at),
        **both("expires_at", record.expires_at),
        "fingerprint": None if record.fingerprint is None else record.fingerprint.hex(),
        "result_bytes": None if record.result is None else len(record.result),
    }
