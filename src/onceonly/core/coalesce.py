"""Concurrent single calls become one batch per round trip.

While one call is under way, others queue; the next call takes them all. Alone, a call goes straight
through. The rules: a waiter that goes away never stops the batch; a claim that arrives for nobody is
given back; one bad request fails alone; a request whose fate is unknown is told so.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from onceonly.errors import StoreUnavailable

Q = TypeVar("Q")
A = TypeVar("A")

MAX_BATCH = 1000

_LOST = "the call was interrupted; whether it took effect is unknown"


class Ticket(Generic[Q, A]):
    """One waiting call of one thread."""

    __slots__ = ("abandoned", "answer", "bell", "leads", "request")

    def __init__(self, request: Q) -> None:
        self.request = request
        self.answer: A | BaseException | None = None
        self.leads = False
        self.abandoned = False
        self.bell = threading.Lock()
        self.bell.acquire()


_ALONE: Ticket[Any, Any] = Ticket(None)


class Coalescer(Generic[Q, A]):
    """For threads. The thread that finds nobody at work leads; then a waiting one does."""

    def __init__(
        self,
        call: Callable[[Sequence[Q]], list[A]],
        *,
        give_back: Callable[[Q, A | None], None] | None = None,
    ) -> None:
        self._call = call
        self._give_back = give_back
        self._mutex = threading.Lock()
        self._busy = False
        self._queue: deque[Ticket[Q, A]] = deque()

    def submit(self, request: Q) -> A:
        with self._mutex:
            if self._busy:
                ticket: Ticket[Q, A] = Ticket(request)
                self._queue.append(ticket)
            else:
                self._busy = True
                ticket = _ALONE
        if ticket is not _ALONE:
            self._wait(ticket)
            if ticket.leads:
                self._lead(ticket)
            return _opened(ticket.answer)
        try:
            return self._call((request,))[0]
        except Exception:
            raise
        except BaseException:
            self._nobody_waits(request, None)
            raise
        finally:
            self._hand_over()

    def _wait(self, ticket: Ticket[Q, A]) -> None:
        try:
            ticket.bell.acquire()
        except BaseException:  # KeyboardInterrupt in the main thread
            self._abandon(ticket)
            raise

    def _lead(self, own: Ticket[Q, A]) -> None:
        with self._mutex:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
        answers: list[A | BaseException] = [StoreUnavailable(_LOST, unknown=True)] * len(batch)
        try:
            answers = answer_each(self._call, [ticket.request for ticket in batch])
        except BaseException:
            self._nobody_waits(own.request, None)
            raise
        finally:
            self._deliver(batch, answers)
            self._hand_over()

    def _deliver(self, batch: list[Ticket[Q, A]], answers: Sequence[A | BaseException]) -> None:
        orphans = []
        with self._mutex:
            for ticket, answer in zip(batch, answers, strict=True):
                ticket.answer = answer
                if ticket.abandoned:
                    orphans.append(ticket)
                elif not ticket.leads:
                    ticket.bell.release()
        for ticket in orphans:
            self._nobody_waits(ticket.request, ticket.answer)

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._queue:
                self._busy = False
                return
            leader = self._queue[0]
            leader.leads = True
            leader.bell.release()

    def _abandon(self, ticket: Ticket[Q, A]) -> None:
        with self._mutex:
            queued = ticket in self._queue
            if queued:
                self._queue.remove(ticket)
            ticket.abandoned = True
            answered = ticket.answer is not None
        if ticket.leads:
            self._hand_over()
        elif answered:
            self._nobody_waits(ticket.request, ticket.answer)

    def _nobody_waits(self, request: Q, answer: A | BaseException | None) -> None:
        if self._give_back is not None and not isinstance(answer, Exception):
            self._give_back(request, answer)  # type: ignore[arg-type]


def answer_each(call: Callable[[Sequence[Q]], Sequence[A]], requests: list[Q]) -> list[A | BaseException]:
    """Answers or errors, in order. Where the batch as such is refused, each is asked alone."""
    try:
        return list(call(requests))
    except StoreUnavailable as error:
        return [error] * len(requests)
    except Exception as error:  # noqa: BLE001 - told to the caller whose request it was
        if len(requests) == 1:
            return [error]
        return [answer_each(call, [request])[0] for request in requests]


def _opened(answer: A | BaseException | None) -> A:
    if isinstance(answer, StoreUnavailable):  # shared by a batch: each caller gets its own
        raise StoreUnavailable(str(answer), unknown=answer.unknown) from answer
    if isinstance(answer, BaseException):
        raise answer
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
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)


class AsyncCoalescer(Generic[Q, A]):
    """For tasks. What is asked in one turn of the loop, or while a call is under way, goes together."""

    def __init__(
        self,
        call: Callable[[Sequence[Q]], Awaitable[list[A]]],
        *,
        give_back: Callable[[Q, A | None], Coroutine[Any, Any, None]] | None = None,
        background: Background | None = None,
    ) -> None:
        self._call = call
        self._give_back = give_back
        self._background = background or Background()
        self._queue: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, request: Q) -> A:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._queue.append((request, future))
        if self._task is None:
            self._task = loop.create_task(self._drain())
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._return(request, future.result())  # it came just before the cancellation
            raise

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._round()
        finally:
            self._task = None

    async def _round(self) -> None:
        take = min(len(self._queue), MAX_BATCH)
        batch = [self._queue.popleft() for _ in range(take)]
        batch = [(request, future) for request, future in batch if not future.cancelled()]
        answers: Sequence[A | BaseException] = [StoreUnavailable(_LOST, unknown=True)] * len(batch)
        try:
            answers = await answer_each_async(self._call, [request for request, _ in batch])
        finally:
            self._deliver(batch, answers)

    def _deliver(
        self, batch: list[tuple[Q, asyncio.Future[A]]], answers: Sequence[A | BaseException]
    ) -> None:
        for (request, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, BaseException):
                if not future.cancelled():
                    future.set_exception(_own(answer))
            elif future.cancelled():
                self._return(request, answer)
            else:
                future.set_result(answer)

    def _return(self, request: Q, answer: A) -> None:
        """An answer that nobody waits for any more."""
        if self._give_back is not None:
            self._background.start(self._give_back(request, answer))


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
    except Exception as error:  # noqa: BLE001 - told to the caller whose request it was
        if len(requests) == 1:
            return [error]
        return [(await answer_each_async(call, [request]))[0] for request in requests]


def _own(error: BaseException) -> BaseException:
    if isinstance(error, StoreUnavailable):
        own = StoreUnavailable(str(error), unknown=error.unknown)
        own.__cause__ = error
        return own
    return error
