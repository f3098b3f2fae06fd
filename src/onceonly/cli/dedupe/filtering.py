"""Each new record is passed on once: marked and written in one step, or not at all.

To a file: write, sync, then marks and length in one transaction. To a pipe: write and flush, then commit
the marks; a process that dies in between passes that batch on again, and never loses a line.
"""

from __future__ import annotations

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

from onceonly.cli.common import Exit, Refused
from onceonly.cli.dedupe.formats import Malformed, Records, is_text, line_key
from onceonly.cli.dedupe.outputs import TABLE, Output
from onceonly.cli.dedupe.places import Place, Reports, notes, place_of
from onceonly.cli.dedupe.stdout import SlowReader, Stdout
from onceonly.errors import InFlight, StoreUnavailable
from onceonly.stores.sqlite import SqliteStore
from onceonly.types import Marks, ReadWindows, RecordId

_INPUTS = """
CREATE TABLE IF NOT EXISTS onceonly_inputs (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
)"""
_ASIDE = "malformed"  # the scope of what was set aside, so that it is set aside once, too


@dataclass(slots=True)
class Batch:
    """Records of one or more sources; ``lines`` is how many lines were read for them."""

    records: Records = field(default_factory=Records)
    sources: list[int] = field(default_factory=list)  # of each record
    aside: list[tuple[int, Malformed]] = field(default_factory=list)  # source, and what is wrong
    lines: int = 0
    size: int = 0

    def add(self, records: Records, source: int) -> None:
        ours = self.records
        before = len(ours.keys)
        ours.texts += records.texts
        ours.keys += records.keys
        ours.numbers += records.numbers
        if records.fingerprints is not None:
            ours.fingerprints = (ours.fingerprints or []) + records.fingerprints
        self.sources += [source] * len(records.keys)
        for bad in records.malformed:
            aside = Malformed(bad.number, bad.reason, bad.text, before + bad.after)
            self.aside.append((source, aside))

    def cut(self, count: int) -> None:
        """Leave the first ``count`` records, and nothing that is malformed."""
        for column in (self.records.texts, self.records.keys, self.records.numbers, self.sources):
            del column[count:]
        if self.records.fingerprints is not None:
            del self.records.fingerprints[count:]
        self.aside.clear()

    def place(self, index: int) -> Place:
        prints = self.records.fingerprints
        return Place(self.sources[index], self.records.numbers[index], prints[index] if prints else None)

    def notes(self) -> list[bytes]:
        return notes(self.sources, self.records.numbers, self.records.fingerprints)


@dataclass(slots=True)
class Counts:
    """What one run did."""

    lines: int = 0
    passed: int = 0
    duplicates: int = 0
    malformed: int = 0


class _PassedOn(Exception):
    """All of a batch but the rest, which takes longer than others should wait for the store."""

    def __init__(self, rest: bytes, new: list[bool]) -> None:
        super().__init__()
        self.rest = rest
        self.new = new  # what was passed on, whatever others mark meanwhile


class _Conflict(Exception):
    """A record that must not be passed over, and nobody to set it aside for."""

    def __init__(self, source: int, bad: Malformed) -> None:
        super().__init__()
        self.source = source
        self.bad = bad


OpenFile = Callable[[str, sqlite3.Connection], Output | None]


class Filter:
    """Passes batches on, and keeps where each record was first."""

    def __init__(
        self,
        store: SqliteStore,
        group: str,
        window: float,
        check: Callable[[], None],
        open_file: OpenFile,
        *,
        appends: bool = False,
    ) -> None:
        self._store = store
        self._group = group
        self._window = window
        self._appends = appends
        self._names: dict[int, str] = {}
        self._header = False  # was written in this run
        self._stdout = Stdout(check)
        self._reports = Reports()
        self.header: str | None = None
        self.columns: list[str] | None = None
        self.counts = Counts()
        self._files: list[Output] = []
        self._connection = store.connect()
        try:
            with self._synced(), self._transaction() as connection:
                connection.execute(TABLE)
                connection.execute(_INPUTS)
                self.output, self.report, self.errors = (
                    self._opened(open_file(name, connection)) for name in ("output", "report", "errors")
                )
        except BaseException:
            self.close()
            raise

    def _opened(self, output: Output | None) -> Output | None:
        if output is not None:
            self._files.append(output)
        return output

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """What must survive a power loss too: that a run was under way, and from where on."""
        (level,) = self._connection.execute("PRAGMA synchronous").fetchone()
        self._connection.execute("PRAGMA synchronous=FULL")
        yield
        self._connection.execute(f"PRAGMA synchronous={level:d}")

    @property
    def cut(self) -> list[tuple[Path, int]]:
        """What a run that was killed had left behind, and nobody had recorded."""
        return [(output.path, output.cut) for output in self._files if output.cut]

    def input(self, name: str) -> int:
        """A small number for the name, to be kept with each record."""
        name = name.encode("utf-8", "backslashreplace").decode()
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO onceonly_inputs (name) VALUES (?)", (name,))
            found = connection.execute("SELECT id FROM onceonly_inputs WHERE name = ?", (name,))
            number: int = found.fetchone()[0]
        self._names[number] = name
        return number

    def finish(self) -> None:
        """The run came to an end of its own: what is behind the recorded lengths from now on is not ours."""
        with self._transaction():
            for output in self._files:
                output.record(running=False)

    def close(self) -> None:
        for output in self._files:
            output.close()
        self._connection.close()

    # --- batches ------------------------------------------------------------------------------

    def settle(self, batch: Batch) -> None:
        """Pass on what is new. What is malformed is set aside; or it ends the run, once all that came before
        it is settled."""
        if not batch.lines and not batch.aside:
            return
        stop = batch.aside[0] if batch.aside and self.errors is None else None
        if stop is not None:
            batch.cut(stop[1].after)
        try:
            self._settle(batch)
        except _Conflict as conflict:
            stop = conflict.source, conflict.bad
            batch.cut(conflict.bad.after)
            self._settle(batch)
        if stop is not None:
            source, bad = stop
            hint = "mend it, or pass --errors FILE to set such lines aside"
            msg = f"{self._name(source)}:{bad.number}: {bad.reason}; all before it is done: {hint}"
            raise Refused(msg, Exit.INPUT)

    def _settle(self, batch: Batch) -> None:
        try:
            self._commit(batch)
        except _PassedOn as passed_on:
            self._stdout.write_on(passed_on.rest)
            self._commit(batch, passed_on=passed_on.new)
        self.counts.lines += batch.lines

    def _commit(self, batch: Batch, *, passed_on: list[bool] | None = None) -> None:
        lengths = [output.length for output in self._files]
        try:
            with self._transaction() as connection:
                new = self._marked(connection, batch)
                if passed_on is not None:
                    new = passed_on
                conflicts, report = self._looked_at(batch, new)
                if passed_on is None:
                    self._pass_on(batch.records.texts, new)
                if self.report:
                    self.report.write(report)
                if self.errors:
                    self._set_aside(connection, self.errors, batch.aside + conflicts)
                for output in self._files:
                    output.record()
        except BaseException:
            for output, length in zip(self._files, lengths, strict=True):
                output.back(length)
            raise
        for output in self._files:
            output.recorded()
        counts, passed = self.counts, sum(new)
        counts.passed += passed
        counts.duplicates += len(new) - passed - len(conflicts)
        counts.malformed += sum(bad.text.count("\n") + 1 for _, bad in batch.aside) + len(conflicts)

    def _marked(self, connection: sqlite3.Connection, batch: Batch) -> list[bool]:
        """Which records are new; they are known when this transaction commits."""
        window = self._window_of_now()
        if window is None:
            return [True] * len(batch.records.keys)
        return self._mark(connection, "", batch.records.keys, batch.notes(), window)

    def _mark(
        self, connection: sqlite3.Connection, scope: str, keys: list[str], places: list[bytes], window: float
    ) -> list[bool]:
        marks = Marks(self._group, scope, keys, window, results=places)
        try:
            return self._store.bind(connection).mark_seen(marks)
        except InFlight as busy:
            what = str(busy).partition(";")[0]
            msg = f"{what}. All before its batch is done: run this again in {busy.retry_after:.0f} s"
            raise Refused(msg, Exit.IN_FLIGHT) from busy

    def _window_of_now(self) -> float | None:
        """As every worker has it: what is set in the store wins."""
        (stored,) = self._store.windows([ReadWindows(self._group)])
        whole = [each.window for each in stored if each.type is None]
        return whole[0] if whole else self._window

    # --- where it goes ------------------------------------------------------------------------

    def _pass_on(self, all_texts: list[str], new: list[bool]) -> None:
        texts = list(compress(all_texts, new))
        if not texts:
            return
        if self.header is not None and not self._header:
            if not (self.output and self.output.length):
                texts.insert(0, self.header)
            elif not self._appends and not self.output.begins_with(self.header):
                msg = f"{self.output.path} has other columns than this input: name another file"
                raise Refused(msg, Exit.INPUT)
        self._header = True
        data = ("\n".join(texts) + "\n").encode("utf-8", "surrogateescape")
        if self.output is not None:
            self.output.write(data)
        else:
            try:
                self._stdout.write(data)
            except SlowReader as slow:
                raise _PassedOn(slow.rest, new) from None

    def _set_aside(
        self, connection: sqlite3.Connection, errors: Output, aside: list[tuple[int, Malformed]]
    ) -> None:
        if not aside:
            return
        keys = [line_key(bad.text) for _, bad in aside]
        places = notes([source for source, _ in aside], [bad.number for _, bad in aside])
        new = self._mark(connection, _ASIDE, keys, places, self._window_of_now() or self._window)
        lines = [
            {
                "source": self._name(source),
                "line": bad.number,
                "error": bad.reason,
                **_text(bad.text),
            }
            for source, bad in compress(aside, new)
        ]
        errors.write(_ndjson(lines))

    # --- duplicates ---------------------------------------------------------------------------

    def _looked_at(self, batch: Batch, new: list[bool]) -> tuple[list[tuple[int, Malformed]], bytes]:
        """Duplicates whose payload differs from the first one's; and the report of the others."""
        prints = batch.records.fingerprints
        if (self.report is None and prints is None) or all(new):
            return [], b""
        conflicts, lines = [], []
        for index, first in self._firsts(batch, new):
            place, key = batch.place(index), batch.records.keys[index]
            where = None if first is None else (self._name(first.source), first.line)
            if where is not None and first is not None and place.differs(first):
                reason = f"another payload under the key of {where[0]}:{where[1]}"
                bad = Malformed(place.line, reason, batch.records.texts[index], index)
                if self.errors is None:
                    raise _Conflict(place.source, bad)
                conflicts.append((place.source, bad))
            else:
                lines.append(self._reports.line(self._name(place.source), place.line, key, where))
        return conflicts, "".join(lines).encode()

    def _firsts(self, batch: Batch, new: list[bool]) -> Iterator[tuple[int, Place | None]]:
        """Each duplicate with the place of the first; None where the record was made by somebody else."""
        keys = batch.records.keys
        here = {keys[index]: index for index in compress(range(len(keys)), new)}
        repeated = [index for index, is_new in enumerate(new) if not is_new]
        before = [RecordId(self._group, "", keys[index]) for index in repeated if keys[index] not in here]
        known = iter(self._store.peek(before))
        for index in repeated:
            found = here.get(keys[index])
            if found is not None:
                yield index, batch.place(found)
            else:
                record = next(known)
                yield index, None if record is None else place_of(record.result)

    def _name(self, source: int) -> str:
        if source not in self._names:
            found = self._connection.execute("SELECT name FROM onceonly_inputs WHERE id = ?", (source,))
            row = found.fetchone()
            self._names[source] = row[0] if row else "?"
        return self._names[source]

    # --- the transaction ----------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            self._store.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            msg = f"the store could not be written to: {error}"
            raise StoreUnavailable(msg) from error


def _ndjson(lines: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _text(text: str) -> dict[str, str]:
    """All of it, so that it can be mended and fed again."""
    if text.isascii() or is_text(text):
        return {"text": text}
    return {"text_base64": b64encode(text.encode("utf-8", "surrogateescape")).decode()}
