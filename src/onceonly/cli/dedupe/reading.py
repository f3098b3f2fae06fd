"""Lines from files and pipes, in chunks; in a stream that trickles, a pause is told as well."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onceonly.cli.common import Exit, Refused

STDIN = "-"
MAX_LINE = 16 * 2**20  # bytes; what has no end by then is no line
_CHUNK = 2**20
_PAUSE = 0.2  # seconds without input after which what is in hand is passed on
_AGE = 1.0  # seconds after which it is passed on although there is more
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines without their ends. Bytes that are not UTF-8 are lone surrogates, which encode back.

    ``number`` is the first one's, from 1. ``size`` is what was read of the file for it.
    """

    number: int
    lines: list[str]
    size: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file or the standard input. ``size`` is None where nobody can know."""

    name: str
    path: Path | None
    size: int | None


def source(name: str) -> Source:
    if name == STDIN:
        return Source(STDIN, None, None)
    path = Path(name)
    try:
        found = path.stat()
    except OSError as error:
        msg = f"{name}: {error.strerror}"
        raise Refused(msg, Exit.USAGE) from error
    if stat.S_ISDIR(found.st_mode):
        msg = f"{name} is a directory: name the files in it"
        raise Refused(msg, Exit.USAGE)
    if not stat.S_ISREG(found.st_mode):  # a pipe of the shell's, /dev/stdin: its link leads nowhere
        return Source(str(path.absolute()), path, None)
    return Source(str(path.resolve()), path, found.st_size)


def chunks(source: Source, check: Callable[[], None]) -> Iterator[Chunk | None]:
    """All lines of a source; None when what came so far should not wait any longer. After that ``check`` may
    end it by raising: then nothing that was read is left in hand."""
    descriptor = 0 if source.path is None else _opened(source)
    try:
        yield from _chunks(descriptor, source, check)
    except OSError as error:
        msg = f"{source.name}: {error.strerror}"
        raise Refused(msg, Exit.INPUT) from error
    finally:
        if source.path is not None:
            os.close(descriptor)


def _opened(source: Source) -> int:
    try:
        patient = 0 if source.size is not None else os.O_NONBLOCK  # a FIFO that nobody writes to yet
        return os.open(source.name, os.O_RDONLY | os.O_CLOEXEC | patient)
    except OSError as error:
        msg = f"{source.name}: {error.strerror}"
        raise Refused(msg, Exit.USAGE) from error


def _chunks(descriptor: int, source: Source, check: Callable[[], None]) -> Iterator[Chunk | None]:
    number, rest = 1, b""
    told = time.monotonic()
    while True:
        while source.size is None and (not _ready(descriptor) or time.monotonic() - told > _AGE):
            yield None
            check()
            told = time.monotonic()
        data = _read(descriptor)
        if data is None:
            continue
        if number == 1 and not rest and data.startswith(_GZIP):
            msg = f"{source.name} is compressed: gzip -dc {source.name} | onceonly dedupe ..."
            raise Refused(msg, Exit.INPUT)
        whole, rest = _split(rest + data, end=not data)
        if whole is not None:
            lines = whole.decode("utf-8", "surrogateescape").split("\n")
            yield Chunk(number, lines, len(data))
            number += len(lines)
        elif data:
            yield Chunk(number, [], len(data))
        if not data:
            return
        if len(rest) > MAX_LINE:
            msg = f"{source.name}:{number}: this line has no end within {MAX_LINE // 2**20} MiB"
            raise Refused(msg, Exit.INPUT)


def _read(descriptor: int) -> bytes | None:
    """None: somebody else was quicker."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _split(data: bytes, *, end: bool) -> tuple[bytes | None, bytes]:
    """Whole lines without the end of the last, if there are any; and what may go on. The last line of all
    needs no end."""
    if end:
        return data or None, b""
    cut = data.rfind(b"\n")
    return (data[:cut], data[cut + 1 :]) if cut >= 0 else (None, data)


def _ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], _PAUSE)[0])
