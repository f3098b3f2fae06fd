"""A consumer loop on a queue that delivers at least once: what to do with each delivery, and how to stop.

Leased mode. A poison message is tried three times, then quarantined, dead-lettered and acknowledged.
Run it: python examples/consumer_loop.py
"""

from __future__ import annotations

import logging
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass

from onceonly import Once, Verdict

RETRY_DELAY = 0.02  # seconds, so that the example is short

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Delivery:
    order: str
    address: str | None
    visible_at: float = 0.0


class Queue:
    """Stands in for a broker: what is not acknowledged is delivered again."""

    def __init__(self, *deliveries: Delivery) -> None:
        self._deliveries = list(deliveries)
        self.dead_letters: list[str] = []

    def receive(self) -> Delivery | None:
        if not self._deliveries:
            signal.raise_signal(signal.SIGTERM)  # the end of this example; else a deployment sends it
        now = time.monotonic()
        for delivery in self._deliveries:
            if delivery.visible_at <= now:
                delivery.visible_at = now + 30.0
                return delivery
        time.sleep(0.005)
        return None

    def ack(self, delivery: Delivery) -> None:
        self._deliveries.remove(delivery)

    def nack(self, delivery: Delivery, *, delay: float) -> None:
        delivery.visible_at = time.monotonic() + delay


class Consumer:
    def __init__(self, once: Once, queue: Queue) -> None:
        self.once, self.queue = once, queue
        self.tries = Counter[str]()
        self.stopped_by: int | None = None

    def stop(self, number: int, _: object) -> None:
        """Only noted: the message in hand is finished and acknowledged first."""
        self.stopped_by = number

    def run(self) -> None:
        while self.stopped_by is None:
            if (delivery := self.queue.receive()) is not None:
                self.settle(delivery)

    def settle(self, delivery: Delivery) -> None:
        try:
            outcome = self.once.process(self.ship, delivery, key=delivery.order)
        except Exception:  # the handler raised, or the store cannot be reached
            log.info("order %s is to be delivered again", delivery.order, exc_info=True)
            self.queue.nack(delivery, delay=RETRY_DELAY)
            return
        if outcome.verdict is Verdict.QUARANTINED:  # put it away first, then acknowledge
            self.queue.dead_letters.append(delivery.order)
            self.queue.ack(delivery)
        elif outcome.ack:  # processed now, or a duplicate of what is done
            self.queue.ack(delivery)
        else:  # another worker is at it
            self.queue.nack(delivery, delay=outcome.retry_after)

    def ship(self, delivery: Delivery) -> None:
        self.tries[delivery.order] += 1
        if delivery.address is None:
            raise ValueError("no address")


def main() -> None:
    twice = Delivery("o-1", "Ann"), Delivery("o-1", "Ann")
    queue = Queue(*twice, Delivery("o-2", None), Delivery("o-3", "Eve"))
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/orders.db"
        with Once(url, group="shipping", window="order", max_attempts=3, retry_delay=RETRY_DELAY) as once:
            consumer = Consumer(once, queue)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, consumer.stop)
            consumer.run()
    print("tries:", sorted(consumer.tries.items()))  # tries: [('o-1', 1), ('o-2', 3), ('o-3', 1)]
    print("dead letters:", queue.dead_letters)  # dead letters: ['o-2']
    print("stopped by signal", consumer.stopped_by)  # stopped by signal 15


if __name__ == "__main__":
    main()
