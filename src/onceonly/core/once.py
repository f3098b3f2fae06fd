"""``Once``: the engine for threads. It does what the flows ask for."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

from onceonly.core.batch import BatchEffect, CallMany, Keep, RunOne
from onceonly.core.coalesce import Coalescer, answer_each
from onceonly.core.engine import Engine, KeySpec, _current, found_key, key_finder, literal, unwrap
from onceonly.core.flows import VERBS, Ask, Claim, Effect, Emit, Run, Sleep, first_time
from onceonly.core.renewal import Keeper
from onceonly.errors import ConfigurationError, StoreError
from onceonly.protocols import BoundStore, Clock, Store
from onceonly.settings import Options, Policy
from onceonly.stores import open_store
from onceonly.types import Acquired, ClaimAnswer, ClaimRequest, Completion, Mark, Outcome, Record, Release, Stats

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")

Calls = dict[type, Callable[[Any], Any]]
"""How to ask the store, by the type of the request."""


class Runner:
    """Drives flows: asks the store, calls the handler, sleeps, emits."""

    def __init__(self, calls: Calls, emit: Callable[[Any], None], keeper: Keeper | None) -> None:
        self._calls = calls
        self._emit = emit
        self._keeper = keeper

    def drive(self, flow: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Outcome[Any]:
        """A whole flow, its handler included."""
        claim: Claim | None = None
        state = self.advance(flow, flow.send, None)
        try:
            while type(state) is not Outcome:
                if type(state) is Run:
                    claim = self.keep(state.claim)
                try:
                    value = self.call_handler(state, fn, args, kwargs)
                except BaseException as error:  # noqa: BLE001 - the flow decides, then it goes on
                    state = self.advance(flow, flow.throw, error)
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
                        value = self._other(effect)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return end.value

    def _other(self, effect: Effect) -> None:
        if isinstance(effect, Sleep):
            time.sleep(effect.seconds)
        elif isinstance(effect, Emit):
            self._emit(effect.event)

    def call_handler(self, effect: Run | Ask, fn: Callable[..., T], args: Any, kwargs: Any) -> Any:
        if isinstance(effect, Ask):
            return effect.probe(*args, **kwargs)
        before = _current.set(effect.claim)
        try:
            return fn(*args, **kwargs)
        finally:
            _current.reset(before)

    def keep(self, claim: Claim | None) -> Claim | None:
        if claim is not None and self._keeper is not None:
            self._keeper.watch(claim)
        return claim

    def let_go(self, claim: Claim | None) -> None:
        if claim is not None and self._keeper is not None:
            self._keeper.unwatch(claim)


class Once(Engine):
    """Makes each message take effect once. One per group; safe to share between threads.

    ``once = Once("sqlite:///payments.db", group="billing", window="24h")``
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        group: str | None = None,
        clock: Clock = time.monotonic,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(store, group, options, clock)
        given = self._store_or_url
        self._owns_store = isinstance(given, str)
        self._store: Store = open_store(given) if isinstance(given, str) else given  # type: ignore[assignment]
        self._start()

    def _start(self) -> None:
        store = self._store
        self._keeper = Keeper(store, self._clock, self._counts.emit)
        self._calls: Calls = {
            ClaimRequest: Coalescer(store.claim, give_back=self._give_back).submit,
            Completion: Coalescer(store.complete).submit,
            Release: Coalescer(store.release).submit,
            Mark: Coalescer(store.mark_seen).submit,
        }
        self._runner = Runner(self._calls, self._counts.emit, self._keeper)

    # --- processing ---------------------------------------------------------------------------

    def process(
        self,
        fn: Callable[[M], T],
        message: M,
        *,
        key: str | Callable[[M], object],
        scope: str | None = None,
        type: str | None = None,  # noqa: A002 - the word of the vocabulary
    ) -> Outcome[T]:
        """Run ``fn(message)`` unless it has taken effect already; tell a consumer what came of it.

        Raises what ``fn`` raised, after giving the claim back.
        """
        self._check_process()
        request = self._request(self._policy, found_key(key, message), (message,), {}, scope, type)
        return self._runner.drive(self._flow(self._policy, request), fn, (message,), {})

    def process_many(
        self,
        fn: Callable[[M], T],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = None,
    ) -> list[Outcome[T]]:
        """Run ``fn`` for each message: one round trip to claim them all, one to complete.

        Never raises for a message: its outcome is FAILED with ``.error``.
        """
        self._check_process()
        batch = self._batch(list(messages), key, fallback)
        flow = batch.flow()
        kept: list[Claim] = []
        try:
            effect = flow.send(None)
            while True:
                try:
                    value = self._do_batch(effect, batch, fn, kept)
                except BaseException as error:  # noqa: BLE001 - the flow decides
                    effect = flow.throw(error)
                else:
                    effect = flow.send(value)
        except StopIteration as end:
            return batch.spread(end.value)
        finally:
            for claim in kept:
                self._keeper.unwatch(claim)

    def _do_batch(self, effect: BatchEffect, batch: Any, fn: Callable[..., Any], kept: list[Claim]) -> Any:
        if isinstance(effect, CallMany):
            return answer_each(getattr(self._store, VERBS[effect.kind]), effect.requests)
        if isinstance(effect, RunOne):
            job = batch.job(effect.index)
            return self._runner.call_handler(effect.effect, fn, job.args, job.kwargs)
        if isinstance(effect, Keep):
            kept.extend(effect.claims)
            return [self._keeper.watch(claim) for claim in effect.claims]
        return self._runner._other(effect)

    def handler(
        self, *, key: KeySpec, fallback: Callable[..., object] | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Guard a function: it runs once per key, and further calls return the stored result.

        Raises ``InFlight`` while another worker is at it, and ``Quarantined`` or ``StoredFailure``
        where that is how the record ended.
        """
        policy = self._override(options)
        find = key_finder(key, fallback) if isinstance(key, str) or fallback else None

        def decorate(fn: Callable[P, T]) -> Callable[P, T]:
            if inspect.iscoroutinefunction(fn):
                msg = f"{fn.__qualname__} is async: guard it with AsyncOnce"
                raise ConfigurationError(msg)

            @functools.wraps(fn)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                self._check_process()
                found = find(args[0]) if find and args else key_of(key, args, kwargs)
                request = self._request(policy, found, args, kwargs)
                outcome = self._runner.drive(self._flow(policy, request), fn, args, kwargs)
                return unwrap(outcome, str(found))

            return guarded

        return decorate

    def claim(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> ManualClaim[Any]:
        """By hand: ``with once.claim("order-17") as claim: if claim.fresh: ...``"""
        self._check_process()
        request = self._request(self._policy, literal(key), (), {}, scope, type)
        return ManualClaim(self._runner, self._flow(self._policy, request), key)

    # --- filter mode --------------------------------------------------------------------------

    def first_time(
        self,
        key: str,
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> bool:
        """Mark ``key`` and say whether it was new. Lost if the process dies before handling it."""
        self._check_process()
        if self._policy.window is None:
            return True
        mark = Mark(self._id(key, scope), self._policy.window, type)
        new: bool = self._runner.advance(flow := first_time(self._policy, mark), flow.send, None)
        return new

    def first_time_many(
        self,
        keys: Sequence[str],
        *,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[bool]:
        """As :meth:`first_time`, all in one call. Of two equal keys the first is new."""
        self._check_process()
        marks = self._marks(keys, scope, type)
        return [True] * len(marks) if self._policy.window is None else self._store.mark_seen(marks)

    def seen(self, key: str, *, scope: str | None = None) -> bool:
        """Has it taken effect, or failed for good? Reads only, and promises nothing about the future."""
        record = self.peek(key, scope=scope)
        return record is not None and record.state.done

    # --- inbox --------------------------------------------------------------------------------

    def bind(self, connection: object) -> Bound:
        """The same group inside the caller's own transaction: commits and rolls back with it."""
        self._check_process()
        return Bound(self, self._store.bind(connection))

    # --- operating ----------------------------------------------------------------------------

    def peek(self, key: str, *, scope: str | None = None) -> Record | None:
        """The record as it is, or None."""
        self._check_process()
        return self._store.peek([self._id(key, scope)])[0]

    def forget(self, key: str, *, scope: str | None = None, force: bool = False) -> bool:
        """Remove the record, so that the next delivery runs. A live claim needs ``force``."""
        self._check_process()
        return self._store.forget([self._id(key, scope)], force=force)[0]

    def purge(self) -> int:
        """Remove what has expired, in short steps. Only disk and memory change, never an answer."""
        self._check_process()
        total = 0
        while removed := self._store.purge():
            total += removed
        return total

    def stats(self) -> Stats:
        self._check_process()
        return self._with_counts(self._store.stats())

    def close(self) -> None:
        """Stop renewing; close the store if this engine opened it. Never waits for long."""
        self._keeper.close()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Once:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_back(self, request: ClaimRequest, answer: ClaimAnswer | None) -> None:
        if answer is None or isinstance(answer, Acquired):
            with suppress(StoreError):
                self._store.release([_unstarted(request)])


def _unstarted(request: ClaimRequest) -> Release:
    return Release(request.id, request.token, request.window, started=False)


def key_of(key: KeySpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The key of a guarded call: a function gets what the handler gets."""
    if callable(key):
        return key_finder(lambda call: key(*call[0], **call[1]))((args, kwargs))
    msg = "a key found in the message needs the message as first positional argument"
    raise ConfigurationError(msg)


class ManualClaim(Generic[T]):
    """A claim in a ``with`` block, which takes the handler's place in the flow.

    ``fresh`` is True if the block is to do the work; else ``result`` is what was stored. Leaving the
    block completes with what ``complete(x)`` was given, or with a bare record; an exception gives
    the claim back. What is in flight raises ``InFlight`` on entering, so that it is not taken for done.
    """

    def __init__(self, runner: Runner, flow: Any, key: str) -> None:
        self._runner = runner
        self._flow = flow
        self._key = key
        self._state: Any = None
        self._result: T | None = None
        self.claim: Claim | None = None
        self.fresh = False

    def __enter__(self) -> ManualClaim[T]:
        state = self._runner.advance(self._flow, self._flow.send, None)
        while type(state) is Ask:
            try:
                state = self._runner.advance(self._flow, self._flow.send, state.probe(self._key))
            except BaseException as error:  # noqa: BLE001 - the flow gives the claim back and re-raises
                state = self._runner.advance(self._flow, self._flow.throw, error)
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

    def complete(self, result: T | None = None) -> None:
        """Write *done* now, with this result."""
        if not self.fresh or type(self._state) is not Run:
            msg = f"the claim on {self._key!r} is not open: complete() once, and only if claim.fresh"
            raise ConfigurationError(msg)
        self._result = result
        self._finish(self._flow.send, result)

    def _finish(self, step: Callable[[Any], Any], value: object) -> None:
        try:
            self._state = self._runner.advance(self._flow, step, value)
        except BaseException:
            self._state = None
            raise
        finally:
            self._runner.let_go(self.claim)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if type(self._state) is not Run:
            return
        if error is None:
            self._finish(self._flow.send, None)
            return
        try:
            self._finish(self._flow.throw, error)
        except BaseException as raised:
            if raised is not error:
                raise


class Bound:
    """A group inside the caller's transaction. Nothing here commits or rolls back."""

    def __init__(self, once: Once, store: BoundStore) -> None:
        self._once = once
        self._store = store
        self._policy: Policy = replace(once._policy, wait_timeout=0.0, fail_open=False)
        calls: Calls = {
            "claim": lambda request: store.claim([request])[0],
            "complete": lambda request: store.complete([request])[0],
            "release": lambda request: store.release([request])[0],
        }
        self._runner = Runner(calls, once._counts.emit, None)

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
        marks = self._once._marks([literal(key) for key in keys], scope, type)  # type: ignore[misc]
        return [True] * len(marks) if self._policy.window is None else self._store.mark_seen(marks)

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
        once = self._once
        request = once._request(self._policy, found_key(key, message), (message,), {}, scope, type)
        flow = once._flow(self._policy, request)
        return self._runner.drive(flow, fn, (message,), {})

    def complete(self, claim: Claim, result: object = None) -> None:
        """Complete a leased claim in this transaction. ``LeaseLost`` if it is no longer ours: roll back."""
        self._store.complete([self._once._completion(claim, result)])
