"""Concurrent single calls become one batch per round trip.

While one call is under way, others queue; the next call takes them all. Alone, a call goes straight
through. The rules: a waiter that goes away never stops the batch; a claim that arrives for nobody is
given back; one bad request fails alone; a request whose fate is unknown is told so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from onceonly.errors import OnceonlyError, StoreUnavailable

Q = TypeVar("Q")
A = TypeVar("A")

MAX_BATCH = 1000

_LOST = "the call was interrupted; whether it took effect is unknown"


class Ticket(Generic[Q, A]):
    """One call of one thread that goes with others."""

    __slots__ = ("bell", "fate", "request", "round")

    def __init__(self, request: Q) -> None:
        self.request = request
        self.fate: dict[str, A | BaseException] = {}  # its answer or _GONE: the first to come stays
        self.bell: SimpleQueue[None] = SimpleQueue()  # "look again"; once too often does no harm
        self.round: list[tuple[Ticket[Q, A], A | BaseException]] = []  # what it leads


# The key of a dict of one entry: ``setdefault`` looks and takes in one step, and whoever was interrupted
# right after can still see who took it. A lock cannot tell.
_ONLY = "only"
_GONE: Any = object()  # the fate of a ticket whose thread was interrupted before an answer came
_INTERRUPTED = StoreUnavailable(_LOST, unknown=True)


class Coalescer(Generic[Q, A]):
    """For threads. The thread that finds nobody at work leads; then a waiting one does.

    A signal handler may raise between any two steps. So there is no lock to leave closed; each step that
    ends a call may be done twice, and is, if an interruption came in between. The seat is the right to
    call. Who waits queues first and tries the seat then; who leaves the seat looks at the queue after.

    Three threads, from above to below::

        a: takes the seat, calls the store with [a]
        b: queues, finds the seat taken, waits for its bell
        c: queues, finds the seat taken, waits for its bell
        a: has its answer, leaves the seat, sees the queue, rings b
        b: takes the seat, calls the store with [b, c], gives c its answer, rings c, leaves the seat
        c: has its answer

    If b is interrupted during its call, c is told that nobody knows what came of it, and asks again.
    If b is interrupted just as a rings, it leaves the queue and rings c, which takes the seat.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Q]], list[A]],
        *,
        give_back: Callable[[Q, A | None], None] | None = None,
    ) -> None:
        self._call = call
        self._give_back = give_back
        self._seat: dict[str, object] = {}
        self._queue: dict[Ticket[Q, A], None] = {}  # in order; a ticket stays until it has its fate

    def submit(self, request: Q) -> A:
        if self._queue:
            return self._share(Ticket(request))
        alone = (request,)
        try:
            try:
                if self._seat.setdefault(_ONLY, alone) is alone:
                    return self._call(alone)[0]
            finally:
                self._free_seat(alone)
        except BaseException as error:
            self._free_seat(alone)
            if not isinstance(error, OnceonlyError):
                self._nobody_waits(request, None)
            raise
        return self._share(Ticket(request))

    def _share(self, own: Ticket[Q, A]) -> A:
        try:
            try:
                return self._answer(own)
            finally:
                self._leave(own)
        except BaseException as error:
            self._leave(own)
            if not isinstance(error, OnceonlyError) and own.fate[_ONLY] is not _GONE:
                self._nobody_waits(own.request, own.fate[_ONLY])
            raise

    def _answer(self, own: Ticket[Q, A]) -> A:
        self._queue[own] = None
        while not own.fate:
            if self._seat.setdefault(_ONLY, own) is own:
                self._lead(own)
            else:
                own.bell.get()
        return _opened(own.fate[_ONLY])

    def _lead(self, own: Ticket[Q, A]) -> None:
        if not own.fate:  # else the answer came just before the seat
            batch = list(self._queue)[:MAX_BATCH]
            own.round = [(ticket, _INTERRUPTED) for ticket in batch]
            answers = answer_each(self._call, [ticket.request for ticket in batch])
            own.round = list(zip(batch, answers, strict=True))
        self._end_round(own)

    def _leave(self, own: Ticket[Q, A]) -> None:
        own.fate.setdefault(_ONLY, _GONE)
        self._queue.pop(own, None)
        self._end_round(own)

    def _end_round(self, leader: Ticket[Q, A]) -> None:
        for ticket, answer in leader.round:
            ticket.fate.setdefault(_ONLY, answer)
            self._queue.pop(ticket, None)
            ticket.bell.put(None)
        self._free_seat(leader)
        for ticket, answer in leader.round:
            if ticket.fate[_ONLY] is _GONE:
                self._nobody_waits(ticket.request, answer)
        leader.round = []

    def _free_seat(self, holder: object) -> None:
        """If it is free then, the first that waits is told, whoever held it: our own turn may have come."""
        if self._seat.get(_ONLY) is holder:
            del self._seat[_ONLY]
        if self._queue and not self._seat:
            for ticket in list(self._queue)[:1]:
                ticket.bell.put(None)

    def _nobody_waits(self, request: Q, answer: A | BaseException | None) -> None:
        if answer is _INTERRUPTED:
            answer = None
        if self._give_back is not None and not isinstance(answer, Exception):
            self._give_back(request, answer)  # type: ignore[arg-type]


def answer_each(call: Callable[[Sequence[Q]], Sequence[A]], requests: list[Q]) -> list[A | BaseException]:
    """Answers or errors, in order. Where the store refuses the batch as such, each is asked alone.

    Any other exception goes on: it may come from a signal handler, and nobody knows what was done.
    """
    try:
        return list(call(requests))
    except StoreUnavailable as error:
        return [error] * len(requests)
    except OnceonlyError as error:
        if len(requests) == 1:
            return [error]
        return [answer_each(call, [request])[0] for request in requests]


def _opened(answer: A | BaseException | None) -> A:
    if isinstance(answer, BaseException):
        raise _own(answer)
    return answer  # type: ignore[return-value]


class Background:
    """Writes that go to their end although the task that wanted them was cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # the event loop itself keeps weak references only

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, patience: float) -> None:
        """Wait for them, and for those they start, but not for ever."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience
        while self._tasks and (left := give_up - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)


class AsyncCoalescer(Generic[Q, A]):
    """For tasks. What is asked in one turn of the loop, or while a call is under way, goes together."""

    def __init__(
        self,
        call: Callable[[Sequence[Q]], Awaitable[list[A]]],
        *,
        give_back: Callable[[list[tuple[Q, A | None]]], Awaitable[None]] | None = None,
        background: Background | None = None,
    ) -> None:
        self._call = call
        self._give_back = give_back
        self._background = background or Background()
        self._queue: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._unwanted: list[tuple[Q, A | None]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, request: Q) -> A:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._queue.append((request, future))
        self._start()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._not_wanted(request, future.result())  # it came just before the cancellation
            raise

    def _start(self) -> None:
        if self._task is None:
            self._task = self._background.start(self._drain())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never runs, and so leaves the others waiting."""
        if self._task is task:
            self._task = None
            if self._queue:
                self._start()

    async def _drain(self) -> None:
        """An event loop that ends cancels this task too, and waits for it: those whose call was cut off
        ask once more, and what was claimed for nobody is given back before it ends."""
        cancelled: asyncio.CancelledError | None = None
        try:
            while self._queue or self._unwanted:
                try:
                    await self._return()
                    await self._round()
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            self._task = None
        if cancelled:
            raise cancelled

    async def _round(self) -> None:
        take = min(len(self._queue), MAX_BATCH)
        batch = [self._queue.popleft() for _ in range(take)]
        batch = [(request, future) for request, future in batch if not future.cancelled()]
        answers: Sequence[A | BaseException] = [StoreUnavailable(_LOST, unknown=True)] * len(batch)
        try:
            answers = await answer_each_async(self._call, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - not a store's own error: nobody knows what was done
            answers = [error] if len(batch) == 1 else [_unknown(error)] * len(batch)
        finally:
            self._deliver(batch, answers)

    def _deliver(
        self, batch: list[tuple[Q, asyncio.Future[A]]], answers: Sequence[A | BaseException]
    ) -> None:
        for (request, future), answer in zip(batch, answers, strict=True):
            failed = isinstance(answer, BaseException)
            if future.cancelled():
                self._not_wanted(request, None if failed else answer)  # type: ignore[arg-type]
            elif failed:
                future.set_exception(_own(answer))  # type: ignore[arg-type]
            else:
                future.set_result(answer)  # type: ignore[arg-type]

    def _not_wanted(self, request: Q, answer: A | None) -> None:
        if self._give_back is not None:
            self._unwanted.append((request, answer))
            self._start()

    async def _return(self) -> None:
        """Give back what nobody waits for any more. Cut off, it is done again."""
        unwanted = self._unwanted[:]
        if unwanted and self._give_back is not None:
            with suppress(Exception):
                await self._give_back(unwanted)
            del self._unwanted[: len(unwanted)]


async def answer_each_async(
    call: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], requests: list[Q]
) -> list[A | BaseException]:
    """As :func:`answer_each`."""
    if not requests:
        return []
    try:
        return list(await call(requests))
    except StoreUnavailable as error:
        return [error] * len(requests)
    except OnceonlyError as error:
        if len(requests) == 1:
            return [error]
        return [(await answer_each_async(call, [request]))[0] for request in requests]


def _unknown(error: Exception) -> StoreUnavailable:
    lost = StoreUnavailable(f"the store raised {type(error).__name__}", unknown=True)
    lost.__cause__ = error
    return lost


def _own(error: BaseException) -> BaseException:
    """One that is shared by a batch: each caller gets its own."""
    if isinstance(error, StoreUnavailable):
        own = copy(error)
        own.__cause__ = error
        return own
    return error
