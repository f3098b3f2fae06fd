"""What a store promises. Each sentence below is a test in ``onceonly.testing.conformance``.

For every verb, on every store:

- A call is a batch. Answers come in the order of the requests. A key may appear more than once, as
  if the requests came one after the other: of two claims the first wins, of two equal marks the first
  is new.
- A call is atomic: if it raises anything but ``StoreUnavailable(unknown=True)``, nothing changed.
- Durations go in, never timestamps. The store's own clock judges leases and windows, on read:
  whether ``purge`` ran never changes an answer.
- An expired record answers like an absent one.
- Stores log nothing and emit nothing; they raise ``OnceonlyError`` with the driver's error as cause.

``AsyncStore`` has the same verbs and promises behind ``await``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from onceonly.types import (
    EVERY_STATE,
    Capabilities,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Query,
    ReadWindows,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Stats,
    StoredWindow,
)

Clock = Callable[[], float]
"""Seconds; wall clock for stores, monotonic for engines. Injected in tests."""


class BoundStore(Protocol):
    """A store's verbs inside the caller's own transaction.

    It never commits, rolls back, opens a connection or changes session state. What it wrote is
    visible to others when the caller commits, and gone when the caller rolls back.
    """

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        """As ``Store.mark_seen``, but a live claim raises ``InFlight`` before anything is marked:
        the answer "seen" would acknowledge a message whose first run may still fail."""
        ...

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]: ...

    def complete(self, completions: Sequence[Completion]) -> list[bool]: ...

    def release(self, releases: Sequence[Release]) -> list[bool]: ...

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]: ...


class Store(Protocol):
    """Where records live. Small, atomic verbs; the state × verb table is in ``stores/rules.py``."""

    @property
    def capabilities(self) -> Capabilities: ...

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        """True for each key that is new, which is done from now on, with its result. A live claim is not
        new.

        There is no token, so a mark is never sent twice: a lost reply raises
        ``StoreUnavailable(unknown=True)``.
        """
        ...

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        """At most one live claim per key. Sending the same token again gives the same lease again.

        Every new owner gets a larger fence than any earlier owner of that key, also across expiry
        and purge. ``attempt`` counts starts and survives release and take-over. A claim whose lease
        is over may be taken by another token, and is then ``orphaned``.
        """
        ...

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        """True if the record is done by this token, also when sent again; else nothing changes."""
        ...

    def release(self, releases: Sequence[Release]) -> list[bool]:
        """True if the record is free and was ours, also when sent again; else nothing changes."""
        ...

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        """True if the claim is still ours, also after its lease ended if nobody took it."""
        ...

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        """Read only. Expired records are None."""
        ...

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        """Remove records; True where there was one. With ``only``, none whose state is another.

        A live claim among them raises ``InFlight`` unless forced, and then nothing changed.
        """
        ...

    def purge(self, *, limit: int = 10_000) -> int:
        """Remove at most about ``limit`` expired records and return how many; 0 means none is left.

        Never a live lease, never a quarantined record, never an unfinished record within its window.
        """
        ...

    def stats(self) -> Stats: ...

    def find(self, query: Query) -> list[Record]:
        """Records that were claimed once, oldest claim first. For operators: it may read everything."""
        ...

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        """Take claims from owners that are gone: True where the record is still what was shown, its state and
        fence, and is a claim, or free and waits.

        The next delivery takes it over, as if the lease had ended; what the last owner still writes is
        refused. ``afresh`` also takes what failed or is quarantined: the next delivery runs as the first one,
        and nothing is asked about orphans. A live claim raises ``InFlight`` unless forced, and then nothing
        changed.
        """
        ...

    def groups(self) -> list[str]:
        """The names of all groups that have records here, in order; perhaps also of some that had."""
        ...

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        """The windows that are set, by group and type; that of a whole group before those of its types."""
        ...

    def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        """Set the window of a group, or of one type of it; None means no dedup. Engines on this store follow
        within seconds; no record changes."""
        ...

    def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        """Take that back, so that the engine's own window counts. True if there was one."""
        ...

    def bind(self, connection: object) -> BoundStore:
        """The same records in the caller's transaction. ``ConfigurationError`` where that cannot be."""
        ...

    def close(self) -> None: ...

    def after_fork(self) -> None:
        """Called in a child process before its first call: leave inherited connections alone."""
        ...


class AsyncBoundStore(Protocol):
    """:class:`BoundStore` behind ``await``."""

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]: ...
    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]: ...
    async def complete(self, completions: Sequence[Completion]) -> list[bool]: ...
    async def release(self, releases: Sequence[Release]) -> list[bool]: ...
    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]: ...


class AsyncStore(Protocol):
    """:class:`Store` behind ``await``."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]: ...
    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]: ...
    async def complete(self, completions: Sequence[Completion]) -> list[bool]: ...
    async def release(self, releases: Sequence[Release]) -> list[bool]: ...
    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]: ...
    async def peek(self, ids: Sequence[RecordId]) -> list[Record | None]: ...
    async def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]: ...
    async def purge(self, *, limit: int = 10_000) -> int: ...
    async def stats(self) -> Stats: ...
    async def find(self, query: Query) -> list[Record]: ...
    async def revoke(
        self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False
    ) -> list[bool]: ...
    async def groups(self) -> list[str]: ...
    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]: ...
    async def set_window(self, group: str, type: str | None, window: float | None) -> None: ...  # noqa: A002
    async def clear_window(self, group: str, type: str | None) -> bool: ...  # noqa: A002
    def bind(self, connection: object) -> AsyncBoundStore: ...
    async def close(self) -> None: ...
    def after_fork(self) -> None: ...


class Codec(Protocol):
    """Turns a handler's result into bytes and back. ``decode(encode(x))`` must equal ``x``."""

    def encode(self, value: object) -> bytes: ...

    def decode(self, data: bytes) -> object: ...
