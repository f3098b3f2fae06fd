"""``AsyncOnce``: the engine for tasks. It does what the flows ask for, with ``await``."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from onceonly.core.batch import BatchEffect, CallMany, Keep, RunOne
from onceonly.core.coalesce import AsyncCoalescer
from onceonly.core.engine import Engine, KeySpec, _current, found_key, key_finder, literal, unwrap
from onceonly.core.flows import VERBS, Ask, Claim, Emit, Run, Sleep, first_time
from onceonly.core.once import _unstarted, key_of
from onceonly.core.renewal import AsyncKeeper
from onceonly.errors import ConfigurationError, StoreError
from onceonly.protocols import AsyncBoundStore, AsyncStore, Clock
from onceonly.settings import Options, Policy
from onceonly.stores import open_async_store
from onceonly.types import (
    Acquired,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Outcome,
    Record,
    Release,
    Stats,
)

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")

Calls = dict[type, Callable[[Any], Awaitable[Any]]]


class AsyncRunner:
    """Drives flows: asks the store, awaits the handler, sleeps, emits."""

    def __init__(self, calls: Calls, emit: Callable[[Any], None], keeper: AsyncKeeper | None) -> None:
        self._calls = calls
        self._emit = emit
        self._keeper = keeper
        self._last_writes: set[asyncio.Task[Any]] = set()  # strong references until they are done

    async def drive(self, flow: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome[Any]:
        """A whole flow, its handler included."""
        claim: Claim | None = None
        state = await self.advance(flow, flow.send, None)
        try:
            while type(state) is not Outcome:
                if type(state) is Run:
                    claim = self.keep(state.claim)
                try:
                    value = await self.call_handler(state, fn, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the flow decides, then it goes on
                    state = await self.shielded(self.advance(flow, flow.throw, error))
                else:
                    state = await self.shielded(self.advance(flow, flow.send, value))
        finally:
            self.let_go(claim)
        return state

    async def advance(self, flow: Any, step: Callable[[Any], Any], value: object) -> Any:
        """Do what the flow wants until it wants the handler (Run, Ask) or ends (its return value)."""
        calls = self._calls
        try:
            effect = step(value)
            while True:
                kind = type(effect)
                try:
                    if kind in calls:
                        value = await calls[kind](effect)
                    elif kind is Run or kind is Ask:
                        return effect
                    else:
                        value = await self._other(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return end.value

    async def shielded(self, rest: Coroutine[Any, Any, Any]) -> Any:
        """What follows the handler goes to its end, also when this task is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(rest)
        self._last_writes.add(task)
        task.add_done_callback(self._last_writes.discard)
        return await asyncio.shield(task)

    async def _other(self, effect: object) -> None:
        if isinstance(effect, Sleep):
            await asyncio.sleep(effect.seconds)
        elif isinstance(effect, Emit):
            self._emit(effect.event)

    async def call_handler(self, effect: Run | Ask, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(effect, Ask):
            return await _called(effect.probe, args, kwargs)
        before = _current.set(effect.claim)
        try:
            return await _called(fn, args, kwargs)
        finally:
            _current.reset(before)

    def keep(self, claim: Claim | None) -> Claim | None:
        if claim is not None and self._keeper is not None:
            self._keeper.watch(claim)
        return claim

    def let_go(self, claim: Claim | None) -> None:
        if claim is not None and self._keeper is not None:
            self._keeper.unwatch(claim)


async def _called(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Await an async function; run a plain one in a thread, so that leases are renewed meanwhile."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    value = await asyncio.to_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


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
        self._keeper = AsyncKeeper(self._store, self._clock, self._counts.emit)
        calls: Calls = {
            ClaimRequest: AsyncCoalescer(self._store.claim, give_back=self._give_back).submit,
            Completion: AsyncCoalescer(self._store.complete).submit,
            Release: AsyncCoalescer(self._store.release).submit,
            Mark: AsyncCoalescer(self._store.mark_seen).submit,
        }
        self._runner = AsyncRunner(calls, self._counts.emit, self._keeper)

    # --- processing ---------------------------------------------------------------------------

    async def process(
        self,
        fn: Callable[[M], Awaitable[T]] | Callable[[M], T],
        message: M,
        *,
        key: str | Callable[[M], object],
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Outcome[T]:
        """As :meth:`Once.process`. A plain function runs in a thread."""
        self._ready()
        request = self._request(self._policy, found_key(key, message), (message,), {}, scope, type)
        return await self._runner.drive(self._flow(self._policy, request), fn, (message,), {})

    async def process_many(
        self,
        fn: Callable[[M], Awaitable[T]] | Callable[[M], T],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = None,
    ) -> list[Outcome[T]]:
        """As :meth:`Once.process_many`: handlers run one after the other.

        To run many at once, gather :meth:`process` calls: their store calls are coalesced.
        """
        self._ready()
        batch = self._batch(list(messages), key, fallback)
        kept: list[Claim] = []
        try:
            return batch.spread(await self._drive_batch(batch, fn, kept))
        finally:
            for claim in kept:
                self._keeper.unwatch(claim)

    async def _drive_batch(self, batch: Any, fn: Callable[..., Any], kept: list[Claim]) -> Any:
        flow = batch.flow()
        try:
            effect = flow.send(None)
            while True:
                try:
                    if isinstance(effect, CallMany):
                        value = await self._runner.shielded(self._call_many(effect))
                    else:
                        value = await self._do_batch(effect, batch, fn, kept)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return end.value

    async def _do_batch(
        self, effect: BatchEffect, batch: Any, fn: Callable[..., Any], kept: list[Claim]
    ) -> Any:
        if isinstance(effect, RunOne):
            job = batch.job(effect.index)
            return await self._runner.call_handler(effect.effect, fn, job.args, job.kwargs)
        if isinstance(effect, Keep):
            kept.extend(effect.claims)
            return [self._keeper.watch(claim) for claim in effect.claims]
        return await self._runner._other(effect)

    async def _call_many(self, effect: CallMany) -> list[Any]:
        coalescer: AsyncCoalescer[Any, Any] = AsyncCoalescer(getattr(self._store, VERBS[effect.kind]))
        return await coalescer._answer_each(effect.requests)

    def handler(
        self, *, key: KeySpec, fallback: Callable[..., object] | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """As :meth:`Once.handler`. A plain function becomes an async one that runs in a thread."""
        policy = self._override(options)
        find = key_finder(key, fallback) if isinstance(key, str) or fallback else None

        def decorate(fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            @functools.wraps(fn)
            async def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                self._ready()
                found = find(args[0]) if find and args else key_of(key, args, kwargs)
                request = self._request(policy, found, args, kwargs)
                outcome = await self._runner.drive(self._flow(policy, request), fn, args, kwargs)
                return unwrap(outcome, str(found))

            return guarded

        return decorate

    def claim(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> AsyncManualClaim[Any]:
        """By hand: ``async with once.claim("order-17") as claim: if claim.fresh: ...``"""
        self._ready()
        request = self._request(self._policy, literal(key), (), {}, scope, type)
        return AsyncManualClaim(self._runner, self._flow(self._policy, request), key)

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
        mark = Mark(self._id(key, scope), self._policy.window, type)
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
        return [True] * len(marks) if self._policy.window is None else await self._store.mark_seen(marks)

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
        if self._loop is not None:
            await self._keeper.close()
        if self._owns_store:
            await self._store.close()

    async def __aenter__(self) -> AsyncOnce:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _give_back(self, request: ClaimRequest, answer: ClaimAnswer | None) -> None:
        if answer is None or isinstance(answer, Acquired):
            with suppress(StoreError):
                await self._store.release([_unstarted(request)])


class AsyncManualClaim(Generic[T]):
    """As :class:`~onceonly.core.once.ManualClaim`, in an ``async with`` block."""

    def __init__(self, runner: AsyncRunner, flow: Any, key: str) -> None:
        self._runner = runner
        self._flow = flow
        self._key = key
        self._state: Any = None
        self._result: T | None = None
        self.claim: Claim | None = None
        self.fresh = False

    async def __aenter__(self) -> AsyncManualClaim[T]:
        state = await self._runner.advance(self._flow, self._flow.send, None)
        while type(state) is Ask:
            try:
                answer = await _called(state.probe, (self._key,), {})
            except BaseException as error:  # noqa: BLE001 - the flow gives the claim back and re-raises
                state = await self._runner.advance(self._flow, self._flow.throw, error)
            else:
                state = await self._runner.advance(self._flow, self._flow.send, answer)
        self._state = state
        if type(state) is Run:
            self.claim = self._runner.keep(state.claim)
            self.fresh = True
        else:
            self._result = unwrap(state, self._key)
        return self

    @property
    def result(self) -> T | None:
        return self._result

    @property
    def fence(self) -> int | None:
        return self.claim.fence if self.claim else None

    @property
    def attempt(self) -> int:
        return self.claim.attempt if self.claim else 0

    @property
    def lost(self) -> bool:
        return self.claim is not None and self.claim.lost

    async def complete(self, result: T | None = None) -> None:
        """Write *done* now, with this result."""
        if not self.fresh or type(self._state) is not Run:
            msg = f"the claim on {self._key!r} is not open: complete() once, and only if claim.fresh"
            raise ConfigurationError(msg)
        self._result = result
        await self._finish(self._flow.send, result)

    async def _finish(self, step: Callable[[Any], Any], value: object) -> None:
        self._state, flow = None, self._flow
        try:
            self._state = await self._runner.shielded(self._runner.advance(flow, step, value))
        finally:
            self._runner.let_go(self.claim)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if type(self._state) is not Run:
            return
        if error is None:
            await self._finish(self._flow.send, None)
            return
        try:
            await self._finish(self._flow.throw, error)
        except BaseException as raised:
            if raised is not error:
                raise


class AsyncBound:
    """A group inside the caller's transaction. Nothing here commits or rolls back."""

    def __init__(self, once: AsyncOnce, store: AsyncBoundStore) -> None:
        self._once = once
        self._store = store
        self._policy: Policy = replace(once._policy, wait_timeout=0.0, fail_open=False)
        calls: Calls = {
            "claim": self._one(store.claim),
            "complete": self._one(store.complete),
            "release": self._one(store.release),
        }
        self._runner = AsyncRunner(calls, once._counts.emit, None)

    @staticmethod
    def _one(verb: Callable[[Any], Awaitable[list[Any]]]) -> Callable[[Any], Awaitable[Any]]:
        async def ask(request: object) -> object:
            return (await verb([request]))[0]

        return ask

    async def first_time(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> bool:
        """As :meth:`Bound.first_time <onceonly.core.once.Bound.first_time>`."""
        return (await self.first_time_many([key], scope=scope, type=type))[0]

    async def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        marks = self._once._marks([literal(key) for key in keys], scope, type)  # type: ignore[misc]
        return [True] * len(marks) if self._policy.window is None else await self._store.mark_seen(marks)

    async def process(
        self,
        fn: Callable[[M], Awaitable[T]],
        message: M,
        *,
        key: str | Callable[[M], object],
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Outcome[T]:
        """Run ``fn(message)`` and store its result, all in this transaction."""
        once = self._once
        request = once._request(self._policy, found_key(key, message), (message,), {}, scope, type)
        return await self._runner.drive(once._flow(self._policy, request), fn, (message,), {})

    async def complete(self, claim: Claim, result: object = None) -> None:
        """Complete a leased claim in this transaction. ``LeaseLost`` if it is no longer ours: roll back."""
        await self._store.complete([self._once._completion(claim, result)])
