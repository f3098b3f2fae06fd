"""The standard output. To a pipe in whole lines, and never waiting for long with a lock in hand."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from onceonly.cli.dedupe.outputs import write_all

_STDOUT = 1
_PATIENCE = 1.0  # seconds that a reader may take while other writers wait for us
_LOOK = 0.2  # seconds between looks whether we are to end
_ATOMIC = select.PIPE_BUF  # bytes that a pipe takes at once, if it takes any


class SlowReader(Exception):
    """The pipe is full: what is left is to be written without keeping other writers waiting."""

    def __init__(self, rest: bytes) -> None:
        super().__init__()
        self.rest = rest


class Stdout:
    """Raises OSError where nothing more can be written."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._is_file = stat.S_ISREG(os.fstat(_STDOUT).st_mode)

    def write(self, data: bytes) -> None:
        if self._is_file:
            _all_or_nothing(data)
            return
        give_up, at = time.monotonic() + _PATIENCE, 0
        while at < len(data):
            if not _writable(give_up - time.monotonic()):
                raise SlowReader(data[at:])
            at += _write_some(data, at)

    def write_on(self, data: bytes) -> None:
        """However long it takes; nobody waits for us meanwhile."""
        at = 0
        while at < len(data):
            self._check()
            if _writable(_LOOK):
                at += _write_some(data, at)


def _all_or_nothing(data: bytes) -> None:
    start = os.fstat(_STDOUT).st_size
    try:
        write_all(_STDOUT, data)
    except OSError:
        with suppress(OSError):
            os.ftruncate(_STDOUT, start)
        raise


def _write_some(data: bytes, at: int) -> int:
    """As much as a pipe takes at once; whole lines where they are short enough, so that a kill tears none."""
    end = data.rfind(b"\n", at, at + _ATOMIC) + 1 or at + _ATOMIC
    return os.write(_STDOUT, data[at:end])


def _writable(seconds: float) -> bool:
    return bool(select.select([], [_STDOUT], [], max(0.0, seconds))[1])
