"""The inbox: a group inside the caller's own transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from onceonly.core.effects import Claim
from onceonly.core.engine import Engine
from onceonly.core.finding import found_key
from onceonly.core.flows import first_time_many
from onceonly.core.manual import AsyncManualClaim, ManualClaim
from onceonly.core.runners import (
    AsyncCalls,
    AsyncRunner,
    Calls,
    Runner,
    refuse_async,
    refuse_uncallable,
)
from onceonly.core.terms import windows_of_now
from onceonly.errors import ConfigurationError
from onceonly.protocols import AsyncBoundStore, BoundStore
from onceonly.settings import Policy
from onceonly.types import ClaimRequest, Completion, Marks, Outcome, ReadWindows, Release

M = TypeVar("M")
T = TypeVar("T")


def held(claim: object) -> Claim | None:
    """The claim itself, also where the object of a ``with`` block was given; None where dedup is off."""
    found = getattr(claim, "claim", claim)
    if isinstance(found, Claim):
        return found
    if getattr(claim, "fresh", False):  # window=None
        return None
    msg = "there is nothing to complete: the claim is not fresh"
    raise ConfigurationError(msg)


def _called_here(fn: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    @functools.wraps(fn)
    async def called_here(message: object) -> object:
        value = fn(message)
        return await value if inspect.isawaitable(value) else value

    return called_here


class Bound:
    """A group inside the caller's transaction. Nothing here commits or rolls back."""

    def __init__(self, once: Engine, store: BoundStore) -> None:
        self._once = once
        self._store = store
        self._policy: Policy = replace(once._policy, wait_timeout=0.0, fail_open=False)
        calls: Calls = {
            ReadWindows: lambda request: store.windows([request])[0],
            Marks: store.mark_seen,
            ClaimRequest: lambda request: store.claim([request])[0],
            Completion: lambda request: store.complete([request])[0],
            Release: lambda request: store.release([request])[0],
        }
        self._runner = Runner(calls, once._counts.emit, None, once._clock)

    def first_time(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> bool:
        """Mark ``key`` in this transaction and say whether it was new. A live claim: ``InFlight``."""
        return self.first_time_many([key], scope=scope, type=type)[0]

    def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        flow = first_time_many(self._policy, self._once._marks(keys, scope, type), self._once._clock)
        new: list[bool] = self._runner.advance(flow, flow.send, None)
        return new

    def process(
        self,
        fn: Callable[[M], T],
        message: M,
        *,
        key: str | Callable[[M], object],
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Outcome[T]:
        """Run ``fn(message)`` and store its result, all in this transaction. Raises what ``fn`` raised:
        roll back then."""
        refuse_async(fn)
        once = self._once
        request = once._request(self._policy, found_key(key, message), (message,), {}, scope=scope, kind=type)
        flow = once._flow(self._policy, request)
        return self._runner.drive(flow, fn, (message,), {})

    def complete(self, claim: Claim | ManualClaim[Any], result: object = None) -> None:
        """Complete a leased claim in this transaction. ``LeaseLost`` if it is no longer ours: roll back."""
        if (ours := held(claim)) is not None:
            flow = windows_of_now(self._policy, self._once._clock())
            self._runner.advance(flow, flow.send, None)
            self._store.complete([self._once._completion(ours, result)])
            ours.elsewhere = True


class AsyncBound:
    """A group inside the caller's transaction. Nothing here commits or rolls back."""

    def __init__(self, once: Engine, store: AsyncBoundStore) -> None:
        self._once = once
        self._store = store
        self._policy: Policy = replace(once._policy, wait_timeout=0.0, fail_open=False)
        calls: AsyncCalls = {
            ReadWindows: self._one(store.windows),
            Marks: store.mark_seen,
            ClaimRequest: self._one(store.claim),
            Completion: self._one(store.complete),
            Release: self._one(store.release),
        }
        self._runner = AsyncRunner(calls, once._counts.emit, None, once._clock)

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
        """As :meth:`Bound.first_time`."""
        return (await self.first_time_many([key], scope=scope, type=type))[0]

    async def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        flow = first_time_many(self._policy, self._once._marks(keys, scope, type), self._once._clock)
        new: list[bool] = await self._runner.advance(flow, flow.send, None)
        return new

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
        """Run ``fn(message)`` and store its result, all in this transaction.

        A plain function is called right here, not in a thread: the connection belongs to this one.
        """
        refuse_uncallable(fn)
        once = self._once
        request = once._request(self._policy, found_key(key, message), (message,), {}, scope=scope, kind=type)
        flow = once._flow(self._policy, request)
        return await self._runner.drive(flow, _called_here(fn), (message,), {})

    async def complete(self, claim: Claim | AsyncManualClaim[Any], result: object = None) -> None:
        """Complete a leased claim in this transaction. ``LeaseLost`` if it is no longer ours: roll back."""
        if (ours := held(claim)) is not None:
            flow = windows_of_now(self._policy, self._once._clock())
            await self._runner.advance(flow, flow.send, None)
            await self._store.complete([self._once._completion(ours, result)])
            ours.elsewhere = True
