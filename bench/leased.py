"""The full leased cycle: claim, handler, complete, heartbeat armed, through the public API."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

from exactly_once import Store
from exactly_once import once as peer

from bench.core import Case, Rates, Ratio, sqlite_like_ours, sqlite_url
from onceonly import AsyncOnce, Once

BATCH = 500
TASKS = 100
PEER_LEASE = 30

OURS_MEMORY = "memory: onceonly process"
MANY_MEMORY = f"memory: onceonly process_many, {BATCH} at a time"
PEER_MEMORY = "memory: exactly-once, no lease"
LEASED_MEMORY = "memory: exactly-once, leased"
OURS_SQLITE = "sqlite: onceonly process"
MANY_SQLITE = f"sqlite: onceonly process_many, {BATCH} at a time"
PEER_SQLITE = "sqlite: exactly-once, no lease"
LEASED_SQLITE = "sqlite: exactly-once, leased"
BARE_SQLITE = "sqlite: two bare statements per message"
OURS_ASYNC = f"sqlite: AsyncOnce process, {TASKS} tasks"
PEER_ASYNC = f"sqlite: exactly-once async, no lease, {TASKS} tasks"

RATIOS = (
    Ratio("memory: process / exactly-once without lease", OURS_MEMORY, PEER_MEMORY),
    Ratio("memory: process / exactly-once with lease", OURS_MEMORY, LEASED_MEMORY),
    Ratio("memory: process_many / exactly-once without lease", MANY_MEMORY, PEER_MEMORY),
    Ratio("sqlite: process / exactly-once without lease", OURS_SQLITE, PEER_SQLITE),
    Ratio("sqlite: process / exactly-once with lease", OURS_SQLITE, LEASED_SQLITE),
    Ratio("sqlite: process / two bare statements", OURS_SQLITE, BARE_SQLITE),
    Ratio("sqlite: process_many / exactly-once without lease", MANY_SQLITE, PEER_SQLITE),
    Ratio("sqlite: 100 tasks / exactly-once async without lease", OURS_ASYNC, PEER_ASYNC),
    Ratio("sqlite: 100 tasks / process, one at a time", OURS_ASYNC, OURS_SQLITE),
)

NOTES = (
    "onceonly always holds a lease that is renewed while the handler runs; one keeper serves them all.",
    f"exactly-once, leased: lease_ttl={PEER_LEASE}, which starts a thread per message.",
    "exactly-once, no lease: its default and fastest way; a dead worker's message waits for an operator.",
    "process_many and AsyncOnce share store calls between messages; exactly-once has no batch.",
    "Two bare statements: INSERT and UPDATE of ready-made ids, each its own transaction: what SQLite takes.",
    "Both SQLite stores: WAL, synchronous=NORMAL, a new file each round.",
    "onceonly: pages of 2 KB, checkpoint after 64 MB of log. exactly-once: SQLite's defaults, 4 KB and 4 MB.",
)


def cases(scale: int) -> list[Case]:
    """``scale`` multiplies the number of messages."""
    few, some, many = 400 * scale, 1000 * scale, 4000 * scale
    return [
        Case(OURS_MEMORY, lambda _: _process(OURS_MEMORY, "memory://", many)),
        Case(PEER_MEMORY, lambda _: _peer(PEER_MEMORY, Store.memory(), many, None)),
        Case(LEASED_MEMORY, lambda _: _peer(LEASED_MEMORY, Store.memory(), few, PEER_LEASE)),
        Case(MANY_MEMORY, lambda _: _process_many(MANY_MEMORY, "memory://", many)),
        Case(OURS_SQLITE, lambda at: _process(OURS_SQLITE, sqlite_url(at), some)),
        Case(PEER_SQLITE, lambda at: _peer(PEER_SQLITE, _peer_file(at), some, None)),
        Case(BARE_SQLITE, lambda at: _bare(at, some)),
        Case(LEASED_SQLITE, lambda at: _peer(LEASED_SQLITE, _peer_file(at), few, PEER_LEASE)),
        Case(MANY_SQLITE, lambda at: _process_many(MANY_SQLITE, sqlite_url(at), many)),
        Case(OURS_ASYNC, lambda at: asyncio.run(_gathered(OURS_ASYNC, sqlite_url(at), many))),
        Case(PEER_ASYNC, lambda at: asyncio.run(_peer_gathered(PEER_ASYNC, _peer_file(at), few))),
    ]


def handler(message: str) -> None:
    """Takes the message and returns None, so that only the protection is measured."""


async def async_handler(message: str) -> None:
    """As :func:`handler`."""


def run_one_by_one(once: Once, messages: Sequence[str]) -> None:
    for message in messages:
        once.process(handler, message, key=message)


def messages_of(count: int) -> list[str]:
    return [f"order-{number}" for number in range(count)]


def _process(name: str, url: str, count: int) -> Rates:
    messages = messages_of(count)
    with Once(url, group="bench") as once:
        start = time.perf_counter()
        run_one_by_one(once, messages)
        return {name: count / (time.perf_counter() - start)}


def _process_many(name: str, url: str, count: int) -> Rates:
    messages = messages_of(count)
    with Once(url, group="bench") as once:
        start = time.perf_counter()
        for first in range(0, count, BATCH):
            once.process_many(handler, messages[first : first + BATCH], key=str)
        return {name: count / (time.perf_counter() - start)}


def _peer(name: str, store: Store, count: int, lease: float | None) -> Rates:
    messages = messages_of(count)
    guarded = peer(store, key=lambda message: message, lease_ttl=lease)(handler)
    start = time.perf_counter()
    for message in messages:
        guarded(message)
    took = time.perf_counter() - start
    store.close()
    return {name: count / took}


def _bare(directory: Path, count: int) -> Rates:
    connection = sqlite_like_ours(directory)
    connection.isolation_level = None
    connection.execute(
        "CREATE TABLE bare (id BLOB PRIMARY KEY, state INTEGER, until REAL, token BLOB, key TEXT) "
        "WITHOUT ROWID"
    )
    ids = [random.randbytes(16) for _ in range(count)]  # noqa: S311 - just spread out, as digests are
    execute = connection.cursor().execute
    start = time.perf_counter()
    for one in ids:
        execute(
            "INSERT INTO bare VALUES (?, 0, ?, ?, ?) ON CONFLICT DO NOTHING", (one, start, one, "order-17")
        )
        execute("UPDATE bare SET state = 2, until = ? WHERE id = ? AND token = ?", (start, one, one))
    took = time.perf_counter() - start
    connection.close()
    return {BARE_SQLITE: count / took}


def _peer_file(directory: Path) -> Store:
    return Store.sqlite(str(directory / "peer.db"))


async def _gathered(name: str, url: str, count: int) -> Rates:
    handle: Callable[[str], Awaitable[None]] = async_handler
    async with AsyncOnce(url, group="bench") as once:

        async def work(messages: Sequence[str]) -> None:
            for message in messages:
                await once.process(handle, message, key=message)

        return {name: await _rate(work, count)}


async def _peer_gathered(name: str, store: Store, count: int) -> Rates:
    guarded = peer(store, key=lambda message: message)(async_handler)

    async def work(messages: Sequence[str]) -> None:
        for message in messages:
            await guarded(message)

    rate = await _rate(work, count)
    store.close()
    return {name: rate}


async def _rate(work: Callable[[Sequence[str]], Coroutine[None, None, None]], count: int) -> float:
    messages = messages_of(count)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(TASKS):
            tasks.create_task(work(messages[number::TASKS]))
    return count / (time.perf_counter() - start)
