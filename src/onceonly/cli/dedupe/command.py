"""The command: options in, records out, a summary at the end."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from onceonly.cli.common import Command, Exit, Refused, json_option, opened, store_option
from onceonly.cli.dedupe.filtering import Batch, Filter
from onceonly.cli.dedupe.formats import FORMATS, Csv, Format, Identity, Lines, Ndjson, Records
from onceonly.cli.dedupe.outputs import Output, distinct
from onceonly.cli.dedupe.progress import Progress, progress
from onceonly.cli.dedupe.reading import STDIN, Chunk, Source, chunks, source
from onceonly.cli.signals import EndRequests
from onceonly.settings import check_name
from onceonly.stores.sqlite import SqliteStore
from onceonly.windows import window_seconds

F = TypeVar("F", bound=Callable[..., Any])

_BATCH_BYTES = 64 * 2**20  # of input; long lines must not fill the memory
_BROKEN_PIPE = 128 + 13  # as the shell tells it
_PAUSE = Records()  # nothing came for a while: pass on what is in hand
_NDJSON = (".ndjson", ".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, checked."""

    kind: str | None
    identity: Identity
    delimiter: str
    header: bool
    files: dict[str, Path | None]
    append: bool
    batch: int

    def format_of(self, source: Source) -> Format:
        kind = self.kind or self._guess(source)
        if kind == "csv":
            return Csv(self.identity, delimiter=self.delimiter, header=self.header)
        if kind == "ndjson":
            return Ndjson(self.identity)
        if self.identity.key is not None or self.identity.fields:
            msg = (
                f"{source.name}: plain lines have no fields: pass --format ndjson or csv, or leave out --key"
            )
            raise Refused(msg, Exit.USAGE)
        return Lines()

    def _guess(self, source: Source) -> str:
        suffix = "" if source.path is None else source.path.suffix.lower()
        if suffix in _NDJSON:
            return "ndjson"
        if suffix == ".csv":
            return "csv"
        return "ndjson" if (self.identity.key or "").startswith("$") else "lines"

    def open_file(self, name: str, connection: sqlite3.Connection) -> Output | None:
        path = self.files[name]
        return None if path is None else Output(path, connection, append=self.append)


def _file(name: str, text: str) -> Callable[[F], F]:
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(f"--{name}", type=path, metavar="FILE", help=text)


@click.command(cls=Command)
@click.argument("inputs", nargs=-1, metavar="[FILE]...")
@store_option
@click.option("--group", default="dedupe", show_default=True, metavar="NAME", help="Whose records they are.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Else by the name of each file.",
)
@click.option("--key", metavar="PLACE", help="NDJSON: '$.order.id'. CSV: the name, or number, of a column.")
@click.option(
    "--fingerprint",
    metavar="FIELDS",
    help="Fields, by commas. Alone: what makes records equal. With --key: what must not change under it.",
)
@click.option("--window", default="24h", show_default=True, help="How long a record is remembered.")
@_file("output", "Exactly once, also after kill -9. Else to the standard output.")
@_file("report", "Each duplicate, with the place of the first, as NDJSON.")
@_file("errors", "What is malformed, as NDJSON. Without it the first such line ends the run.")
@click.option("--append", is_flag=True, help="Go on behind what these files hold, whoever wrote it.")
@click.option("--delimiter", default=",", show_default=True, help="Between the fields of CSV.")
@click.option("--no-header", is_flag=True, help="CSV whose columns are known by number, from 1.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    default=200_000,
    show_default=True,
    help="Lines per transaction, at the most.",
)
@json_option
def dedupe(
    *,
    inputs: tuple[str, ...],
    store: str | None,
    group: str,
    kind: str | None,
    key: str | None,
    fingerprint: str | None,
    window: str,
    output: Path | None,
    report: Path | None,
    errors: Path | None,
    append: bool,
    delimiter: str,
    no_header: bool,
    batch: int,
    as_json: bool,
) -> None:
    """Pass each record of a stream on once.

    From files or the standard input, through a durable store. Fed the same file again, it passes nothing.
    With --output a record is in that file once, also after kill -9 at any moment. To a pipe, a kill may
    repeat one batch at the most; no line is ever lost.
    """
    fields = tuple(name.strip() for name in fingerprint.split(",")) if fingerprint is not None else ()
    files = {"output": output, "report": report, "errors": errors}
    options = Options(kind, Identity(key, fields), _one(delimiter), not no_header, files, append, batch)
    sources = [source(name) for name in inputs or (STDIN,)]
    seconds = window_seconds(window, name="--window") or 0.0
    distinct([s.path for s in sources if s.path], [path for path in files.values() if path])
    start = time.monotonic()
    with EndRequests() as asked, opened(store, create=True, bulk=True) as found:
        if not isinstance(found, SqliteStore):
            msg = "dedupe needs a store whose transactions it can share: sqlite:///FILE"
            raise Refused(msg, Exit.USAGE)
        filtered = Filter(found, check_name("group", group), seconds, asked.check, options.open_file)
        try:
            with progress(sources, filtered.counts, to_file=output is not None) as shown:
                _run(sources, options, filtered, shown, asked)
            filtered.finish()
        except BrokenPipeError:
            sys.exit(_BROKEN_PIPE)
        finally:
            filtered.close()
    _conclude(filtered, time.monotonic() - start, as_json=as_json)


def _one(delimiter: str) -> str:
    chosen = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    if len(chosen) != 1 or chosen in '\r\n"':
        msg = f"--delimiter {delimiter!r} must be one character, or 'tab'"
        raise Refused(msg, Exit.USAGE)
    return chosen


def _run(
    sources: list[Source], options: Options, filtered: Filter, shown: Progress, asked: EndRequests
) -> None:
    formats = [options.format_of(each) for each in sources]
    batch = Batch()
    for each, form in zip(sources, formats, strict=True):
        number = filtered.input(each.name)
        for records, lines, size in _parsed(each, form, options.batch, asked):
            _check_header(filtered, each, records)
            batch.add(records, number)
            batch.lines += lines
            batch.size += size
            shown(size)
            if batch.lines >= options.batch or batch.size >= _BATCH_BYTES or records is _PAUSE:
                filtered.settle(batch)
                batch = Batch()
                shown(0)
                asked.check()
    filtered.settle(batch)
    shown(0)


def _parsed(each: Source, form: Format, most: int, asked: EndRequests) -> Iterator[tuple[Records, int, int]]:
    """Records, and how many lines and bytes were read for them; not more lines than ``most`` at a time."""
    for chunk in chunks(each, asked.check):
        if chunk is None:
            yield _PAUSE, 0, 0
        else:
            size = chunk.size
            for part in _parts(chunk, most):
                yield form.parse(part), len(part.lines), size
                size = 0
    yield form.end(), 0, 0


def _parts(chunk: Chunk, most: int) -> Iterator[Chunk]:
    lines = chunk.lines
    if len(lines) <= most:
        yield chunk
        return
    for at in range(0, len(lines), most):
        yield Chunk(chunk.number + at, lines[at : at + most], 0)


def _check_header(filtered: Filter, each: Source, records: Records) -> None:
    header = records.header
    if header is None:
        return
    if filtered.header is not None and filtered.header.rstrip("\r") != header.rstrip("\r"):
        msg = f"{each.name} has other columns than the file before it: run them one by one"
        raise Refused(msg, Exit.INPUT)
    filtered.header = header


def _conclude(filtered: Filter, seconds: float, *, as_json: bool) -> None:
    counts = filtered.counts
    if as_json:
        found = {"lines": counts.lines, "passed": counts.passed, "duplicates": counts.duplicates}
        found |= {"malformed": counts.malformed, "seconds": round(seconds, 3)}  # type: ignore[dict-item]
        click.echo(json.dumps(found), err=filtered.output is None)
        return
    duplicates = "1 duplicate" if counts.duplicates == 1 else f"{counts.duplicates:,} duplicates"
    malformed = f", {counts.malformed:,} malformed" if counts.malformed else ""
    click.echo(
        f"{counts.lines:,} lines: {counts.passed:,} passed on, {duplicates}{malformed}; "
        f"{seconds:.1f} s, {counts.lines / max(seconds, 1e-9):,.0f} lines/s",
        err=True,
    )
