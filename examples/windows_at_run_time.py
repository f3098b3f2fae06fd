"""Change how long messages are remembered while workers run, without a deployment.

Any mode. A window set in the store wins over the code, for all workers of the group, within two seconds.
Run it: python examples/windows_at_run_time.py
"""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta
from typing import TypedDict

from onceonly import Once


class Event(TypedDict):
    id: str
    type: str


def type_of(event: Event) -> str:
    return event["type"]


def kept(worker: Once, number: int) -> dict[str, str]:
    """Handle one event of each type, and say how long it is remembered."""
    events: list[Event] = [{"id": f"{kind}-{number}", "type": kind} for kind in ("order", "click")]
    return {event["type"]: str(handled(worker, event)) for event in events}


def handled(worker: Once, event: Event) -> timedelta:
    worker.process(lambda _: None, event, key=event["id"])
    record = worker.peek(event["id"])
    if record is None or record.expires_at is None or record.done_at is None:
        raise LookupError(event["id"])
    return timedelta(seconds=round(record.expires_at - record.done_at))


def run(worker: Once, operator: Once) -> None:
    print(kept(worker, 1))  # {'order': '4:00:00', 'click': '0:05:00'}

    operator.set_window("1h")  # for every type, also for those that have a window in code
    operator.set_window("30m", type="click")
    print([(each.type, each.window) for each in operator.windows()])  # [(None, 3600.0), ('click', 1800.0)]
    time.sleep(2.1)  # a worker asks every two seconds
    print(kept(worker, 2))  # {'order': '1:00:00', 'click': '0:30:00'}

    print(worker.clear_window(), worker.clear_window(type="click"))  # True True
    # Who changed it knows it at once; the others follow. What was done before keeps the window it had.
    print(kept(worker, 3))  # {'order': '4:00:00', 'click': '0:05:00'}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/events.db"
        with (
            Once(url, group="events", window="order", windows={"click": "5m"}, type=type_of) as worker,
            Once(url, group="events") as operator,  # in another process, as a rule
        ):
            run(worker, operator)


if __name__ == "__main__":
    main()
