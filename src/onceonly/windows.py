"""Durations as people write them, the textbook's windows, and what is set in the store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from onceonly.errors import ConfigurationError
from onceonly.types import StoredWindow

Duration = str | float | timedelta

PRESETS = {"payment": "24h", "order": "4h", "notification": "15m", "analytics": "5m"}

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_LONGEST = 100 * 365 * 86400.0


REFRESH = 2.0  # seconds after which an engine asks again what windows are set


class Overrides:
    """The windows set in the store for one group, as last read. They win over what the code says.

    ``due`` is when to ask again, by the engine's clock. While ``known`` is False nobody has been told yet.
    """

    def __init__(self, *, due: float = float("-inf")) -> None:
        self.due = due
        self.known = False
        self.changes = 0  # made by this engine itself
        self.away_until = float("-inf")  # who needs no answer does not ask again before
        self.windows: dict[str | None, float | None] = {}  # by type; None is the whole group

    def asking(self, now: float) -> None:
        """Others go on with what is known, if that is young; else they ask as well."""
        if self.known and now < self.due + REFRESH:
            self.due = now + REFRESH

    def away(self, now: float) -> None:
        """The store does not tell."""
        self.away_until = now + REFRESH
        if self.known:
            self.due = now + REFRESH

    def learn(self, stored: Iterable[StoredWindow], now: float, changes: int | None = None) -> bool:
        """True if that is news."""
        windows = {each.type: each.window for each in stored}
        news = windows != self.windows
        fresh = changes in (None, self.changes)  # else it is from before our own change
        self.windows, self.known, self.due = windows, True, now + REFRESH if fresh else float("-inf")
        return news

    def changed(self) -> None:
        """By this engine itself: ask before the next message."""
        self.changes += 1
        self.due = float("-inf")


def seconds(value: Duration, *, name: str) -> float:
    """``"24h"``, ``"1h30m"``, ``timedelta(hours=1)`` or ``3600`` as seconds; ``name`` is for the error."""
    number = _number(value, name)
    if not 0 < number <= _LONGEST:  # also refuses NaN
        msg = f"{name}={value!r} must be more than 0 and at most 100 years"
        raise ConfigurationError(msg)
    return number


def window_seconds(value: Duration | None, *, name: str = "window") -> float | None:
    """A window: a duration, a preset's name, or None for no dedup."""
    if value is None:
        return None
    if isinstance(value, str):
        value = PRESETS.get(value, value)
    return seconds(value, name=name)


def _number(value: Duration, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parse(value, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"{name} must be like '24h', a timedelta or seconds, not {type(value).__name__}"
        raise ConfigurationError(msg)
    return float(value)


def _parse(text: str, name: str) -> float:
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        hint = f" or one of the presets {', '.join(PRESETS)}" if "window" in name.lower() else ""
        msg = f"{name}={text!r} is not a duration: write it like '30s', '15m', '24h', '1h30m'{hint}"
        raise ConfigurationError(msg)
    return sum(float(n) * _UNITS[u] for n, u in parts)
