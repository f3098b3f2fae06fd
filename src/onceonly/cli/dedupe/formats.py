"""What a record is, and what its key: plain lines, NDJSON or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from onceonly.cli.common import Exit, Refused
from onceonly.cli.dedupe.reading import Chunk
from onceonly.errors import ConfigurationError, InvalidKey
from onceonly.keys import MAX_KEY_BYTES, check_key, content_key, extractor, fingerprint_bytes, near_duplicate
from onceonly.keys.content import unique_members

FORMATS = ("lines", "ndjson", "csv")
MAX_RECORD_LINES = 1000  # of CSV; a quote that is never closed would take all the rest for one field
FIELDS_DIGITS = 8  # of a fingerprint, for the fields it is of
_BOM = "\ufeff"  # editors on Windows write one at the start of a file

KeyOf = Callable[[object], str]
_HASHED = "l1:"


@dataclass(frozen=True, slots=True)
class Malformed:
    """What cannot be a record, and why. ``text`` is the line as it came, ``after`` how many records came
    before it."""

    number: int
    reason: str
    text: str
    after: int


@dataclass(slots=True)
class Records:
    """Columns: record n is ``texts[n]``, at line ``numbers[n]``, known by ``keys[n]``."""

    texts: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    fingerprints: list[str] | None = None  # what must not change under a key
    malformed: list[Malformed] = field(default_factory=list)
    header: str | None = None
    columns: list[str] | None = None


class Format(Protocol):
    """Makes records of chunks. One for each source: it may hold back the start of a record."""

    def parse(self, chunk: Chunk) -> Records: ...

    def end(self) -> Records:
        """What was held back when the source ended."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """What a record is known by: a key, chosen fields, or all of it. With both, the key is its name and
    the fields must not change under it."""

    key: str | None
    fields: tuple[str, ...]

    def of(self) -> tuple[KeyOf, KeyOf | None]:
        """Functions for the key and, where wanted, for the fingerprint."""
        by_fields = near_duplicate(fields=self.fields) if self.fields else None
        if self.key is None:
            return by_fields or content_key(), None
        return extractor(self.key), None if by_fields is None else self.check(by_fields)

    def check(self, of: Callable[[Any], str]) -> Callable[[Any], str]:
        """What is kept to compare: which fields, and what they said."""
        which = fingerprint_bytes(list(self.fields)).hex()[:FIELDS_DIGITS]
        return lambda record: which + fingerprint_bytes(of(record)).hex()


class Lines:
    """Each line is a record, and its own key. How the line ends is no part of the key."""

    def parse(self, chunk: Chunk) -> Records:
        lines = chunk.lines
        stripped = (
            [line.removesuffix("\r") for line in lines] if any("\r" in line for line in lines) else lines
        )
        keys = [
            line
            if line.isascii() and 0 < len(line) <= MAX_KEY_BYTES and line[:3] != _HASHED
            else line_key(line)
            for line in stripped
        ]
        return Records(lines, keys, list(range(chunk.number, chunk.number + len(lines))))

    def end(self) -> Records:
        return Records()


def line_key(line: str) -> str:
    """The line itself where that can be a key, else a digest of it."""
    if not line.startswith(_HASHED):
        try:
            return check_key(line)
        except InvalidKey:
            pass
    return _HASHED + blake2b(line.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


class Ndjson:
    """Each line that is not blank is a JSON value."""

    def __init__(self, identity: Identity) -> None:
        self._key, self._fingerprint = identity.of()
        exact = identity.key is None
        self._loads = json.JSONDecoder(
            parse_constant=_no_constant,
            object_pairs_hook=unique_members if exact or self._fingerprint else None,
            parse_int=_exact if exact else None,
        ).decode

    def parse(self, chunk: Chunk) -> Records:
        records = Records(fingerprints=[] if self._fingerprint else None)
        of = self._key, self._fingerprint
        for number, line in enumerate(_without_bom(chunk), chunk.number):
            if line and not line.isspace():
                _add(records, number, line, self._loaded(line), of)
        return records

    def end(self) -> Records:
        return Records()

    def _loaded(self, line: str) -> object:
        if not line.isascii() and not is_text(line):
            return _NOT_TEXT
        try:
            return self._loads(line)
        except (ValueError, RecursionError, InvalidKey) as error:
            return error


_NOT_TEXT = ValueError("not UTF-8")


def _without_bom(chunk: Chunk) -> list[str]:
    lines = chunk.lines
    if chunk.number == 1 and lines and lines[0].startswith(_BOM):
        return [lines[0].removeprefix(_BOM), *lines[1:]]
    return lines


def _exact(digits: str) -> object:
    """Integers that doubles cannot hold are told apart by their digits."""
    return int(digits) if len(digits) < 16 else {"integer": digits}


def _no_constant(name: str) -> object:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _add(records: Records, number: int, text: str, value: object, of: tuple[KeyOf, KeyOf | None]) -> None:
    key_of, fingerprint_of = of
    try:
        if isinstance(value, Exception):
            raise value
        key = key_of(value)
        fingerprint = None if fingerprint_of is None else fingerprint_of(value)
    except (ValueError, RecursionError, InvalidKey, KeyError) as error:
        records.malformed.append(Malformed(number, _reason(error), text, len(records.keys)))
        return
    records.texts.append(text)
    records.keys.append(key)
    records.numbers.append(number)
    if records.fingerprints is not None and fingerprint is not None:
        records.fingerprints.append(fingerprint)


def _reason(error: Exception) -> str:
    """Why, without a piece of the payload."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    return str(error).partition("; ")[0] or type(error).__name__


class Csv:
    """RFC 4180: the first record names the columns, a quoted field may hold line ends."""

    def __init__(self, identity: Identity, *, delimiter: str = ",", header: bool = True) -> None:
        self._identity = identity
        self._options = {"delimiter": delimiter, "strict": True}
        self._of: tuple[Callable[[list[str]], str], Callable[[list[str]], str] | None] | None = None
        self._names: list[str] | None = None
        self._width = 0
        self._has_header = header
        self._held: list[str] = []  # the start of a record whose end has not been read yet
        self._held_from = 0

    def parse(self, chunk: Chunk) -> Records:
        first = chunk.number - len(self._held)
        lines, self._held = self._held + _without_bom(chunk), []
        records = Records(fingerprints=[] if self._identity.key and self._identity.fields else None)
        at = 0
        while at < len(lines):
            at = self._some(lines, at, first, records)
        return records

    def end(self) -> Records:
        if not self._held:
            return Records()
        reason = "not CSV: a quote is opened and never closed"
        return Records(malformed=[Malformed(self._held_from, reason, "\n".join(self._held), 0)])

    def _some(self, lines: list[str], at: int, first: int, records: Records) -> int:
        """Records from line ``at`` on, until one is malformed or not whole; where to go on."""
        taken = at

        def in_turn() -> Iterator[str]:
            nonlocal taken
            while taken < len(lines):
                if taken - at == MAX_RECORD_LINES:
                    msg = f"a quote is opened and not closed within {MAX_RECORD_LINES} lines"
                    raise csv.Error(msg)
                taken += 1
                yield lines[taken - 1].removesuffix("\r") + "\n"

        reader = csv.reader(in_turn(), **self._options)  # type: ignore[arg-type]
        try:
            for row in reader:
                self._record(records, first + at, "\n".join(lines[at:taken]), row)
                at = taken
        except csv.Error as error:
            if taken == len(lines) and "unexpected end" in str(error):
                self._held, self._held_from = lines[at:], first + at
                return len(lines)
            text, reason = "\n".join(lines[at:taken]), f"not CSV: {error}"
            if self._of is None and self._has_header:
                msg = f"line {first + at} should name the columns, and is {reason}"
                raise Refused(msg, Exit.INPUT) from error
            records.malformed.append(Malformed(first + at, reason, text, len(records.keys)))
        return taken

    def _record(self, records: Records, number: int, text: str, row: list[str]) -> None:
        if not row:
            return
        if self._of is None:
            self._width = len(row)
            if self._has_header:
                self._names = row
                self._of = self._by_name(row)
                records.header, records.columns = text, row
                return
            self._of = self._by_name([str(n) for n in range(1, len(row) + 1)])
        value: object = row
        if len(row) != self._width:
            value = ValueError(f"{len(row)} fields, and there are {self._width} columns")
        elif not text.isascii() and not is_text(text):
            value = ValueError("not UTF-8")
        _add(records, number, text, value, self._of)  # type: ignore[arg-type]

    def _by_name(
        self, names: Sequence[str]
    ) -> tuple[Callable[[list[str]], str], Callable[[list[str]], str] | None]:
        key, fields = self._identity.key, self._identity.fields
        for name in (*fields, *([key] if key is not None else [])):
            if names.count(name) != 1:
                msg = f"there must be one column {name!r}, and there are {names.count(name)}; columns: "
                msg += ", ".join(repr(n) for n in names)
                if self._has_header and name.isdecimal():
                    msg += ". Where the first line is a record, and columns are known by number: --no-header"
                raise ConfigurationError(msg)
        content = content_key()
        named = fingerprint_bytes(list(names)).hex() if self._has_header else ""

        def whole(row: list[str]) -> str:
            return content([named, *row])

        places = [names.index(name) for name in fields]

        def chosen(row: list[str]) -> str:
            return content([[name, row[place]] for name, place in zip(fields, places, strict=True)])

        if key is None:
            return (chosen if fields else whole), None
        place = names.index(key)
        return (lambda row: check_key(row[place])), self._identity.check(chosen) if fields else None


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
