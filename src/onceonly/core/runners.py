"""The two runners: they do what flows ask for, one in a thread, one in an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar

from onceonly.core.batch import BatchEffect, CallMany, Keep, RunOne
from onceonly.core.coalesce import Background, answer_each, answer_each_async
from onceonly.core.effects import VERBS, Ask, Claim, Effect, Emit, NotStarted, Run, Sleep, lease_lost
from onceonly.core.engine import Batch, _current
from onceonly.core.renewal import AsyncKeeper, Keeper
from onceonly.errors import ConfigurationError
from onceonly.protocols import AsyncStore, Clock, Store
from onceonly.types import Outcome

T = TypeVar("T")

Calls = dict[type, Callable[[Any], Any]]
"""How to ask the store, by the type of the request."""

AsyncCalls = dict[type, Callable[[Any], Awaitable[Any]]]


class Runner:
    """Drives flows: asks the store, calls the handler, sleeps, emits."""

    def __init__(
        self, calls: Calls, emit: Callable[[Any], None], keeper: Keeper | None, clock: Clock
    ) -> None:
        self._clock = clock
        self._calls = calls
        self._emit = emit
        self._keeper = keeper

    def drive(self, flow: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome[Any]:
        """A whole flow, its handler included."""
        claim: Claim | None = None
        state = self.advance(flow, flow.send, None)
        try:
            while type(state) is not Outcome:
                try:
                    if state.claim is not None:
                        claim = self.keep(state.claim)
                    value = self.call_handler(state, fn, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the flow decides, then it goes on
                    state = self.advance(flow, flow.throw, throwable(error))
                else:
                    state = self.advance(flow, flow.send, value)
        finally:
            self.let_go(claim)
        return state

    def advance(self, flow: Any, step: Callable[[Any], Any], value: object) -> Any:
        """Do what the flow wants until it wants the handler (Run, Ask) or ends (its return value)."""
        calls = self._calls
        try:
            effect = step(value)
            while True:
                kind = type(effect)
                try:
                    if kind in calls:
                        value = calls[kind](effect)
                    elif kind is Run or kind is Ask:
                        return effect
                    else:
                        value = None
                        self._other(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(throwable(error))
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return end.value

    def drive_batch(self, batch: Batch, fn: Callable[..., Any], store: Store) -> list[Outcome[Any]]:
        """All flows of a batch together."""
        flow, kept = batch.flow(), list[Claim]()
        try:
            effect = flow.send(None)
            while True:
                try:
                    value = self._do(effect, batch, fn, store, kept)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(throwable(error))
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return batch.spread(end.value)
        finally:
            for claim in kept:
                self.let_go(claim)

    def _do(
        self, effect: BatchEffect, batch: Batch, fn: Callable[..., Any], store: Store, kept: list[Claim]
    ) -> Any:
        if isinstance(effect, CallMany):
            return answer_each(getattr(store, VERBS[effect.kind]), effect.requests)
        if isinstance(effect, RunOne):
            job = batch.job(effect.number)
            return self.call_handler(effect.effect, fn, job.args, job.kwargs)
        if isinstance(effect, Keep):
            kept.extend(map(self.keep, effect.claims))
        else:
            self._other(effect)
        return None

    def _other(self, effect: Effect | BatchEffect) -> None:
        if isinstance(effect, Sleep):
            time.sleep(effect.seconds)
        elif isinstance(effect, Emit):
            self._emit(effect.event)

    def call_handler(self, effect: Run | Ask, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        check_owned(effect.claim, self._clock)
        if isinstance(effect, Ask):
            return self.ask(effect, args, kwargs)
        before = _current.set(effect.claim)
        try:
            value = fn(*args, **kwargs)
        finally:
            _current.reset(before)
        return value if value is None else ended(fn, value)

    def ask(self, effect: Ask, args: Any, kwargs: Any) -> Any:
        return ended(effect.probe, effect.probe(*args, **kwargs))

    def keep(self, claim: Claim) -> Claim:
        if self._keeper is not None:
            self._keeper.watch(claim)
        return claim

    def let_go(self, claim: Claim | None) -> None:
        if claim is not None and self._keeper is not None:
            self._keeper.unwatch(claim)


_LAZY: set[type] = {GeneratorType, AsyncGeneratorType, map, filter}


def ended(fn: Callable[..., Any], value: T) -> T:
    """What the handler returned. If that has yet to run, nothing was done, and it must not be marked so."""
    kind: type = type(value)
    if kind not in _LAZY and not hasattr(kind, "__await__"):
        return value
    name = getattr(fn, "__qualname__", fn)
    if kind in _LAZY:
        msg = f"{name} returned a {kind.__name__}, which runs only when it is iterated: return a list"
    elif isinstance(value, CoroutineType):
        value.close()
        msg = f"{name} is async: use AsyncOnce, or await in it"
    else:
        msg = f"{name} returned a {kind.__name__} that nobody awaits: use AsyncOnce, or await in it"
    raise ConfigurationError(msg)


def throwable(error: BaseException) -> BaseException:
    """What a handler raised, as it can be thrown into a flow: these two would just end it."""
    if not isinstance(error, (GeneratorExit, StopIteration)):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def check_owned(claim: Claim | None, clock: Clock) -> None:
    """Just before the handler starts: in a batch it may have waited for long, and another may be at it."""
    if claim is not None and (claim.lost or clock() >= claim.deadline):
        raise NotStarted(lease_lost(claim))


def refuse_uncallable(fn: object) -> None:
    if not callable(fn):
        msg = f"the handler must be a function, not {type(fn).__name__}"
        raise ConfigurationError(msg)


def refuse_async(fn: Callable[..., Any]) -> None:
    code = getattr(fn, "__code__", None)
    if code is not None and not code.co_flags & inspect.CO_COROUTINE:
        return  # a plain function, told in a tenth of the time
    refuse_uncallable(fn)
    if inspect.iscoroutinefunction(fn):
        msg = f"{getattr(fn, '__qualname__', fn)} is async: use AsyncOnce"
        raise ConfigurationError(msg)


class AsyncRunner:
    """Drives flows: asks the store, awaits the handler, sleeps, emits."""

    def __init__(
        self,
        calls: AsyncCalls,
        emit: Callable[[Any], None],
        keeper: AsyncKeeper | None,
        clock: Clock,
        background: Background | None = None,
    ) -> None:
        self._calls = calls
        self._emit = emit
        self._keeper = keeper
        self._clock = clock
        self._background = background or Background()

    async def drive(self, flow: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome[Any]:
        """A whole flow, its handler included."""
        claim: Claim | None = None
        late: list[BaseException] = []
        state = await self.advance(flow, flow.send, None)
        try:
            while type(state) is not Outcome:
                try:
                    if state.claim is not None:
                        claim = self.keep(state.claim)
                    value = await self.call_handler(state, fn, args, kwargs, late)
                except BaseException as error:  # noqa: BLE001 - the flow decides, then it goes on
                    state = await self.shielded(flow, flow.throw, throwable(error))
                else:
                    state = await self.shielded(flow, flow.send, value)
        except NotStarted as refused:
            raise refused.reason or refused from None
        except Exception as error:
            if late:  # the task is to end, whatever its handler raised
                raise late[0] from error
            raise
        finally:
            self.let_go(claim)
        if late:
            raise late[0]
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
                        value = None
                        await self._other(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(throwable(error))
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return end.value

    async def shielded(self, flow: Any, step: Callable[[Any], Any], value: object) -> Any:
        """What follows the handler goes to its end, also when this task is cancelled meanwhile."""
        rest = self._background.start(self._advanced(flow, step, value))
        try:
            state, error = await asyncio.shield(rest)
        except asyncio.CancelledError as cancelled:
            if not rest.cancelled():
                self._background.start(self._abandoned(flow, rest, cancelled))
            raise
        if error is not None:
            raise error
        return state

    async def _advanced(
        self, flow: Any, step: Callable[[Any], Any], value: object
    ) -> tuple[Any, BaseException | None]:
        """An event loop itself stops on SystemExit in a task, so it is handed to the one that asked."""
        try:
            return await self.advance(flow, step, value), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the one that asked
            return None, error

    async def _abandoned(self, flow: Any, rest: asyncio.Task[Any], cancelled: BaseException) -> None:
        """If the flow came to want its handler, nobody is there to run it any more."""
        state, _ = await rest
        if type(state) is Run or type(state) is Ask:
            with suppress(NotStarted):
                await self.advance(flow, flow.throw, NotStarted(cancelled))

    async def drive_batch(
        self, batch: Batch, fn: Callable[..., Any], store: AsyncStore
    ) -> list[Outcome[Any]]:
        """All flows of a batch together. When cancelled, a store call under way goes to its end and no
        further handler starts: what was claimed for nothing is given back."""
        flow, kept = batch.flow(), list[Claim]()
        late: list[BaseException] = []
        try:
            effect = flow.send(None)
            while True:
                try:
                    value = await self._do(effect, batch, fn, store, kept, late)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(throwable(error))
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            if late:
                raise late[0] from None
            return batch.spread(end.value)
        finally:
            for claim in kept:
                self.let_go(claim)

    async def _do(  # noqa: PLR0917 - the parts of drive_batch
        self,
        effect: BatchEffect,
        batch: Batch,
        fn: Callable[..., Any],
        store: AsyncStore,
        kept: list[Claim],
        late: list[BaseException],
    ) -> Any:
        if isinstance(effect, CallMany):
            asked = self._background.start(
                answer_each_async(getattr(store, VERBS[effect.kind]), effect.requests)
            )
            await _to_its_end(asked, late)
            return asked.result()
        if isinstance(effect, RunOne):
            job = batch.job(effect.number)
            return await self.call_handler(effect.effect, fn, job.args, job.kwargs, late)
        if isinstance(effect, Keep):
            kept.extend(map(self.keep, effect.claims))
        else:
            await self._other(effect)
        return None

    async def _other(self, effect: Effect | BatchEffect) -> None:
        if isinstance(effect, Sleep):
            await asyncio.sleep(effect.seconds)
        elif isinstance(effect, Emit):
            self._emit(effect.event)

    async def call_handler(
        self,
        effect: Run | Ask,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        late: list[BaseException],
    ) -> Any:
        if late:
            raise NotStarted(late[0])
        check_owned(effect.claim, self._clock)
        if isinstance(effect, Ask):
            return await called(effect.probe, args, kwargs, late, effect.claim)
        before = _current.set(effect.claim)
        try:
            return await called(fn, args, kwargs, late, effect.claim)
        finally:
            _current.reset(before)

    def keep(self, claim: Claim) -> Claim:
        if self._keeper is not None:
            self._keeper.watch(claim)
        return claim

    def let_go(self, claim: Claim | None) -> None:
        if claim is not None and self._keeper is not None:
            self._keeper.unwatch(claim)


async def called(
    fn: Callable[..., Any], args: Any, kwargs: Any, late: list[BaseException], claim: Claim | None
) -> Any:
    """Await an async function; run a plain one in a thread, so that leases are renewed meanwhile.

    A thread cannot be cancelled: while it runs the claim must be kept, so a cancellation is put aside
    in ``late`` until it has ended.
    """
    if inspect.iscoroutinefunction(fn):
        return ended(fn, await fn(*args, **kwargs))
    run = functools.partial(contextvars.copy_context().run, _in_thread, fn, args, kwargs)
    thread = asyncio.get_running_loop().run_in_executor(None, run)
    if claim is not None:
        claim.threaded = True
    await _to_its_end(thread, late)
    if claim is not None:
        claim.threaded = False
    value = thread.result()
    if not inspect.isawaitable(value):
        return ended(fn, value)
    if late and isinstance(value, Coroutine):
        value.close()
        raise late.pop()
    return ended(fn, await value)


def _in_thread(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:  # a future cannot hold it: who waits would wait for ever
        raise throwable(error) from error


async def _to_its_end(future: asyncio.Future[Any], late: list[BaseException]) -> None:
    """Wait, however often this task is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            late.append(error)
