"""Files that only grow, and whose length is in the store: what a crash left behind the length is cut off.

The length commits with the marks. So a line is in the file and marked, or neither, whenever the process
dies: the bytes are synced before the commit, and on the next start the file is cut back to the length.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

from onceonly.cli.common import Exit, Refused

TABLE = """
CREATE TABLE IF NOT EXISTS onceonly_outputs (
    path   BLOB PRIMARY KEY,
    file   TEXT NOT NULL,   -- device and inode: the path may lead to another one by now
    length INTEGER NOT NULL,
    open   INTEGER NOT NULL -- 1 from the start of a run to its end: what is behind the length is its own
) WITHOUT ROWID"""


class Output:
    """One such file. Only this process writes to it while it is open."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, append: bool) -> None:
        self.path = path.resolve()
        self._connection = connection
        self._key = os.fsencode(self.path)
        self._descriptor = _opened(self.path)
        self._file = _file(os.fstat(self._descriptor))
        self._touched = False  # since the last length that was recorded
        self.cut = 0  # bytes that a killed run had left
        try:
            self.length = self._recovered(append=append)
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, data: bytes) -> None:
        """Behind what is there, and on disk when this returns."""
        if not data:
            return
        try:
            self._refuse_changed()
            self._touched = True
            write_all(self._descriptor, data)
            os.fdatasync(self._descriptor)
        except OSError as error:
            msg = f"{self.path}: {error.strerror}; nothing of this batch was passed on: mend it and run again"
            raise Refused(msg, Exit.STORE) from error
        self.length += len(data)

    def begins_with(self, text: str) -> bool:
        """Is this its first line?"""
        data = text.rstrip("\r").encode("utf-8", "surrogateescape")
        first = os.pread(self._descriptor, len(data) + 2, 0)
        return first.startswith((data + b"\n", data + b"\r\n"))

    def record(self, *, running: bool = True) -> None:
        """The length, in the caller's transaction."""
        row = (self._key, self._file, self.length, running)
        self._connection.execute("INSERT OR REPLACE INTO onceonly_outputs VALUES (?, ?, ?, ?)", row)

    def recorded(self) -> None:
        """The transaction committed."""
        self._touched = False

    def back(self, length: int) -> None:
        """Undo what was written since; its transaction did not commit."""
        self.length = length
        if self._touched:
            self._cut()
            self._touched = False

    def close(self) -> None:
        os.close(self._descriptor)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.length)
        os.lseek(self._descriptor, self.length, os.SEEK_SET)

    def _refuse_changed(self) -> None:
        """Somebody else cut, wrote or moved it while we ran: what they did stays as it is."""
        size = os.fstat(self._descriptor).st_size
        if size == self.length and self.path.exists() and _file(self.path.stat()) == self._file:
            return
        msg = (
            f"{self.path} was changed or moved by somebody else during this run: "
            "nothing of this batch was passed on"
        )
        raise Refused(msg, Exit.STORE)

    def _recovered(self, *, append: bool) -> int:
        size = os.fstat(self._descriptor).st_size
        row = self._connection.execute(
            "SELECT file, length, open FROM onceonly_outputs WHERE path = ?", (self._key,)
        ).fetchone()
        self.length = _length(self.path, self._file, size, row, append=append)
        self.cut = size - self.length
        self._cut()
        if append and self.length and os.pread(self._descriptor, 1, self.length - 1) != b"\n":
            write_all(self._descriptor, b"\n")
            self.length += 1
        self.record()
        os.fsync(self._descriptor)
        _sync_directory(self.path.parent)
        return self.length


def _length(path: Path, file: str, size: int, row: tuple[str, int, int] | None, *, append: bool) -> int:
    """Where to go on: behind what is known to be ours."""
    ours, recorded, unfinished = row or (file, 0, 0)
    if size == 0:  # new, or moved away by its owner
        return 0
    if unfinished and ours == file and size >= recorded:
        return recorded  # a run died here
    if (size == recorded and ours == file) or append:
        return size
    if row is None:
        problem = "was not written by this store's dedupe"
    elif ours != file:
        problem = "is another file than the one that was written to"
    else:
        problem = f"has {size} bytes, and {recorded} were written to it"
    msg = (
        f"{path} {problem}: move it away, name another, or pass --append to go on behind what is there. "
        "What this store does not know yet is then passed on, although it may be there already"
    )
    raise Refused(msg, Exit.USAGE)


def _file(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise Refused(msg, Exit.USAGE) from error
    try:
        _lock(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        msg = f"{path} is no regular file: without --output it goes to the standard output"
        raise Refused(msg, Exit.USAGE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        msg = f"{path}: another process is writing to it"
        raise Refused(msg, Exit.USAGE) from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def distinct(inputs: Sequence[Path], outputs: Sequence[Path]) -> None:
    """No file may be written to twice, or read while it grows."""
    seen = {_identity(path): path for path in inputs}
    for path in outputs:
        other = seen.setdefault(_identity(path), path)
        if other is not path:
            msg = f"{path} and {other} are the same file"
            raise Refused(msg, Exit.USAGE)


def _identity(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return found.st_dev, found.st_ino
