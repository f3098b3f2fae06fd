"""Where a record was first: kept as the result of its mark, so that a later run can name it."""

from __future__ import annotations

import json
from typing import NamedTuple

from onceonly.cli.dedupe.formats import FIELDS_DIGITS

_OURS = b'["d1",'  # JSON, for the library replays it; and none of the library's results by chance


class Place(NamedTuple):
    """A line of a source, and what must not change under its key."""

    source: int
    line: int
    fingerprint: str | None = None

    def differs(self, other: Place) -> bool:
        """Another payload? Only fingerprints of the same fields can be compared."""
        one, two = self.fingerprint or "", other.fingerprint or ""
        return one != two and "" not in (one, two) and one[:FIELDS_DIGITS] == two[:FIELDS_DIGITS]


def notes(sources: list[int], lines: list[int], fingerprints: list[str] | None = None) -> list[bytes]:
    """Places, as they are kept."""
    places = zip(sources, lines, strict=True)
    if fingerprints is None:
        return [b'["d1",%d,%d]' % place for place in places]
    return [b'["d1",%d,%d,"%b"]' % (*p, f.encode()) for p, f in zip(places, fingerprints, strict=True)]


def place_of(result: bytes | None) -> Place | None:
    """What :func:`notes` made; None if it was somebody else."""
    if not result or not result.startswith(_OURS):
        return None
    source, line, *fingerprint = result[len(_OURS) : -1].decode().split(",")
    return Place(int(source), int(line), fingerprint[0].strip('"') if fingerprint else None)


class Reports:
    """Lines of the report. Names are quoted once: a run may have millions of duplicates."""

    def __init__(self) -> None:
        self._quoted: dict[str, str] = {}

    def line(self, name: str, line: int, key: str, first: tuple[str, int] | None) -> str:
        start = f'{{"source": {self._quote(name)}, "line": {line}, "key": {json.dumps(key)}, "first": '
        if first is None:
            return start + "null}\n"
        again = ', "again": true' if first == (name, line) else ""  # the same line, fed once more
        return f'{start}{{"source": {self._quote(first[0])}, "line": {first[1]}}}{again}}}\n'

    def _quote(self, name: str) -> str:
        if name not in self._quoted:
            self._quoted[name] = json.dumps(name)
        return self._quoted[name]
