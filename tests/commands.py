"""``onceonly`` as a user runs it: in a pipe, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ONCEONLY = [sys.executable, "-W", "error", "-c", "from onceonly.cli import main; main()"]
_UNWANTED = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE")


def environment(**more: str) -> dict[str, str]:
    """Without options of ours, and without what would change how things are shown."""
    kept = {k: v for k, v in os.environ.items() if k not in _UNWANTED and not k.startswith("ONCEONLY_")}
    return {**kept, "PYTHONIOENCODING": "utf-8", **more}


def run(*options: str, directory: Path, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ONCEONLY, *options],
        cwd=directory,
        input=text,
        capture_output=True,
        text=True,
        env=environment(**env),
        timeout=60,
        check=False,
    )


@contextmanager
def started(command: Sequence[str], **more: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that does not outlive its test, however that ends."""
    with subprocess.Popen(command, env=environment(), **more) as process:
        try:
            yield process
        finally:
            process.kill()


def run_on_terminal(
    command: Sequence[str], *, typed: str = "", columns: int = 0, directory: Path | None = None, **env: str
) -> tuple[str, int]:
    """All that it shows there, and how it ended. ``typed`` waits in the terminal from the start."""
    ours, theirs = pty.openpty()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.write(ours, typed.encode())
    with subprocess.Popen(
        command, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**env)
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # Linux: the last writer has hung up
            pass
        finally:
            os.close(ours)
    return shown.decode().replace("\r\n", "\n"), process.returncode
