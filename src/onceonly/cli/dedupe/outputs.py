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
        try:
            self.length = self._recovered(append=append)
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, data: bytes) -> None:
        """Behind what is there, and on disk when this returns."""
        if data:
            write_all(self._descriptor, data)
            os.fdatasync(self._descriptor)
        self.length += len(data)

    def record(self, *, running: bool = True) -> None:
        """The length, in the caller's transaction."""
        self._connection.execute(
            "INSERT OR REPLACE INTO onceonly_outputs VALUES (?, ?, ?)", (self._key, self.length, running)
        )

    def back(self, length: int) -> None:
        """Undo what was written since; its transaction did not commit."""
        self.length = length
        self._cut()

    def close(self) -> None:
        os.close(self._descriptor)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.length)
        os.lseek(self._descriptor, self.length, os.SEEK_SET)

    def _recovered(self, *, append: bool) -> int:
        size = os.fstat(self._descriptor).st_size
        row = self._connection.execute(
            "SELECT length, open FROM onceonly_outputs WHERE path = ?", (self._key,)
        ).fetchone()
        self.length = _length(self.path, size, row, append=append)
        self.record()
        self._cut()
        os.fsync(self._descriptor)
        _sync_directory(self.path.parent)
        return self.length


def _length(path: Path, size: int, row: tuple[int, int] | None, *, append: bool) -> int:
    """Where to go on: behind what is known to be ours."""
    recorded, unfinished = row or (0, 0)
    if size == 0:  # new, or moved away by its owner
        return 0
    if unfinished and size >= recorded:
        return recorded  # a run died here
    if size == recorded or append:
        return size
    if row is None:
        problem = "was not written by this store's dedupe"
    else:
        problem = f"has {size} bytes, and {recorded} were written to it"
    msg = f"{path} {problem}: move it away, name another, or pass --append to go on behind what is there"
    raise Refused(msg, Exit.USAGE)


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
