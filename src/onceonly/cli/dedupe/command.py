"""The command: options in, records out, a summary at the end."""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from onceonly.cli.common import Command, Exit, F, Refused, json_option, opened, store_option
from onceonly.cli.dedupe.filtering import Batch, Filter
from onceonly.cli.dedupe.formats import FORMATS, Csv, Format, Identity, Lines, Ndjson, Records
from onceonly.cli.dedupe.outputs import Output, distinct
from onceonly.cli.dedupe.progress import Progress, progress
from onceonly.cli.dedupe.reading import MAX_LINE, STDIN, Chunk, Source, chunks, source
from onceonly.cli.signals import EndRequests
from onceonly.errors import OnceonlyError
from onceonly.settings import check_name
from onceonly.stores.sqlite import SqliteStore
from onceonly.windows import window_seconds

_LOOKED_UP = 50_000  # lines per transaction where the first of each duplicate is looked up within it
_BATCH_BYTES = 64 * 2**20  # of input; long lines must not fill the memory
_PAUSE = Records()  # nothing came for a while: pass on what is in hand
_TSV = ".tsv"
_NDJSON = (".ndjson", ".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, checked."""

    kind: str | None
    identity: Identity
    delimiter: str | None
    header: bool
    files: dict[str, Path | None]
    append: bool
    batch: int

    def format_of(self, source: Source) -> Format:
        kind = self.kind or self._guess(source)
        if kind == "csv":
            tab = source.path is not None and source.path.suffix.lower() == _TSV
            return Csv(self.identity, delimiter=self.delimiter or ("\t" if tab else ","), header=self.header)
        if self.delimiter or not self.header:
            msg = f"{source.name}: --delimiter and --no-header are for CSV: pass --format csv"
            raise Refused(msg, Exit.USAGE)
        if kind == "ndjson":
            key = self.identity.key
            if key is not None and not key.startswith("$"):
                msg = f"--key {key!r}: a key of NDJSON is a path: --key '$.{key}'"
                raise Refused(msg, Exit.USAGE)
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
        if suffix in (".csv", _TSV):
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
@click.option(
    "--group",
    default="dedupe",
    show_default=True,
    metavar="NAME",
    help="Jobs of one group share their records.",
)
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
@click.option("--delimiter", metavar="CHARACTER", help="Between the fields of CSV: a comma, in .tsv a tab.")
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
    delimiter: str | None,
    no_header: bool,
    batch: int,
    as_json: bool,
) -> None:
    """Pass each record of a stream on once.

    From files or the standard input, through a durable store. Fed the same file again, it passes nothing.
    With --output a record is in that file once, also after kill -9 at any moment. To a pipe, a kill may
    repeat one batch at the most; no line is ever lost.
    """
    files = {"output": output, "report": report, "errors": errors}
    if append and not any(files.values()):
        msg = "--append is for --output, --report and --errors"
        raise Refused(msg, Exit.USAGE)
    csv.field_size_limit(MAX_LINE)
    identity = Identity(key, _fields(fingerprint))
    most = min(batch, _LOOKED_UP) if report or (key and fingerprint) else batch
    options = Options(kind, identity, _one(delimiter), not no_header, files, append, most)
    sources = [source(name) for name in inputs or (STDIN,)]
    formats = _formats(sources, options)
    seconds = window_seconds(window, name="--window") or 0.0
    with EndRequests() as asked, opened(store, create=True, bulk=True) as found:
        if not isinstance(found, SqliteStore):
            msg = "dedupe needs a store whose transactions it can share: sqlite:///FILE"
            raise Refused(msg, Exit.USAGE)
        distinct(
            [*found.files, *(s.path for s in sources if s.path)], [path for path in files.values() if path]
        )
        with _filter(found, check_name("group", group), seconds, asked, options) as filtered:
            start = time.monotonic()
            try:
                with progress(sources, filtered.counts, to_file=output is not None) as shown:
                    _run(list(zip(sources, formats, strict=True)), options, filtered, shown, asked)
            finally:
                if not isinstance(sys.exception(), BrokenPipeError):
                    _conclude(filtered, time.monotonic() - start, as_json=as_json)


@contextmanager
def _filter(
    store: SqliteStore, group: str, seconds: float, asked: EndRequests, options: Options
) -> Iterator[Filter]:
    """However it ends, if it ends by itself, the files are closed as ours."""
    try:
        filtered = Filter(store, group, seconds, asked.check, options.open_file, appends=options.append)
        for path, size in filtered.cut:
            click.echo(f"{path}: {size:,} bytes that a killed run had left were cut off", err=True)
        try:
            yield filtered
        finally:
            with suppress(OnceonlyError):
                filtered.finish()
            filtered.close()
    except BrokenPipeError:  # no error: the reader has left, and the command ends as all do
        raise
    except OSError as error:
        place = error.filename or "the standard output"
        msg = f"{place}: {error.strerror}; nothing of this batch is marked: mend it and run again"
        raise Refused(msg, Exit.STORE) from error


def _formats(sources: list[Source], options: Options) -> list[Format]:
    formats = [options.format_of(each) for each in sources]
    if len({type(each) for each in formats}) > 1:
        msg = "these are files of more than one format: run them one by one, or pass --format"
        raise Refused(msg, Exit.USAGE)
    return formats


def _fields(fingerprint: str | None) -> tuple[str, ...]:
    """Names by commas; in double quotes where a name holds one."""
    if fingerprint is None:
        return ()
    names = tuple(name.strip() for name in next(csv.reader([fingerprint], skipinitialspace=True), []))
    if not names or "" in names:
        msg = f"--fingerprint {fingerprint!r} must be names of fields, with commas between them"
        raise Refused(msg, Exit.USAGE)
    return names


def _one(delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    chosen = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    if len(chosen) != 1 or chosen in '\r\n"':
        msg = f"--delimiter {delimiter!r} must be one character, or 'tab'"
        raise Refused(msg, Exit.USAGE)
    return chosen


def _run(
    sources: list[tuple[Source, Format]],
    options: Options,
    filtered: Filter,
    shown: Progress,
    asked: EndRequests,
) -> None:
    batch = Batch()
    try:
        for each, form in sources:
            number = filtered.input(each.name)
            for records, lines, size in _parsed(each, form, options.batch, asked):
                _check_columns(filtered, each, records)
                batch.add(records, number)
                batch.lines += lines
                batch.size += size
                shown(size)
                if batch.lines >= options.batch or batch.size >= _BATCH_BYTES or records is _PAUSE:
                    full, batch = batch, Batch()
                    filtered.settle(full)
                    shown(0)
                    asked.check()
    except (Refused, OnceonlyError):
        filtered.settle(batch)  # all before what cannot be read is done
        raise
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


def _check_columns(filtered: Filter, each: Source, records: Records) -> None:
    if records.columns is None:
        return
    if filtered.columns not in (None, records.columns):
        msg = f"{each.name} has other columns than the file before it: run them one by one"
        raise Refused(msg, Exit.INPUT)
    filtered.columns = records.columns
    filtered.header = filtered.header or records.header


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
