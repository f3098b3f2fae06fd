"""What the engine tells metrics, logs and traces. Stores never emit; payloads are never included.

Pass ``on_event=callable`` to an engine. It is called in the thread or task that met the event, must
be quick, and must not raise; what it raises is dropped so that it can never cost a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from onceonly.types import RecordId, Verdict


class Settled(NamedTuple):
    """One delivery came to its verdict."""

    id: RecordId
    verdict: Verdict
    attempt: int


class Raised(NamedTuple):
    """The handler raised; the claim was released, or the failure stored as ``final``."""

    id: RecordId
    attempt: int
    error: BaseException
    final: bool


class FailedOpen(NamedTuple):
    """The store was down and ``on_store_error="open"``: the handler ran without protection."""

    id: RecordId
    error: Exception


class ResultDropped(NamedTuple):
    """The effect is recorded as done, but its result could not be kept."""

    id: RecordId
    reason: str


class LeaseWasLost(NamedTuple):
    """A lease ended while the handler ran: a renewal was refused, or none could be written in time."""

    id: RecordId
    attempt: int


class RenewalFailed(NamedTuple):
    """The store did not answer a batch of renewals; they are tried again before the leases end."""

    leases: int
    error: Exception


class ReleaseFailed(NamedTuple):
    """A release could not be written; the claim ends with its lease instead."""

    id: RecordId
    error: Exception


class WindowsChanged(NamedTuple):
    """Other windows are set in the store than this engine knew: by type, None for the whole group."""

    group: str
    windows: Mapping[str | None, float | None]


Event = (
    Settled
    | Raised
    | FailedOpen
    | ResultDropped
    | LeaseWasLost
    | RenewalFailed
    | ReleaseFailed
    | WindowsChanged
)
Listener = Callable[[Event], None]
