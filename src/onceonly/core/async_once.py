"""``AsyncOnce``: the engine for tasks. It does what the flows ask for, with ``await``."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from onceonly.core.bound import AsyncBound
from onceonly.core.coalesce import AsyncCoalescer, Background
from onceonly.core.engine import CLOSED, PURGE_STEP, Engine, unstarted, unwrap
from onceonly.core.finding import KeySpec, call_key, found_key
from onceonly.core.flows import first_time, first_time_many
from onceonly.core.manual import AsyncManualClaim
from onceonly.core.renewal import AsyncKeeper
from onceonly.core.runners import AsyncCalls, AsyncRunner, refuse_uncallable
from onceonly.core.terms import windows_of_now
from onceonly.errors import StoreError
from onceonly.protocols import AsyncStore, Clock
from onceonly.settings import Options, optional_name
from onceonly.stores import open_async_store
from onceonly.types import (
    Acquired,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Marks,
    Outcome,
    ReadWindows,
    Record,
    Release,
    Stats,
    StoredWindow,
)
from onceonly.windows import Duration, window_seconds

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")


_PATIENCE = 1.0  # seconds that close() waits for the writes of cancelled tasks


class Guard(Protocol):
    """What makes an async function of an async or a plain one."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class _Home(NamedTuple):
    """What belongs to one event loop."""

    runner: AsyncRunner
    keeper: AsyncKeeper
    background: Background


class AsyncOnce(Engine):
    """:class:`~onceonly.Once` for async code: the same names, rules and promises, with ``await``."""

    _asynchronous = True

    def __init__(
        self,
        store: str | AsyncStore | None = None,
        *,
        group: str | None = None,
        clock: Clock = time.monotonic,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(store, group, options, clock)
        given = self._store_or_url
        self._owns_store = isinstance(given, str)
        if not self._owns_store:
            self._check_store(given)
        opened = open_async_store(given) if isinstance(given, str) else given
        self._store: AsyncStore = opened  # type: ignore[assignment]
        self._start()

    def _start(self) -> None:
        self._homes: dict[asyncio.AbstractEventLoop, _Home] = {}
        self._lock = threading.Lock()

    def _ready(self) -> AsyncRunner:
        """The runner of this event loop: each one, in each process, has its own keeper and queues."""
        self._check_process()
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop) or self._settle(loop)
        return home.runner

    def _settle(self, loop: asyncio.AbstractEventLoop) -> _Home:
        store, background = self._store, Background()
        keeper = AsyncKeeper(store, self._clock, self._counts.emit)
        claims = AsyncCoalescer(store.claim, give_back=self._give_back, background=background)
        calls: AsyncCalls = {
            ClaimRequest: claims.submit,
            Completion: AsyncCoalescer(store.complete, background=background).submit,
            Release: AsyncCoalescer(store.release, background=background).submit,
            Mark: AsyncCoalescer(store.mark_seen, background=background).submit,
            Marks: store.mark_seen,
            ReadWindows: AsyncCoalescer(store.windows, background=background).submit,
        }
        runner = AsyncRunner(calls, self._counts.emit, keeper, self._clock, background)
        with self._lock:
            for other in [other for other in self._homes if other.is_closed()]:
                del self._homes[other]
            home = self._homes[loop] = _Home(runner, keeper, background)
        return home

    # --- processing ---------------------------------------------------------------------------

    @overload
    async def process(
        self,
        fn: Callable[[M], Awaitable[T]],
        message: M,
        *,
        key: str | Callable[[M], object],
        fallback: Callable[[M], object] | None = ...,
        scope: str | None = ...,
        type: str | None = ...,
    ) -> Outcome[T]: ...
    @overload
    async def process(
        self,
        fn: Callable[[M], T],
        message: M,
        *,
        key: str | Callable[[M], object],
        fallback: Callable[[M], object] | None = ...,
        scope: str | None = ...,
        type: str | None = ...,
    ) -> Outcome[T]: ...
    async def process(
        self,
        fn: Callable[[M], Any],
        message: M,
        *,
        key: str | Callable[[M], object],
        fallback: Callable[[M], object] | None = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Outcome[Any]:
        """As :meth:`Once.process`. A plain function runs in a thread."""
        runner = self._ready()
        refuse_uncallable(fn)
        found = found_key(key, message, fallback)
        request = self._request(self._policy, found, (message,), {}, scope=scope, kind=type)
        return await runner.drive(self._flow(self._policy, request), fn, (message,), {})

    @overload
    async def process_many(
        self,
        fn: Callable[[M], Awaitable[T]],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = ...,
        scope: str | None = ...,
        type: str | None = ...,
    ) -> list[Outcome[T]]: ...
    @overload
    async def process_many(
        self,
        fn: Callable[[M], T],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = ...,
        scope: str | None = ...,
        type: str | None = ...,
    ) -> list[Outcome[T]]: ...
    async def process_many(
        self,
        fn: Callable[[M], Any],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[Outcome[Any]]:
        """As :meth:`Once.process_many`: handlers run one after the other.

        To run many at once, gather :meth:`process` calls: their store calls are coalesced.
        """
        runner = self._ready()
        refuse_uncallable(fn)
        if chosen := list(messages):
            with suppress(StoreError):  # each message's own flow tells what that means for it
                await runner.advance(flow := windows_of_now(self._policy, self._clock()), flow.send, None)
        batch = self._batch(chosen, key, fallback, scope, type)
        return await runner.drive_batch(batch, fn, self._store)

    def handler(
        self, *, key: KeySpec, fallback: Callable[..., object] | None = None, **options: Unpack[Options]
    ) -> Guard:
        """As :meth:`Once.handler`. A plain function becomes an async one that runs in a thread."""
        policy = self._override(options)

        def decorate(fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            refuse_uncallable(fn)
            find = call_key(key, fallback, fn)

            @functools.wraps(fn)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                runner = self._ready()
                found = find(args, kwargs)
                request = self._request(policy, found, args, kwargs)
                outcome = await runner.drive(self._flow(policy, request), fn, args, kwargs)
                return cast(T, unwrap(outcome, str(found)))

            return guarded

        return decorate  # type: ignore[return-value]

    def claim(
        self,
        key: str,
        *,
        message: object = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> AsyncManualClaim[Any]:
        """By hand: ``async with once.claim("order-17") as claim: if claim.fresh: ...``"""
        runner = self._ready()
        request = self._claim_request(key, message, scope, type)
        return AsyncManualClaim(runner, self._flow_by_hand(request), key, message)

    # --- filter mode --------------------------------------------------------------------------

    async def first_time(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> bool:
        """As :meth:`Once.first_time`."""
        runner = self._ready()
        kind = self._fixed_type(type)
        mark = Mark(self._id(key, scope), self._policy.terms(kind)[0], kind)
        new: bool = await runner.advance(flow := first_time(self._policy, mark, self._clock), flow.send, None)
        return new

    async def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        """As :meth:`Once.first_time_many`."""
        runner = self._ready()
        marks = self._marks(keys, scope, type)
        flow = first_time_many(self._policy, marks, self._clock)
        new: list[bool] = await runner.advance(flow, flow.send, None)
        return new

    async def seen(self, key: str, *, scope: str | None = None) -> bool:
        """As :meth:`Once.seen`."""
        record = await self.peek(key, scope=scope)
        return record is not None and record.state.done

    # --- inbox --------------------------------------------------------------------------------

    def bind(self, connection: object) -> AsyncBound:
        """As :meth:`Once.bind`."""
        self._check_process()
        return AsyncBound(self, self._store.bind(connection))

    # --- operating ----------------------------------------------------------------------------

    async def peek(self, key: str, *, scope: str | None = None) -> Record | None:
        self._ready()
        return (await self._store.peek([self._id(key, scope)]))[0]

    async def forget(self, key: str, *, scope: str | None = None, force: bool = False) -> bool:
        self._ready()
        return (await self._store.forget([self._id(key, scope)], force=force))[0]

    async def purge(self) -> int:
        self._ready()
        total = 0
        while True:  # until nothing is left but what expires meanwhile
            removed = await self._store.purge(limit=PURGE_STEP)
            total += removed
            if removed < PURGE_STEP:
                return total

    async def stats(self) -> Stats:
        self._ready()
        return self._with_counts(await self._store.stats())

    async def windows(self) -> list[StoredWindow]:
        """As :meth:`Once.windows`."""
        self._ready()
        return (await self._store.windows([ReadWindows(self._group)]))[0]

    async def set_window(self, window: Duration | None, *, type: str | None = None) -> None:  # noqa: A002
        """As :meth:`Once.set_window`."""
        self._ready()
        kind, chosen = optional_name("type", type), window_seconds(window)
        try:
            await self._store.set_window(self._group, kind, chosen)
        finally:
            self._overrides.changed()

    async def clear_window(self, *, type: str | None = None) -> bool:  # noqa: A002
        """As :meth:`Once.clear_window`."""
        self._ready()
        kind = optional_name("type", type)
        try:
            return await self._store.clear_window(self._group, kind)
        finally:
            self._overrides.changed()

    async def close(self) -> None:
        self._process = CLOSED
        home = self._homes.pop(asyncio.get_running_loop(), None)
        for other in self._homes.values():
            other.keeper.stop()
        if home is not None:
            await home.background.settle(_PATIENCE)
            await home.keeper.close()
        if self._owns_store:
            await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _give_back(self, unwanted: list[tuple[ClaimRequest, ClaimAnswer | None]]) -> None:
        claimed = [request for request, answer in unwanted if answer is None or type(answer) is Acquired]
        if claimed:
            await self._store.release([unstarted(request) for request in claimed])
