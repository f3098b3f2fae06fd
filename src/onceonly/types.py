"""Identities, requests, answers and records: the words that engine and stores exchange.

Requests and answers are named tuples: immutable, and several times cheaper to make than frozen
dataclasses, which matters because each message makes five of them. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar, overload

T = TypeVar("T")


class RecordId(NamedTuple):
    """Who processes what: the identity of one record."""

    group: str
    scope: str
    key: str


def digest_prefix(group: str, scope: str) -> bytes:
    """The part of a digest's input that all keys of a group and scope share."""
    g, s = group.encode(), scope.encode()
    return b"onceonly1:%d:%b%d:%b" % (len(g), g, len(s), s)


class Status(StrEnum):
    """How a done record ended."""

    PROCESSED = "processed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


class State(StrEnum):
    """Where a record is in its life. The last three are *done*."""

    CLAIMED = "claimed"
    FREE = "free"
    PROCESSED = "processed"
    FAILED = "failed"
    QUARANTINED = "quarantined"

    @property
    def done(self) -> bool:
        return self is not State.CLAIMED and self is not State.FREE


EVERY_STATE = frozenset(State)


class Verdict(StrEnum):
    """What became of one delivery."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    IN_FLIGHT = "in_flight"
    FAILED = "failed"
    QUARANTINED = "quarantined"


# --- requests ---------------------------------------------------------------------------------


class Mark(NamedTuple):
    """Remember ``id`` as processed for ``window``, unless it is known already.

    ``result`` is kept with the record, for whoever meets it later.
    """

    id: RecordId
    window: float
    type: str | None = None
    result: bytes | None = None


class Marks(Sequence[Mark]):
    """Marks that differ in their key only, and in their result if there are ``results``. A store may treat
    it as any sequence, or read the columns, which saves making two tuples per key."""

    def __init__(
        self,
        group: str,
        scope: str,
        keys: Sequence[str],
        window: float,
        kind: str | None = None,
        *,
        results: Sequence[bytes] | None = None,
    ) -> None:
        self.group = group
        self.scope = scope
        self.keys = keys
        self.window = window
        self.type = kind
        self.results = results

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Mark: ...
    @overload
    def __getitem__(self, index: slice) -> Marks: ...
    def __getitem__(self, index: int | slice) -> Mark | Marks:
        results = self.results
        if isinstance(index, slice):
            some = results and results[index]
            return Marks(self.group, self.scope, self.keys[index], self.window, self.type, results=some)
        record_id = RecordId(self.group, self.scope, self.keys[index])
        return Mark(record_id, self.window, self.type, results[index] if results else None)


class ClaimRequest(NamedTuple):
    """Ask for the right to run the handler for ``id`` during ``lease``.

    ``window`` says how long an unfinished record outlives its lease.
    """

    id: RecordId
    token: bytes
    lease: float
    window: float
    fingerprint: bytes | None = None
    type: str | None = None


class Completion(NamedTuple):
    """Turn our claim into a done record, kept for ``window`` from now."""

    id: RecordId
    token: bytes
    window: float
    status: Status = Status.PROCESSED
    result: bytes | None = None


class Release(NamedTuple):
    """Give our claim back; nobody gets it before ``delay`` is over.

    ``started=False`` says that the handler never ran: this attempt does not count, and an orphan stays one.
    """

    id: RecordId
    token: bytes
    window: float
    delay: float = 0.0
    started: bool = True


class Renewal(NamedTuple):
    """Let our lease run for ``lease`` from now."""

    id: RecordId
    token: bytes
    lease: float
    window: float


class ReadWindows(NamedTuple):
    """Ask for the windows that are set for ``group``; None for those of every group."""

    group: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """Which records an operator wants to see, oldest claim first.

    ``orphaned`` chooses among claims: True those whose lease is over, False those whose lease is running.
    """

    states: frozenset[State]
    group: str | None = None
    orphaned: bool | None = None
    limit: int = 100


# --- answers ----------------------------------------------------------------------------------


class Acquired(NamedTuple):
    """The claim is ours. ``fingerprint`` is the first one this record ever had."""

    fence: int
    attempt: int
    orphaned: bool = False
    fingerprint: bytes | None = None


class Busy(NamedTuple):
    """In flight: another holds the claim, or a released record waits for its not-before."""

    retry_after: float
    fingerprint: bytes | None = None


class Done(NamedTuple):
    """Nothing to run any more. A bare record has ``result`` None."""

    status: Status
    result: bytes | None = None
    fingerprint: bytes | None = None
    attempt: int = 1


ClaimAnswer = Acquired | Busy | Done


# --- what people look at ----------------------------------------------------------------------


class Outcome(NamedTuple, Generic[T]):
    """What :meth:`Once.process` tells a consumer about one delivery."""

    verdict: Verdict
    result: T | None = None
    attempt: int = 0
    retry_after: float = 0.0
    error: BaseException | None = None
    final: bool = False

    @property
    def ack(self) -> bool:
        """May this delivery be acknowledged? Only if its record is done.

        Never while the message is in flight; not for a quarantined one, which must be
        dead-lettered first; for a failure only when it is final, that is stored.
        """
        if self.verdict is Verdict.FAILED:
            return self.final
        return self.verdict is Verdict.PROCESSED or self.verdict is Verdict.DUPLICATE


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A window that was set in the store: for a whole group, or for one type of it.

    ``window`` None means no dedup. ``updated_at`` is the store's clock.
    """

    group: str
    type: str | None
    window: float | None
    updated_at: float


@dataclass(frozen=True, slots=True)
class Record:
    """One record as ``peek`` shows it. Times are the store's clock, in seconds since 1970."""

    id: RecordId
    state: State
    attempt: int
    fence: int
    expires_at: float | None
    lease_until: float | None = None
    not_before: float | None = None
    done_at: float | None = None
    orphaned: bool = False
    type: str | None = None
    fingerprint: bytes | None = None
    result: bytes | None = None

    @property
    def claimed_at(self) -> float | None:
        """When the last owner got it, as its fence tells: the clock in microseconds, or a little more where
        the clock stood still or ran back. None for what was only marked."""
        return self.fence / 1e6 if self.fence else None


@dataclass(frozen=True, slots=True)
class Stats:
    """Records by group and state; ``expired`` ones wait for a purge and count nowhere else.

    ``failed_open`` and ``results_dropped`` are counted by this engine since it started.
    """

    groups: Mapping[str, Mapping[State, int]] = field(default_factory=dict)
    expired: int = 0
    failed_open: int = 0
    results_dropped: int = 0

    @property
    def records(self) -> int:
        return sum(sum(states.values()) for states in self.groups.values())


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do; tests and engines ask this instead of guessing from its class.

    durable: records survive the end of the process · shared: several processes may use it at once ·
    transactional: has ``bind`` · server_clock: leases are judged by a clock that workers share ·
    native_ttl: expired records go away without ``purge``.
    """

    durable: bool
    shared: bool
    transactional: bool
    server_clock: bool
    native_ttl: bool


@dataclass(frozen=True, slots=True)
class Happened(Generic[T]):
    """A probe's answer: the orphan's effect did happen, and this was its result."""

    result: T | None = None
