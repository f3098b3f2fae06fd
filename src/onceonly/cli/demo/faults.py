"""Kills at exact steps, and lines that survive them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onceonly.cli.demo.plan import Kill, Step


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
    """The planned kills, as a worker meets them. Each fires once, at the first worker that gets there."""

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
        try:
            self._fired.joinpath(message).touch(exist_ok=False)
        except FileExistsError:
            return
        self.note(message, f"kill:{step}")
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, message: str, what: str) -> None:
        """Remember what befell this worker while it handled ``message``."""
        append(self._log, {"message": message, "pid": os.getpid(), "what": what})

    def entries(self) -> list[dict[str, Any]]:
        return list(lines(self._log))
