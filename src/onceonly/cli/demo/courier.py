"""The broker of the demo: delivers at least once, to worker processes that die."""

from __future__ import annotations

import heapq
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from onceonly.cli.demo.consumers import Consumer
from onceonly.cli.demo.plan import Plan, Step
from onceonly.cli.signals import NUMBERS

_FORK = multiprocessing.get_context("fork")  # quick to start again; the parent has no threads
_SHORTEST_DELAY = 0.02
_MOST_ERRORS = 20  # of one message, before we call it a defect


class DemoFailed(Exception):
    """The demo itself could not go on."""


@dataclass(slots=True, eq=False)
class _Worker:
    process: ForkProcess
    pipe: Connection
    message: str | None = None


class Courier:
    """Hands out ``plan.order`` until every copy is acknowledged; delivers again what was not."""

    def __init__(
        self,
        plan: Plan,
        consumer: Consumer,
        workers: int,
        acked: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self.delivered = 0
        self._plan = plan
        self._consumer = consumer
        self._size = workers
        self._on_ack = acked
        self._check = check  # raises if the demo is to end
        self._left = plan.copies
        self._ready = deque(plan.order)
        self._later: list[tuple[float, str]] = []
        self._slow = {p.id for p in plan.payments.values() if p.slow}  # not yet delivered
        self._awaiting_copy: str | None = None  # a slow one under way
        self._errors: Counter[str] = Counter()
        self._workers: list[_Worker] = []

    def run(self, seconds: float) -> None:
        """Deliver everything, or raise :class:`DemoFailed` after ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            for _ in range(self._size):
                self._start()
            while self._left:
                self._check()
                if time.monotonic() > deadline:
                    msg = (
                        f"{self._consumer.name}: {self._left} deliveries not acknowledged in {seconds:.0f} s"
                    )
                    raise DemoFailed(msg)
                self._hand_out()
                self._collect()
        finally:
            self._stop()

    # --- deliveries ---------------------------------------------------------------------------

    def _hand_out(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[1])
        self._send_copy()
        idle = [worker for worker in self._workers if worker.message is None]
        while self._ready and len(idle) > self._kept_free():
            message = self._ready.popleft()
            if message in self._slow and self._awaiting_copy:
                self._again(message, _SHORTEST_DELAY)  # one at a time
            else:
                self._deliver(idle.pop(), message)

    def _kept_free(self) -> int:
        """One worker for the copy of a slow message: the others may soon wait for the slow one's locks."""
        return 1 if self._awaiting_copy or self._ready[0] in self._slow else 0

    def _send_copy(self) -> None:
        """The slow message again: once its run is past the lease, or is over without."""
        message = self._awaiting_copy
        if message is None:
            return
        is_running = any(worker.message == message for worker in self._workers)
        if not is_running or self._consumer.faults.is_past_lease(message):
            self._awaiting_copy = None
            self._ready.appendleft(message)

    def _deliver(self, worker: _Worker, message: str) -> None:
        worker.message = message
        self.delivered += 1
        if message in self._slow:
            self._slow.discard(message)
            self._awaiting_copy = message
        with suppress(BrokenPipeError):  # it is dead: the end of its pipe tells us next
            worker.pipe.send(message)

    def _again(self, message: str, delay: float) -> None:
        if delay <= 0:
            self._ready.appendleft(message)
        else:
            heapq.heappush(self._later, (time.monotonic() + max(delay, _SHORTEST_DELAY), message))

    def _collect(self) -> None:
        pause = _SHORTEST_DELAY if self._awaiting_copy else 0.2
        if self._later:
            pause = min(pause, max(0.0, self._later[0][0] - time.monotonic()))
        readable = wait([worker.pipe for worker in self._workers], pause)
        for worker in [w for w in self._workers if w.pipe in readable]:
            try:
                answer = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._replace(worker)
            else:
                self._answered(worker, answer)

    def _answered(self, worker: _Worker, answer: float | str | None) -> None:
        message, worker.message = worker.message, None
        if message is None:
            return
        if answer is None:
            self._left -= 1
            self._on_ack()
        elif isinstance(answer, str):
            self._errors[message] += 1
            if self._errors[message] > _MOST_ERRORS:
                msg = f"{self._consumer.name}: {message} failed {_MOST_ERRORS} times: {answer}"
                raise DemoFailed(msg)
            self._again(message, _SHORTEST_DELAY)
        else:
            self._again(message, max(answer, _SHORTEST_DELAY))

    # --- workers ------------------------------------------------------------------------------

    def _start(self) -> None:
        ours, theirs = _FORK.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = _FORK.Process(
            target=_work, args=(self._consumer, self._plan, theirs, inherited), daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _replace(self, worker: _Worker) -> None:
        """A worker died: what it had is delivered again, at once or late, as the plan says."""
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        if worker.process.exitcode != -signal.SIGKILL:
            msg = f"{self._consumer.name}: a worker ended with {worker.process.exitcode}, not by our kill"
            raise DemoFailed(msg)
        if worker.message is not None:
            kill = self._plan.kills.get(worker.message)
            self._again(worker.message, kill.redelivery if kill else 0.0)
        self._start()

    def _stop(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers.clear()


def _work(consumer: Consumer, plan: Plan, pipe: Connection, inherited: list[Connection]) -> None:
    """A worker: one message at a time, until the courier hangs up."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches us too, and the courier is the one to end us
    for other in inherited:
        other.close()  # or our own copies would keep the pipes open after the courier's end
    for name in [name for name in os.environ if name.startswith("ONCEONLY_")]:
        del os.environ[name]  # the demo shows the defaults
    consumer.connect()
    with suppress(EOFError, ConnectionError):  # the courier has hung up
        while True:
            message: str = pipe.recv()
            pipe.send(_answer(consumer, plan, message))


def _answer(consumer: Consumer, plan: Plan, message: str) -> float | str | None:
    """None to acknowledge, seconds to wait, or what went wrong."""
    payment = plan.payments[message]
    consumer.faults.reach(message, Step.RECEIVED)
    if payment.slow:
        consumer.faults.received(message)
    try:
        return consumer.handle(payment)
    except Exception as error:  # noqa: BLE001 - the courier counts them and decides
        consumer.faults.note(message, repr(error))
        return repr(error)
