"""One keeper per engine renews all its leases, each at a third of its length.

A renewal that crosses a completion does no harm: every write compares the token, and a done record
refuses renewals. So nobody has to wait for the keeper before completing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import ref

from onceonly.core.effects import Claim, NotStarted
from onceonly.events import Event, LeaseWasLost, RenewalFailed
from onceonly.protocols import AsyncStore, Clock, Store
from onceonly.types import Renewal

_PART = 3  # a lease is renewed after a third of it
_SOON = 12  # and those due within a twelfth go along, in the same call
_IDLE_ROUNDS = 10  # a keeper without work ends after so many looks, and is started again on demand


class Watchlist:
    """Which claims are kept alive, and when each is due. Adding and removing is one dict operation."""

    def __init__(self, clock: Clock, emit: Callable[[Event], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._claims: dict[bytes, ref[Claim]] = {}  # weak: nobody renews for a run that is gone
        self._shortest = float("inf")
        self._next_look = float("inf")  # when the keeper looks again; infinite while it is at work

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, claim: Claim) -> bool:
        """True if it is due before the keeper looks again, so that a sleeping keeper must be woken."""
        self._claims[claim.token] = ref(claim)
        self._shortest = min(self._shortest, claim.lease)
        return claim.renewed + claim.lease / _PART < self._next_look

    def remove(self, claim: Claim) -> None:
        self._claims.pop(claim.token, None)

    def leave_threads_only(self) -> None:
        for claim in self._held():
            if not claim.threaded:
                self.remove(claim)

    def _held(self) -> list[Claim]:
        found = []
        for token, reference in list(self._claims.items()):
            claim = reference()
            if claim is None:
                self._claims.pop(token, None)
            else:
                found.append(claim)
        return found

    def due(self) -> list[Claim]:
        now = self._clock()
        claims = self._held()
        for claim in claims:
            if now >= claim.deadline and not claim.lost:
                self._lost(claim)
        if not any(now >= claim.renewed + claim.lease / _PART for claim in claims):
            return []
        return [c for c in claims if now >= c.renewed + c.lease / _PART - c.lease / _SOON]

    def pause(self) -> float:
        """Until the next is due, for a keeper that goes to sleep now."""
        now = self._clock()
        claims = self._held()  # one added after this finds _next_look infinite
        soonest = min((c.renewed + c.lease / _PART for c in claims), default=now + self._shortest / _PART)
        self._next_look = max(now, soonest)
        return self._next_look - now

    def wake(self) -> None:
        """The keeper is at work: whoever adds a claim now must make it look once more."""
        self._next_look = float("inf")

    def renewals(self, claims: Sequence[Claim]) -> list[Renewal]:
        return [Renewal(c.id, c.token, c.lease, c.window) for c in claims]

    def answered(self, claims: Sequence[Claim], sent: float, answers: Sequence[bool]) -> None:
        for claim, ours in zip(claims, answers, strict=True):
            if ours:
                claim.renewed, claim.deadline, claim.lost = sent, sent + claim.lease, False
                continue
            self.remove(claim)
            if not claim.finishing and not claim.lost:
                self._lost(claim)

    def _lost(self, claim: Claim) -> None:
        claim.lost = True
        self._emit(LeaseWasLost(claim.id, claim.attempt))

    def failed(self, claims: Sequence[Claim], error: Exception) -> float:
        """How long to wait before trying again: several tries fit before the leases end."""
        self._emit(RenewalFailed(len(claims), error))
        return self._shortest / 10


class Keeper:
    """Renews from a daemon thread, started with the first claim."""

    def __init__(self, store: Store, clock: Clock, emit: Callable[[Event], None]) -> None:
        self._store = store
        self._clock = clock
        self._watchlist = Watchlist(clock, emit)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, claim: Claim) -> None:
        if self._watchlist.add(claim):
            self._wake.set()
        if self._thread is None:
            self._start()  # raises NotStarted

    def unwatch(self, claim: Claim) -> None:
        self._watchlist.remove(claim)

    def close(self, timeout: float = 1.0) -> None:
        """Stop; wait for a renewal under way, but not for ever."""
        self._closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._work, name="onceonly-keeper", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread to be had; the next claim tries again
                    raise NotStarted(error) from error
                self._thread = thread

    def _work(self) -> None:
        idle, pause = 0, self._watchlist.pause()
        while not self._closed:
            self._wake.wait(pause)
            self._wake.clear()
            pause = self._renew()
            idle = 0 if self._watchlist else idle + 1
            if idle >= _IDLE_ROUNDS and self._retire():
                return

    def _retire(self) -> bool:
        with self._lock:
            thread, self._thread = self._thread, None  # whoever adds from now on starts another
            if self._watchlist:  # added just before, when there was still one
                self._thread = thread
                return False
        return True

    def _renew(self) -> float:
        self._watchlist.wake()
        claims = self._watchlist.due()
        if claims:
            sent = self._clock()
            try:
                answers = self._store.renew(self._watchlist.renewals(claims))
            except Exception as error:  # noqa: BLE001 - a keeper that dies loses every lease
                return self._watchlist.failed(claims, error)
            self._watchlist.answered(claims, sent, answers)
        return self._watchlist.pause()


class AsyncKeeper:
    """Renews from a task of the running event loop, started with the first claim."""

    def __init__(self, store: AsyncStore, clock: Clock, emit: Callable[[Event], None]) -> None:
        self._store = store
        self._clock = clock
        self._watchlist = Watchlist(clock, emit)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self._ending = False  # the event loop is: it waits for this task

    def watch(self, claim: Claim) -> None:
        if self._watchlist.add(claim):
            self._wake.set()
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work())

    def unwatch(self, claim: Claim) -> None:
        self._watchlist.remove(claim)
        if self._ending:
            self._wake.set()

    def stop(self) -> None:
        """Soon; from whatever thread or loop."""
        self._closed = True

    async def close(self) -> None:
        self.stop()
        self._wake.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=1.0)
            for task in late:
                task.cancel()

    async def _work(self) -> None:
        """An event loop that ends cancels every task, and then waits for the handlers that still run in
        threads: as long as one does, its lease is kept."""
        cancelled: asyncio.CancelledError | None = None
        idle, pause = 0, self._watchlist.pause()
        while (idle < _IDLE_ROUNDS and not cancelled) or self._watchlist:
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
                self._wake.clear()
                if self._closed:
                    return
                pause = await self._renew()
            except asyncio.CancelledError as error:
                cancelled, pause, self._ending = error, 0.0, True
                self._watchlist.leave_threads_only()
            idle = 0 if self._watchlist else idle + 1
        if cancelled:
            raise cancelled

    async def _renew(self) -> float:
        self._watchlist.wake()
        claims = self._watchlist.due()
        if claims:
            sent = self._clock()
            try:
                answers = await self._store.renew(self._watchlist.renewals(claims))
            except Exception as error:  # noqa: BLE001 - a keeper that dies loses every lease
                return self._watchlist.failed(claims, error)
            self._watchlist.answered(claims, sent, answers)
        return self._watchlist.pause()
