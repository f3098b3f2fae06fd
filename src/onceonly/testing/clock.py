"""Time that moves when told to."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is advanced. Call it for the time in seconds."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; it never runs backwards here."""
        if seconds < 0:
            msg = f"advance({seconds}) would turn time back; use jump() to say that you mean it"
            raise ValueError(msg)
        self._now += seconds

    def jump(self, seconds: float) -> None:
        """Set the clock by ``seconds``, forwards or backwards, as an operator or NTP does."""
        self._now += seconds
