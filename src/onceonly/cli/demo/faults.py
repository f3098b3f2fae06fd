"""Kills at exact steps, slow runs that a copy meets, and lines that survive."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onceonly.cli.demo.judge import KILL, OVERLAP
from onceonly.cli.demo.plan import LATE, SLOW, Kill, Step

_PATIENCE = 10.0  # seconds a slow run waits for its copy; after that its fault has not fired
_LOOK = 0.01


def append(path: Path, entry: Mapping[str, object]) -> None:
    """One line in one write: whole or absent, whatever happens to us and whoever writes beside us."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(fd)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What was appended; nothing if nothing was."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


class Faults:
    """The planned faults, as a worker meets them. Each fires once, at the first worker that gets there."""

    def __init__(self, directory: Path, kills: Mapping[str, Kill]) -> None:
        self._log = directory / "faults.log"
        self._fired = directory / "fired"
        self._kills = kills
        self._fired.mkdir(exist_ok=True)

    def reach(self, message: str, step: Step) -> None:
        """Die here, if the plan says so and nobody has yet."""
        kill = self._kills.get(message)
        if kill is None or kill.step is not step:
            return
        if self._is_first(message):
            self.note(message, f"{KILL}{step}")
            os.kill(os.getpid(), signal.SIGKILL)

    def work_slowly(self, message: str) -> None:
        """Outlast the lease, and go on until a copy has reached another worker. The first time only."""
        if not self._is_first(message):
            return
        time.sleep(LATE)
        self._past_lease(message).touch()
        if self._copy_came(message):
            self.note(message, OVERLAP)
        time.sleep(SLOW - LATE)

    def is_past_lease(self, message: str) -> bool:
        """Whether its slow handler has worked for longer than the lease it began with."""
        return self._past_lease(message).exists()

    def received(self, message: str) -> None:
        """A worker has ``message``, whose handler is slow."""
        if self.is_past_lease(message):
            self._copy(message).touch()

    def note(self, message: str, what: str) -> None:
        """Remember what befell this worker while it handled ``message``."""
        append(self._log, {"message": message, "pid": os.getpid(), "what": what})

    def entries(self) -> list[dict[str, Any]]:
        return list(lines(self._log))

    def _is_first(self, message: str) -> bool:
        try:
            self._fired.joinpath(message).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _copy_came(self, message: str) -> bool:
        end = time.monotonic() + _PATIENCE
        while not self._copy(message).exists():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK)
        return True

    def _past_lease(self, message: str) -> Path:
        return self._fired / f"{message}.past-lease"

    def _copy(self, message: str) -> Path:
        return self._fired / f"{message}.copy"
