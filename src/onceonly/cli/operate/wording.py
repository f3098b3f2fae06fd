"""Times, durations and states in the words of an operator."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from onceonly.types import Record, State

_UNITS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))
_MOST_HOURS = 2 * 86400.0  # 24h and 36h are clearer than 1d and 1d12h


class Condition(StrEnum):
    """A record's state, and whether somebody is at work: what an operator wants to know of it."""

    IN_FLIGHT = "in-flight"  # claimed, the lease is running
    ORPHANED = "orphaned"  # claimed, the lease is over
    WAITING = "waiting"  # free: given back, for the next delivery
    PROCESSED = "processed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


def condition(record: Record) -> Condition:
    if record.state is State.CLAIMED:
        return Condition.ORPHANED if record.orphaned else Condition.IN_FLIGHT
    if record.state is State.FREE:
        return Condition.WAITING
    return Condition(record.state.value)


def iso(moment: float) -> str:
    """In UTC, to the second."""
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a clock that was set to nonsense
        return f"{moment:g}"


def relative(moment: float, now: float) -> str:
    """``in 3h`` or ``5m ago``: one unit is enough to judge by."""
    distance = abs(moment - now)
    unit, size = next(((u, s) for u, s in _UNITS if distance >= s), ("", 1.0))
    if not unit:
        return "now"
    count = f"{distance // size:.0f}{unit}"
    return f"in {count}" if moment > now else f"{count} ago"


def moment_and_age(moment: float, now: float) -> str:
    return f"{iso(moment)} ({relative(moment, now)})"


def duration(seconds: float) -> str:
    """As it can be given again: ``24h``, ``1h30m``, ``500ms``."""
    left, parts = seconds, []
    for unit, size in _UNITS:
        if unit == "d" and seconds < _MOST_HOURS:
            continue
        count = left // size
        if count:
            parts.append(f"{count:.0f}{unit}")
            left -= count * size
    if left > 1e-9 or not parts:
        parts.append(f"{round(left * 1000, 6):g}ms")
    return "".join(parts)


def window(seconds: float | None) -> str:
    return "none: no dedup" if seconds is None else duration(seconds)
