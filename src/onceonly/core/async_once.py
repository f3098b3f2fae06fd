"""``AsyncOnce``: the engine for tasks. It does what the flows ask for, with ``await``."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from onceonly.core.bound import AsyncBound
from onceonly.core.coalesce import AsyncCoalescer, Background
from onceonly.core.engine import Engine, KeySpec, call_key, found_key, unstarted, unwrap
from onceonly.core.flows import first_time, first_time_many
from onceonly.core.manual import AsyncManualClaim
from onceonly.core.renewal import AsyncKeeper
from onceonly.core.runners import AsyncCalls, AsyncRunner
from onceonly.errors import StoreError
from onceonly.protocols import AsyncStore, Clock
from onceonly.settings import Options
from onceonly.stores import open_async_store
from onceonly.types import (
    Acquired,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Marks,
    Outcome,
    Record,
    Release,
    Stats,
)

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")


_PATIENCE = 1.0  # seconds that close() waits for the writes of cancelled tasks


class AsyncOnce(Engine):
    """:class:`~onceonly.Once` for async code: the same names, rules and promises, with ``await``."""

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
        opened = open_async_store(given) if isinstance(given, str) else given
        self._store: AsyncStore = opened  # type: ignore[assignment]
        self._loop: asyncio.AbstractEventLoop | None = None

    def _ready(self) -> None:
        """Each event loop, and each process, gets its own keeper and queues."""
        self._check_process()
        if asyncio.get_running_loop() is not self._loop:
            self._start()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._background = Background()
        self._keeper = AsyncKeeper(self._store, self._clock, self._counts.emit)
        calls: AsyncCalls = {
            ClaimRequest: AsyncCoalescer(
                self._store.claim, give_back=self._give_back, background=self._background
            ).submit,
            Completion: AsyncCoalescer(self._store.complete).submit,
            Release: AsyncCoalescer(self._store.release).submit,
            Mark: AsyncCoalescer(self._store.mark_seen).submit,
            Marks: self._store.mark_seen,
        }
        self._runner = AsyncRunner(calls, self._counts.emit, self._keeper, self._background)

    # --- processing ---------------------------------------------------------------------------

    @overload
    async def process(
        self,
        fn: Callable[[M], Awaitable[T]],
        message: M,
        *,
        key: str | Callable[[M], object],
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
        scope: str | None = ...,
        type: str | None = ...,
    ) -> Outcome[T]: ...
    async def process(
        self,
        fn: Callable[[M], Any],
        message: M,
        *,
        key: str | Callable[[M], object],
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Outcome[Any]:
        """As :meth:`Once.process`. A plain function runs in a thread."""
        self._ready()
        request = self._request(self._policy, found_key(key, message), (message,), {}, scope=scope, kind=type)
        return await self._runner.drive(self._flow(self._policy, request), fn, (message,), {})

    @overload
    async def process_many(
        self,
        fn: Callable[[M], Awaitable[T]],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = ...,
    ) -> list[Outcome[T]]: ...
    @overload
    async def process_many(
        self,
        fn: Callable[[M], T],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = ...,
    ) -> list[Outcome[T]]: ...
    async def process_many(
        self,
        fn: Callable[[M], Any],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = None,
    ) -> list[Outcome[Any]]:
        """As :meth:`Once.process_many`: handlers run one after the other.

        To run many at once, gather :meth:`process` calls: their store calls are coalesced.
        """
        self._ready()
        batch = self._batch(list(messages), key, fallback)
        return await self._runner.drive_batch(batch, fn, self._store)

    def handler(
        self, *, key: KeySpec, fallback: Callable[..., object] | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """As :meth:`Once.handler`. A plain function becomes an async one that runs in a thread."""
        policy = self._override(options)
        find = call_key(key, fallback)

        def decorate(fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            @functools.wraps(fn)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                self._ready()
                found = find(args, kwargs)
                request = self._request(policy, found, args, kwargs)
                outcome = await self._runner.drive(self._flow(policy, request), fn, args, kwargs)
                return cast(T, unwrap(outcome, str(found)))

            return guarded

        return decorate

    def claim(
        self,
        key: str,
        *,
        message: object = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> AsyncManualClaim[Any]:
        """By hand: ``async with once.claim("order-17") as claim: if claim.fresh: ...``"""
        self._ready()
        request = self._claim_request(key, message, scope, type)
        return AsyncManualClaim(self._runner, self._flow(self._policy, request), key, message)

    # --- filter mode --------------------------------------------------------------------------

    async def first_time(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> bool:
        """As :meth:`Once.first_time`."""
        self._ready()
        if self._policy.window is None:
            return True
        mark = Mark(self._id(key, scope), self._policy.window, self._fixed_type(type))
        new: bool = await self._runner.advance(flow := first_time(self._policy, mark), flow.send, None)
        return new

    async def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        """As :meth:`Once.first_time_many`."""
        self._ready()
        marks = self._marks(keys, scope, type)
        if self._policy.window is None:
            return [True] * len(marks)
        flow = first_time_many(self._policy, marks)
        new: list[bool] = await self._runner.advance(flow, flow.send, None)
        return new

    async def seen(self, key: str, *, scope: str | None = None) -> bool:
        """As :meth:`Once.seen`."""
        record = await self.peek(key, scope=scope)
        return record is not None and record.state.done

    # --- inbox --------------------------------------------------------------------------------

    def bind(self, connection: object) -> AsyncBound:
        """As :meth:`Once.bind`."""
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
        while removed := await self._store.purge():
            total += removed
        return total

    async def stats(self) -> Stats:
        self._ready()
        return self._with_counts(await self._store.stats())

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():  # else its tasks ended with their loop
            await self._background.settle(_PATIENCE)
            await self._keeper.close()
        if self._owns_store:
            await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _give_back(self, request: ClaimRequest, answer: ClaimAnswer | None) -> None:
        if answer is None or isinstance(answer, Acquired):
            with suppress(StoreError):
                await self._store.release([unstarted(request)])
