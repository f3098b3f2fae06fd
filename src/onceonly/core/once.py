"""``Once``: the engine for threads. It does what the flows ask for."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast

from onceonly.core.bound import Bound
from onceonly.core.coalesce import Coalescer
from onceonly.core.engine import CLOSED, PURGE_STEP, Engine, unstarted, unwrap
from onceonly.core.finding import KeySpec, call_key, found_key
from onceonly.core.flows import first_time, first_time_many
from onceonly.core.manual import ManualClaim
from onceonly.core.renewal import Keeper
from onceonly.core.runners import Calls, Runner, refuse_async
from onceonly.core.terms import windows_of_now
from onceonly.errors import StoreError
from onceonly.protocols import Clock, Store
from onceonly.settings import Options, optional_name
from onceonly.stores import open_store
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


class Once(Engine):
    """Makes each message take effect once. One per group; safe to share between threads.

    ``once = Once("sqlite:///payments.db", group="billing", window="24h")``
    """

    _asynchronous = False

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
        if not self._owns_store:
            self._check_store(given)
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
            Marks: store.mark_seen,
            ReadWindows: Coalescer(store.windows).submit,
        }
        self._runner = Runner(self._calls, self._counts.emit, self._keeper, self._clock)

    # --- processing ---------------------------------------------------------------------------

    def process(
        self,
        fn: Callable[[M], T],
        message: M,
        *,
        key: str | Callable[[M], object],
        fallback: Callable[[M], object] | None = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002 - the word of the vocabulary
    ) -> Outcome[T]:
        """Run ``fn(message)`` unless it has taken effect already; tell a consumer what came of it.

        Raises what ``fn`` raised, after giving the claim back.
        """
        self._check_process()
        refuse_async(fn)
        found = found_key(key, message, fallback)
        request = self._request(self._policy, found, (message,), {}, scope=scope, kind=type)
        return self._runner.drive(self._flow(self._policy, request), fn, (message,), {})

    def process_many(
        self,
        fn: Callable[[M], T],
        messages: Iterable[M],
        *,
        key: KeySpec,
        fallback: Callable[[M], object] | None = None,
        scope: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[Outcome[T]]:
        """Run ``fn`` for each message: one round trip to claim them all, one to complete.

        Never raises for a message: its outcome is FAILED with ``.error``.
        """
        self._check_process()
        refuse_async(fn)
        if chosen := list(messages):
            with suppress(StoreError):  # each message's own flow tells what that means for it
                self._runner.advance(flow := windows_of_now(self._policy, self._clock()), flow.send, None)
        batch = self._batch(chosen, key, fallback, scope, type)
        return self._runner.drive_batch(batch, fn, self._store)

    def handler(
        self, *, key: KeySpec, fallback: Callable[..., object] | None = None, **options: Unpack[Options]
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Guard a function: it runs once per key, and further calls return the stored result.

        Functions guarded by one engine share its records: where each of them must see the same message,
        give each its own group.

        Raises ``InFlight`` while another worker is at it, and ``Quarantined`` or ``StoredFailure``
        where that is how the record ended.
        """
        policy = self._override(options)

        def decorate(fn: Callable[P, T]) -> Callable[P, T]:
            refuse_async(fn)
            find = call_key(key, fallback, fn)

            @functools.wraps(fn)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
                self._check_process()
                found = find(args, kwargs)
                request = self._request(policy, found, args, kwargs)
                outcome = self._runner.drive(self._flow(policy, request), fn, args, kwargs)
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
    ) -> ManualClaim[Any]:
        """By hand: ``with once.claim("order-17") as claim: if claim.fresh: ...``"""
        self._check_process()
        request = self._claim_request(key, message, scope, type)
        return ManualClaim(self._runner, self._flow_by_hand(request), key, message)

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
        kind = self._fixed_type(type)
        mark = Mark(self._id(key, scope), self._policy.terms(kind)[0], kind)
        new: bool = self._runner.advance(flow := first_time(self._policy, mark, self._clock), flow.send, None)
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
        flow = first_time_many(self._policy, marks, self._clock)
        new: list[bool] = self._runner.advance(flow, flow.send, None)
        return new

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
        while True:  # until nothing is left but what expires meanwhile
            removed = self._store.purge(limit=PURGE_STEP)
            total += removed
            if removed < PURGE_STEP:
                return total

    def stats(self) -> Stats:
        self._check_process()
        return self._with_counts(self._store.stats())

    def windows(self) -> list[StoredWindow]:
        """The windows set in the store for this group. They win over those in code, for all workers."""
        self._check_process()
        return self._store.windows([ReadWindows(self._group)])[0]

    def set_window(self, window: Duration | None, *, type: str | None = None) -> None:  # noqa: A002
        """Set the window of this group, or of one type, for all workers: they follow within seconds.

        It counts for later completions, and wins over the code. None: no dedup. No record changes.
        """
        self._check_process()
        kind, chosen = optional_name("type", type), window_seconds(window)
        try:
            self._store.set_window(self._group, kind, chosen)
        finally:
            self._overrides.changed()

    def clear_window(self, *, type: str | None = None) -> bool:  # noqa: A002
        """Take a set window back, so that the code's counts again. True if there was one."""
        self._check_process()
        kind = optional_name("type", type)
        try:
            return self._store.clear_window(self._group, kind)
        finally:
            self._overrides.changed()

    def close(self) -> None:
        """Stop renewing; close the store if this engine opened it. Never waits for long."""
        self._process = CLOSED
        self._keeper.close()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_back(self, request: ClaimRequest, answer: ClaimAnswer | None) -> None:
        if answer is None or isinstance(answer, Acquired):
            with suppress(StoreError):
                self._store.release([unstarted(request)])
