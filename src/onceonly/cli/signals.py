"""Being asked to end: noted when it comes, acted on where the work can stop."""

from __future__ import annotations

import signal
import sys
from types import TracebackType
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndRequests:
    """While entered, a signal to end is only noted, and :meth:`check` ends the command.

    A handler that raised could do so anywhere: halfway through a write, or where Python can only
    ignore what is raised (a callback around a fork, a finaliser), and then we would go on for ever.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def __enter__(self) -> Self:
        heard = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        """End here, with the exit code shells give to a signal, if a signal has come."""
        if self.number is not None:
            sys.exit(128 + self.number)

    def _note(self, number: int, _: object) -> None:
        self.number = number
