"""Where the textbook and shipped libraries lose or double messages, beside onceonly in the same scenario.

One test per row of PITFALLS.md. Rows 1 to 20 are its first table; its second table, "in shipped
libraries", goes on from 21 to 45. Each test first shows the naive code losing or doubling, so that a
scenario which proves nothing fails here.

Left out, because what they are about is not on memory or SQLite:

- 4: a cache in front of an authority (tiers)
- 6: a connection per call costs speed, not messages (bench)
- 10: unique keys across partitions (PostgreSQL)
- 14, 15: Bloom filters (filters and tiers)
- 18: eviction (Redis)
- 37, 38: the outbox and its relay; what 16 says of keys is shown here with the producer's own table
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
import sqlite3
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    InvalidKey,
    LeaseLost,
    NotRecorded,
    Once,
    PayloadMismatch,
    State,
    StoreUnavailable,
    Verdict,
    content_key,
    current_claim,
    namespaced,
    near_duplicate,
    uuid7_key,
)
from onceonly.stores.memory import MemoryStore
from onceonly.stores.sqlite import SqliteStore
from onceonly.stores.sqlite_plans import Plans
from onceonly.testing import FlakyStore, ManualClock
from onceonly.types import Acquired, Busy, ClaimRequest, Completion, Mark, RecordId, Renewal

LEASE, WINDOW, DAY = 30.0, 600.0, 86400.0
KEY = RecordId("group", "", "key")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["onceonly", "pytest"])


class World:
    """A store whose time moves when told to, engines on it, and the effects that happened."""

    def __init__(self, store: Any, clock: ManualClock, stack: ExitStack) -> None:
        self.store = store
        self.clock = clock
        self.effects: list[Any] = []
        self._stack = stack

    def once(self, store: Any = None, group: str = "group", **options: Any) -> Once:
        settings: Any = {"lease": LEASE, "window": WINDOW, **options}
        return self._stack.enter_context(Once(store or self.store, group=group, **settings))

    def effect(self, message: Any) -> Any:
        self.effects.append(message)
        return message


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    store: Any = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else SqliteStore(tmp_path / "world.db", clock=clock)
    )
    with ExitStack() as stack, closing(store):
        yield World(store, clock, stack)


def fail(message: object) -> None:
    raise ValueError("failed")


# --- processes that are killed ----------------------------------------------------------------


def append(ledger: Path, text: object) -> None:
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def die(message: object = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deliver_to_a_worker_that_dies(worker: Callable[..., None], *args: Any) -> None:
    process = PROCESSES.Process(target=worker, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def table(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("CREATE TABLE IF NOT EXISTS seen (key PRIMARY KEY)")
    connection.execute("CREATE TABLE IF NOT EXISTS effects (key)")
    return connection


def insert(connection: sqlite3.Connection) -> bool:
    return connection.execute("INSERT OR IGNORE INTO seen VALUES ('key')").rowcount == 1


def later(path: Path) -> SqliteStore:
    """The store as it is once the leases of dead workers are over."""
    return SqliteStore(path, clock=lambda: time.time() + LEASE)


# --- rows 1 to 20: in the seed documents ------------------------------------------------------


def _mark_first(path: Path, effect: Callable[[object], None]) -> None:
    with closing(table(path)) as connection:
        with connection:
            new = insert(connection)
        if new:
            effect("key")


def _claim_first(path: Path, effect: Callable[[object], None]) -> None:
    Once(SqliteStore(path), group="group", lease=LEASE).process(effect, "message", key="key")


def test_row_01_a_crash_after_the_mark_loses_the_message(tmp_path):
    effects: list[object] = []
    deliver_to_a_worker_that_dies(_mark_first, tmp_path / "naive.db", die)
    _mark_first(tmp_path / "naive.db", effects.append)
    assert effects == [], "the redelivery is taken for a duplicate: lost"

    deliver_to_a_worker_that_dies(_claim_first, tmp_path / "ours.db", die)
    with closing(later(tmp_path / "ours.db")) as store, Once(store, group="group", lease=LEASE) as once:
        assert once.process(effects.append, "message", key="key").verdict is Verdict.PROCESSED
    assert effects == ["message"]


class OneDeadline:
    """``SET NX EX ttl``: one time to live for "processing" and "processed"."""

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        self.ttl, self.clock = ttl, clock
        self.until: dict[str, float] = {}

    def take(self, key: str) -> bool:
        if self.until.get(key, 0.0) > self.clock():
            return False
        self.until[key] = self.clock() + self.ttl
        return True


def test_row_02_one_deadline_is_too_short_for_a_slow_handler():
    together: list[str] = []

    def deliver_again_after(seconds: float, again: Callable[[], Any]) -> Any:
        time.sleep(seconds)
        return again()

    naive = OneDeadline(0.3, time.monotonic)
    assert naive.take("key")
    deliver_again_after(0.4, lambda: together.append("second run") if naive.take("key") else None)
    assert together == ["second run"], "two run at once"

    with Once("memory://", group="group", lease=1.2) as once:

        def slow(message: str) -> Any:
            return deliver_again_after(1.5, lambda: once.process(together.append, message, key="key").verdict)

        assert once.process(slow, "message", key="key").result == Verdict.IN_FLIGHT
    assert together == ["second run"]


def test_row_02_one_deadline_is_too_long_for_a_handler_that_dies(world):
    naive = OneDeadline(WINDOW, world.clock)
    assert naive.take("key")
    world.clock.advance(LEASE)
    assert not naive.take("key"), "blocked for the whole window"

    world.store.claim([ClaimRequest(KEY, b"dead", LEASE, WINDOW)])
    once = world.once()
    assert once.process(world.effect, "message", key="key").verdict is Verdict.IN_FLIGHT
    world.clock.advance(LEASE)
    assert once.process(world.effect, "message", key="key").verdict is Verdict.PROCESSED


def test_row_03_a_late_failure_does_not_free_the_new_owners_claim(world):
    naive = OneDeadline(LEASE, world.clock)
    assert naive.take("key")
    world.clock.advance(LEASE)
    assert naive.take("key")  # a second worker takes over
    naive.until.pop("key")  # the first one fails: except: r.delete(key)
    assert naive.take("key"), "a third one runs beside the second"

    first, second, third = world.once(), world.once(), world.once()
    with pytest.raises(ValueError, match="late"), first.claim("key"):  # noqa: PT012
        world.clock.advance(LEASE)
        running = second.claim("key").__enter__()
        raise ValueError("late")
    assert third.process(world.effect, "message", key="key").verdict is Verdict.IN_FLIGHT
    running.complete("second")
    assert third.process(world.effect, "message", key="key").result == "second"
    assert world.effects == []


def test_row_05_an_expired_record_is_new_whether_or_not_cleanup_ran(tmp_path):
    clock = ManualClock()
    with closing(sqlite3.connect(":memory:")) as naive:
        naive.execute("CREATE TABLE seen (key PRIMARY KEY, expires)")

        def is_duplicate() -> bool:
            found = naive.execute("SELECT 1 FROM seen WHERE key = 'key' AND expires > ?", (clock(),))
            return found.fetchone() is not None

        def mark_processed() -> bool:
            row = (clock() + WINDOW,)
            return naive.execute("INSERT OR IGNORE INTO seen VALUES ('key', ?)", row).rowcount == 1

        assert mark_processed()
        clock.advance(WINDOW)
        assert (is_duplicate(), mark_processed()) == (False, False), "new, yet dropped as a duplicate"

    store = SqliteStore(tmp_path / "ours.db", clock=clock)
    with closing(store), Once(store, group="group", window=WINDOW) as once:
        assert once.first_time("key")
        clock.advance(WINDOW)
        assert (once.seen("key"), store.stats().expired) == (False, 1)
        assert once.first_time("key")


def test_row_07_keys_with_a_service_prefix_fit(world):
    key = namespaced("billing", uuid7_key())
    with pytest.raises(ValueError, match="badly formed"):
        uuid.UUID(key)  # message_id UUID

    once = world.once()
    assert [once.first_time(key), once.first_time(key)] == [True, False]
    assert once.first_time(namespaced("shipping", key.partition(":")[2]))


def _mark_in_the_transaction(path: Path, effect: Callable[[object], None]) -> None:
    with closing(table(path)) as connection, Once(f"sqlite:///{path}", group="group") as once, connection:
        if once.bind(connection).first_time("key"):
            effect("key")
            connection.execute("INSERT INTO effects VALUES ('key')")


def test_row_08_the_mark_commits_with_the_effect_and_not_before(tmp_path):
    effects: list[object] = []
    deliver_to_a_worker_that_dies(_mark_first, tmp_path / "naive.db", die)
    _mark_first(tmp_path / "naive.db", effects.append)
    assert effects == [], "the insert was committed, the effect never came: lost"

    ours = tmp_path / "ours.db"
    deliver_to_a_worker_that_dies(_mark_in_the_transaction, ours, die)
    for _ in range(2):
        _mark_in_the_transaction(ours, effects.append)
    with closing(table(ours)) as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)


def test_row_09_the_claim_comes_before_the_handler(world):
    results: dict[str, Any] = {}

    def naive(handler: Callable[[], Any]) -> Any:
        if "key" not in results:  # SELECT result
            results["key"] = handler()  # handle, INSERT
        return results["key"]

    def slow(deliver_again: Callable[[], Any]) -> Any:
        again = deliver_again()  # the duplicate arrives while this one runs
        world.effect("effect")
        return again

    naive(lambda: slow(lambda: naive(lambda: world.effect("effect"))))
    assert len(world.effects) == 2, "both run"

    world.effects.clear()
    once = world.once()
    first = once.process(
        lambda _: slow(lambda: once.process(world.effect, "message", key="key").verdict), 1, key="key"
    )
    assert first.result == Verdict.IN_FLIGHT
    assert once.process(world.effect, "message", key="key").verdict is Verdict.DUPLICATE
    assert len(world.effects) == 1


def test_row_11_equal_events_on_either_side_of_a_bucket_edge_are_one(world):
    event = {"user": "u1", "action": "click"}
    seen: set[str] = set()

    def naive(at: float) -> bool:
        fingerprint = f"{event['user']}:{event['action']}:{int(at // 5)}"
        new = fingerprint not in seen
        seen.add(fingerprint)
        return new

    assert [naive(104.0), naive(106.0)] == [True, True], "two seconds apart, and both pass"

    once, same = world.once(window=5.0, lease=1.0), near_duplicate(fields=["user", "action"])
    answers = []
    for seconds in (0.0, 2.0, 2.9, 0.1):  # at 0, 2, 4.9 and 5 seconds after the first
        world.clock.advance(seconds)
        answers.append(once.first_time(same(event)))
    assert answers == [True, False, False, True]


def test_row_12_fields_are_not_joined(world):
    one, other = {"account": "a:b", "item": "c"}, {"account": "a", "item": "b:c"}
    assert ":".join(one.values()) == ":".join(other.values()), "the second order is lost"

    once, by_fields = world.once(), content_key(fields=["account", "item"])
    for order in (one, other, one):
        once.process(world.effect, order, key=by_fields)
    assert world.effects == [one, other]


def test_row_13_the_same_event_from_another_language_has_the_same_key(world):
    from_python, from_javascript = '{"sum": 10.0, "id": "\\u00e9"}', '{"id": "é", "sum": 10}'
    texts = [json.dumps(json.loads(text), sort_keys=True) for text in (from_python, from_javascript)]
    assert len(set(texts)) == 2, "one event, two identities: doubled"

    once = world.once()
    for text in (from_python, from_javascript):
        once.process(world.effect, json.loads(text), key=content_key())
    assert len(world.effects) == 1
    with pytest.raises(InvalidKey, match="sum"):  # JavaScript would round it to another order's sum
        once.process(world.effect, {"sum": 2**53 + 1}, key=content_key())


def test_row_16_the_key_is_made_once_and_stored_before_the_first_send(world):
    def send_and_crash(key: str) -> None:
        world.once().process(world.effect, "order", key=key)

    for _ in range(2):  # the producer did not see the answer, and sends again
        send_and_crash(str(uuid.uuid4()))
    assert len(world.effects) == 2, "an id per send: doubled"

    world.effects.clear()
    with closing(sqlite3.connect(":memory:")) as producer:
        producer.execute("CREATE TABLE outgoing (key)")
        producer.execute("INSERT INTO outgoing VALUES (?)", (uuid7_key(),))
        for _ in range(2):
            send_and_crash(producer.execute("SELECT key FROM outgoing").fetchone()[0])
    assert len(world.effects) == 1


def test_row_17_a_cleaner_does_not_delete_what_was_claimed_meanwhile(tmp_path):
    clock = ManualClock()

    def naive(connection: sqlite3.Connection, ids: list[Any]) -> None:
        connection.executemany("DELETE FROM onceonly_records WHERE id = ?", [(i,) for i in ids])
        connection.commit()

    owners = {}
    for cleaner in ("naive", "ours"):
        path = tmp_path / f"{cleaner}.db"
        with closing(SqliteStore(path, clock=clock)) as store, closing(sqlite3.connect(path)) as connection:
            store.mark_seen([Mark(KEY, 1.0)])
            clock.advance(1.0)
            expired = store._find_expired(10)  # the cleaner has looked, and not deleted yet
            assert len(expired) == 1
            store.claim([ClaimRequest(KEY, b"live", LEASE, WINDOW)])
            if cleaner == "naive":
                naive(connection, expired)
            else:
                assert store._write(Plans.delete_expired, expired) == 0
            owners[cleaner] = store.claim([ClaimRequest(KEY, b"another", LEASE, WINDOW)])[0]
    assert isinstance(owners["naive"], Acquired), "a second run beside the first: doubled"
    assert isinstance(owners["ours"], Busy)


def test_row_19_two_real_and_equal_orders_are_two(world):
    orders = [{"id": "1", "item": "tea"}, {"id": "2", "item": "tea"}]
    hashes = {hashlib.sha256(order["item"].encode()).digest() for order in orders}
    assert len(hashes) == 1, "the second order is lost"

    once = world.once()
    guarded = once.handler(key="$.id")(world.effect)
    for order in [*orders, orders[0]]:
        guarded(order)
    assert world.effects == orders
    with pytest.raises(InvalidKey):  # content as identity is a choice, never a silent fallback
        guarded({"item": "tea"})


def _effect_then_mark(path: Path, ledger: Path, after: Callable[[], None]) -> None:
    with closing(table(path)) as connection:
        if not connection.execute("SELECT 1 FROM seen").fetchone():
            append(ledger, "effect")
            after()
            with connection:
                insert(connection)


def _claim_effect_complete(path: Path, ledger: Path, after: Callable[[], None]) -> None:
    def handler(message: object) -> None:
        append(ledger, "effect")
        after()

    _claim_first(path, handler)


def test_row_20_a_crash_between_effect_and_mark_does_not_run_again_unasked(tmp_path):
    naive, ours = tmp_path / "naive.txt", tmp_path / "ours.txt"
    deliver_to_a_worker_that_dies(_effect_then_mark, tmp_path / "naive.db", naive, die)
    _effect_then_mark(tmp_path / "naive.db", naive, lambda: None)
    assert len(lines(naive)) == 2, "doubled"

    deliver_to_a_worker_that_dies(_claim_effect_complete, tmp_path / "ours.db", ours, die)
    store = later(tmp_path / "ours.db")
    with closing(store), Once(store, group="group", on_orphan=lambda _: bool(lines(ours))) as once:
        outcome = once.process(lambda _: append(ours, "effect"), "message", key="key")
    assert (outcome.verdict, outcome.ack, len(lines(ours))) == (Verdict.DUPLICATE, True, 1)


# --- rows 21 to 45: in shipped libraries ------------------------------------------------------


def test_row_21_a_slow_worker_cannot_overwrite_the_new_owners_record(world):
    results: dict[str, str] = {}

    def naive(name: str, stall: Callable[[], None]) -> None:
        stall()
        results["key"] = name  # done, whoever owns the claim by now

    naive("first", lambda: naive("second", lambda: None))
    assert results["key"] == "first", "the answer that was given is gone"

    def slow(message: str) -> str:
        world.clock.advance(LEASE)
        assert world.once().process(lambda _: "second", message, key="key").attempt == 2
        return "first"

    with pytest.raises(LeaseLost):
        world.once().process(slow, "message", key="key")
    assert world.once().process(world.effect, "message", key="key").result == "second"


def test_row_22_only_one_of_many_takes_over(tmp_path):
    record, owners = {"deadline": 0.0}, []

    def naive(name: str, meanwhile: Callable[[], None]) -> None:
        deadline = record["deadline"]  # GET
        meanwhile()
        if deadline < 1.0:  # judge
            record["deadline"] = 2.0  # SET
            owners.append(name)

    naive("one", lambda: naive("other", lambda: None))
    assert owners == ["other", "one"], "both take over"

    clock, barrier, answers = ManualClock(), threading.Barrier(8), []
    stores = [SqliteStore(tmp_path / "ours.db", clock=clock, timeout=30) for _ in range(8)]
    stores[0].claim([ClaimRequest(KEY, b"dead", LEASE, WINDOW)])
    clock.advance(LEASE)

    def take(number: int) -> None:
        barrier.wait(30)
        answers.extend(stores[number].claim([ClaimRequest(KEY, b"%d" % number, LEASE, WINDOW)]))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread, store in zip(threads, stores, strict=True):
        thread.join(30)
        store.close()
    assert len(answers) == 8
    assert [(a.attempt, a.orphaned) for a in answers if isinstance(a, Acquired)] == [(2, True)]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_row_23_a_deadline_of_zero_is_a_deadline(kind, tmp_path):
    clock = ManualClock(start=-LEASE)
    deadline = clock() + LEASE
    assert deadline == 0.0
    assert not deadline, "if not deadline: orphan. Two run at once"

    store: Any = MemoryStore(clock=clock) if kind == "memory" else SqliteStore(tmp_path / "s.db", clock=clock)
    with closing(store):
        store.claim([ClaimRequest(KEY, b"owner", LEASE, WINDOW)])
        clock.advance(LEASE - 1.0)
        assert store.claim([ClaimRequest(KEY, b"other", LEASE, WINDOW)]) == [Busy(1.0)]
        assert store.renew([Renewal(KEY, b"owner", LEASE, WINDOW)]) == [True]


@pytest.mark.parametrize("result", [0, "", False, [], {}], ids=repr)
def test_row_24_a_falsy_result_replays_as_itself(world, result):
    cache: dict[str, Any] = {}

    def naive() -> Any:
        if found := cache.get("key"):
            return found
        world.effect("effect")
        cache["key"] = result
        return result

    for _ in range(2):
        naive()
    assert len(world.effects) == 2, "a falsy result is taken for none: doubled"

    world.effects.clear()
    guarded = world.once().handler(key=lambda m: m)(lambda m: world.effect(m) and result)
    answers = [guarded("key"), guarded("key")]
    assert (answers, {type(a) for a in answers}) == ([result, result], {type(result)})
    assert len(world.effects) == 1


class SharedRecord:
    """A guard that keeps the key of its call in itself."""

    def __init__(self) -> None:
        self.key = ""
        self.done: set[str] = set()

    def __call__(self, key: str, handler: Callable[[], None]) -> None:
        self.key = key
        if self.key not in self.done:
            handler()
            self.done.add(self.key)


def test_row_25_nested_handlers_keep_their_own_records(world):
    naive = SharedRecord()

    def nested() -> None:
        world.effect("outer")
        naive("inner", lambda: None)

    for _ in range(2):
        naive("outer", nested)
    assert world.effects == ["outer", "outer"], "the inner call changed the key: doubled"

    world.effects.clear()
    once = world.once()
    inner = once.handler(key=lambda m: m)(world.effect)
    outer = once.handler(key=lambda m: m)(lambda m: (world.effect(m), inner("inner"))[0])
    assert [outer("outer"), outer("outer"), inner("inner")] == ["outer", "outer", "inner"]
    assert world.effects == ["outer", "inner"]


def test_row_26_key_and_fingerprint_are_taken_before_the_handler_changes_the_message(world):
    done: set[str] = set()

    def handler(message: dict[str, Any]) -> None:
        world.effect(message.pop("id"))
        message["sum"] = 0

    for _ in range(2):
        message: dict[str, Any] = {"id": "key", "sum": 5}
        if message["id"] not in done:
            handler(message)
            done.add(message.get("id", ""))  # the key, found again after the handler
    assert len(world.effects) == 2, "another key was marked: doubled"

    world.effects.clear()
    guarded = world.once(fingerprint=lambda m: m["sum"]).handler(key="$.id")(handler)
    for _ in range(2):
        guarded({"id": "key", "sum": 5})
    assert len(world.effects) == 1


@pytest.mark.parametrize("state", ["done", "in flight", "released"])
def test_row_27_another_payload_under_a_known_key_is_refused_on_every_path(world, state):
    cache: dict[str, str] = {}
    paid = [cache.setdefault("key", f"paid {amount}") for amount in (5, 7)]
    assert paid == ["paid 5", "paid 5"], "whatever the payload: 7 is never paid"

    once = world.once(fingerprint=lambda m: m)
    if state == "done":
        once.process(lambda m: f"paid {m}", 5, key="key")
    elif state == "released":
        with suppress(ValueError):
            once.process(fail, 5, key="key")
    else:
        fingerprint = once._request(once._policy, "key", (5,), {}).fingerprint
        world.store.claim([ClaimRequest(KEY, b"other", LEASE, WINDOW, fingerprint)])
    with pytest.raises(PayloadMismatch, match="'key'"):
        once.process(world.effect, 7, key="key")
    assert world.effects == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_row_28_an_interrupted_handler_gives_its_claim_back(world, kind):
    claimed = {"key"}
    try:
        try:
            raise kind
        except Exception:  # noqa: BLE001 - what the row is about
            claimed.clear()
    except BaseException:  # noqa: BLE001
        assert claimed, "never released: the retry is blocked until the deadline"

    def interrupted(message: str) -> None:
        raise kind

    once = world.once()
    with pytest.raises(kind):
        once.process(interrupted, "message", key="key")
    outcome = once.process(world.effect, "message", key="key")
    assert (outcome.verdict, outcome.attempt) == (Verdict.PROCESSED, 2)


def test_row_28_a_cancelled_task_gives_its_claim_back():
    async def scenario() -> tuple[Verdict, int]:
        started = asyncio.Event()

        async def forever(message: str) -> bool:
            started.set()
            return await asyncio.Event().wait()

        async with AsyncOnce("memory://", group="group") as once:
            running: Any = once.process(forever, "message", key="key")
            task = asyncio.ensure_future(running)
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outcome = await once.process(lambda _: None, "message", key="key")
            return outcome.verdict, outcome.attempt

    assert asyncio.run(scenario()) == (Verdict.PROCESSED, 2)


def test_row_29_a_completion_that_fails_is_tried_again_and_never_undone(world):
    flaky = FlakyStore(world.store, {"complete": ["before", "after"]})

    def naive() -> None:
        answer = flaky.claim([ClaimRequest(KEY, os.urandom(8), LEASE, WINDOW)])[0]
        if isinstance(answer, Acquired):
            world.effect("effect")
            try:
                flaky.complete([Completion(KEY, b"", WINDOW)])
            except StoreUnavailable:
                flaky.forget([KEY], force=True)

    for _ in range(2):
        naive()
    assert len(world.effects) == 2, "success, deleted: doubled"

    world.effects.clear()
    world.store.forget([KEY], force=True)
    flaky = FlakyStore(world.store, {"complete": ["before", "after", "before"]})
    once = world.once(flaky)
    verdicts = [once.process(world.effect, "message", key="key").verdict for _ in range(2)]
    assert verdicts == [Verdict.PROCESSED, Verdict.DUPLICATE]
    assert len(world.effects) == 1

    down = world.once(
        FlakyStore(world.store, lambda verb, _: "before" if verb == "complete" else "ok"), lease=0.1
    )
    with pytest.raises(NotRecorded):
        down.process(world.effect, "message", key="other")
    assert once.process(world.effect, "message", key="other").verdict is Verdict.IN_FLIGHT


def test_row_30_a_heartbeat_that_comes_late_does_not_reopen_what_is_done(world):
    naive: dict[str, Any] = {}

    def heartbeat() -> None:
        naive.update(state="claimed", until=world.clock() + LEASE)

    def deliver() -> None:
        if not naive or (naive["state"] == "claimed" and naive["until"] <= world.clock()):
            world.effect("effect")
            naive["state"] = "done"

    deliver()
    heartbeat()  # it was under way when the record became done
    world.clock.advance(LEASE)
    deliver()
    assert len(world.effects) == 2, "taken over as an orphan: doubled"

    once = world.once()
    request = once._request(once._policy, "key", (), {})
    assert request is not None
    world.store.claim([request])
    world.store.complete([Completion(KEY, request.token, WINDOW)])
    assert world.store.renew([Renewal(KEY, request.token, LEASE, WINDOW)]) == [False]
    world.clock.advance(LEASE)
    assert once.process(world.effect, "message", key="key").verdict is Verdict.DUPLICATE


def test_row_30_a_running_handler_is_told_that_its_lease_is_lost():
    with Once("memory://", group="group", lease=0.3) as once:

        def handler(message: str) -> None:
            mine = current_claim()
            assert mine is not None
            once.forget("key", force=True)
            assert once.process(lambda _: "taken over", message, key="key").attempt == 1
            give_up = time.monotonic() + 10
            while not mine.lost:
                assert time.monotonic() < give_up, "nobody told the handler"
                time.sleep(0.01)
            mine.check()

        with pytest.raises(LeaseLost):
            once.process(handler, "message", key="key")
        assert once.process(handler, "message", key="key").result == "taken over"


def test_row_31_a_store_that_is_down_stops_the_handler(world):
    down = FlakyStore(world.store, lambda verb, number: "before")

    def naive() -> None:
        with suppress(StoreUnavailable):
            if not down.mark_seen([Mark(KEY, WINDOW)])[0]:
                return
        world.effect("effect")

    for _ in range(2):
        naive()
    assert len(world.effects) == 2, "the error was swallowed: doubled"

    world.effects.clear()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            world.once(down).process(world.effect, "message", key="key")
    assert world.effects == []


def test_row_32_a_duplicate_of_a_message_in_flight_is_not_acknowledged(world):
    seen: set[str] = set()
    queue = ["copy"]  # the redelivery, waiting while the first copy runs

    def naive(handler: Callable[[], None]) -> None:
        if "key" not in seen:
            seen.add("key")
            handler()

    def first_copy() -> None:
        naive(lambda: None)
        queue.pop()  # seen, so it is acknowledged
        fail("and now the first copy fails")

    with suppress(ValueError):
        naive(first_copy)
    assert (queue, world.effects) == ([], []), "no copy is left: lost"

    once, queue = world.once(), ["copy"]

    def first(message: str) -> None:
        again = once.process(world.effect, message, key="key")
        assert again.retry_after > 0
        if again.ack:
            queue.pop()
        fail("and now the first copy fails")

    with suppress(ValueError):
        once.process(first, "message", key="key")
    assert queue == ["copy"]
    assert once.process(world.effect, queue.pop(), key="key").ack
    assert world.effects == ["copy"]


def test_row_33_every_consumer_sees_the_message(world):
    seen: set[str] = set()
    for consumer in ("mail", "billing"):
        if "key" not in seen:
            seen.add("key")
            world.effect(consumer)
    assert world.effects == ["mail"], "the second consumer never sees it: lost"

    world.effects.clear()
    for consumer in ("mail", "billing", "mail"):
        world.once(group=consumer).process(world.effect, consumer, key="key")
    assert world.effects == ["mail", "billing"]


def test_row_34_one_caller_never_gets_the_response_of_another(world):
    responses: dict[str, str] = {}
    for user in ("ann", "bob"):
        responses.setdefault("key", f"account of {user}")
    assert responses["key"] == "account of ann", "and bob was shown it"

    once = world.once(scope=lambda user: user)
    guarded = once.handler(key=lambda user: "key")(lambda user: f"account of {user}")
    assert [guarded(user) for user in ("ann", "bob", "ann")] == [
        "account of ann",
        "account of bob",
        "account of ann",
    ]


def _count_failures(path: Path, ledger: Path) -> None:
    append(ledger, "start")
    try:
        die()
    except Exception:  # noqa: BLE001
        append(path, "failure")


def _count_starts(path: Path, ledger: Path, number: int) -> None:
    store = SqliteStore(path, clock=lambda: time.time() + number * LEASE)  # the earlier leases are over
    once = Once(store, group="group", lease=LEASE, max_attempts=2)

    def poison(message: str) -> None:
        append(ledger, "start")
        die()

    once.process(poison, "message", key="key")


def test_row_35_a_message_that_kills_its_process_is_quarantined(tmp_path):
    naive, ours = tmp_path / "naive.txt", tmp_path / "ours.txt"
    for _ in range(3):
        deliver_to_a_worker_that_dies(_count_failures, tmp_path / "failures.txt", naive)
    assert (len(lines(naive)), lines(tmp_path / "failures.txt")) == (3, []), "no failure counted: for ever"

    for number in range(2):
        deliver_to_a_worker_that_dies(_count_starts, tmp_path / "ours.db", ours, number)
    third = PROCESSES.Process(target=_count_starts, args=(tmp_path / "ours.db", ours, 2))
    third.start()
    third.join(60)
    assert (third.exitcode, len(lines(ours))) == (0, 2)
    with Once(f"sqlite:///{tmp_path / 'ours.db'}", group="group") as once:
        outcome = once.process(fail, "message", key="key")
    assert (outcome.verdict, outcome.ack) == (Verdict.QUARANTINED, False)


def test_row_36_cleanup_covers_what_never_completed_but_no_live_claim(world):
    with closing(sqlite3.connect(":memory:")) as naive:
        naive.execute("CREATE TABLE records (state, expires)")
        naive.execute("INSERT INTO records VALUES ('claimed', 1), ('done', 1)")
        naive.execute("DELETE FROM records WHERE state = 'done' AND expires < 2")
        left = naive.execute("SELECT state FROM records").fetchall()
    assert left == [("claimed",)], "what never completed stays for ever"

    world.store.claim([ClaimRequest(RecordId("group", "", "dead"), b"t", 1.0, 10.0)])
    with suppress(ValueError):
        world.once(lease=1.0, window=10.0).process(fail, "message", key="released")
    world.clock.advance(11.5)
    world.store.claim([ClaimRequest(RecordId("group", "", "live"), b"t", LEASE, 0.001)])
    with suppress(ValueError):
        world.once().process(fail, "message", key="waits for its retry")
    world.store.purge()
    assert world.store.stats().groups == {"group": {State.CLAIMED: 1, State.FREE: 1}}
    assert world.store.stats().expired == 0


def test_row_39_the_same_key_twice_in_a_batch_runs_once_and_answers_both(world):
    batch, known = [{"id": "a"}, {"id": "b"}, {"id": "a"}], set[str]()
    for message in [message for message in batch if message["id"] not in known]:  # one look-up per batch
        world.effect(message["id"])
    assert world.effects == ["a", "b", "a"], "doubled"

    world.effects.clear()
    outcomes = world.once().process_many(lambda m: world.effect(m["id"]), batch, key="$.id")
    assert world.effects == ["a", "b"]
    assert [o.verdict for o in outcomes] == [Verdict.PROCESSED, Verdict.PROCESSED, Verdict.DUPLICATE]
    assert [o.result for o in outcomes] == ["a", "b", "a"]


def test_row_40_renaming_a_handler_does_not_make_its_messages_new(world):
    def charge(message: str) -> None:
        world.effect(message)

    def charge_card(message: str) -> None:  # the same handler after a refactoring
        world.effect(message)

    seen = set()
    for handler in (charge, charge_card):
        if (handler.__qualname__, "key") not in seen:
            seen.add((handler.__qualname__, "key"))
            handler("message")
    assert len(world.effects) == 2, "another namespace: doubled"

    world.effects.clear()
    for handler in (charge, charge_card):
        world.once().handler(key=lambda message: "key")(handler)("message")
    assert len(world.effects) == 1


def test_row_41_identities_have_enough_bits(world):
    one, other = b"plumless", b"buckeroo"
    assert zlib.crc32(one) == zlib.crc32(other), "the second message is lost"

    once = world.once()
    for body in (one, other, one):
        once.process(world.effect, body, key=content_key())
    assert world.effects == [one, other]


class HangingStore(MemoryStore):
    """Its server is gone: a renewal gets no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.back = threading.Event(), threading.Event()

    def renew(self, renewals: Any) -> list[bool]:
        self.asked.set()
        self.back.wait(30)
        return super().renew(renewals)


def test_row_42_closing_does_not_wait_for_a_store_that_is_gone():
    store = HangingStore()
    heartbeat = threading.Thread(target=store.renew, args=([],), daemon=True)
    heartbeat.start()
    heartbeat.join(0.1)
    assert heartbeat.is_alive(), "heartbeat.join() would wait as long as the store"

    once = Once(store, group="group", lease=0.3)
    store.asked.clear()
    with pytest.raises(LeaseLost), once.claim("key"):  # noqa: PT012
        assert store.asked.wait(10)
        begun = time.monotonic()
        once.close()
        assert time.monotonic() - begun < 5
        store.forget([RecordId("group", "", "key")], force=True)
    store.back.set()


def test_row_43_a_mark_whose_reply_was_lost_is_unknown_and_not_sent_again(world):
    flaky = FlakyStore(world.store, {"mark_seen": ["after"]})

    def naive() -> bool:
        for _ in range(2):
            with suppress(StoreUnavailable):
                return flaky.mark_seen([Mark(KEY, WINDOW)])[0]
        raise StoreUnavailable("gone")

    assert naive() is False, "our own mark, taken for a duplicate: lost with no crash"

    flaky = FlakyStore(world.store, {"mark_seen": ["after"]})
    with pytest.raises(StoreUnavailable) as raised:
        world.once(flaky).first_time("another")
    assert raised.value.unknown
    assert flaky.calls["mark_seen"] == 1


def test_row_44_attempts_outlive_the_lease(world):
    attempts: dict[str, int] = {}
    for _ in range(5):
        attempts["key"] = attempts.get("key", 0) + 1
        assert attempts["key"] == 1, "never reaches a limit: for ever"
        attempts.clear()  # the key expired with its lease

    once = world.once(max_attempts=2)
    for attempt in (1, 2):
        answer = world.store.claim([ClaimRequest(KEY, b"%d" % attempt, LEASE, WINDOW)])[0]
        assert answer.attempt == attempt
        world.clock.advance(LEASE)  # its worker died
    outcome = once.process(world.effect, "message", key="key")
    assert (outcome.verdict, outcome.ack, world.effects) == (Verdict.QUARANTINED, False, [])


def test_row_45_an_inbox_outside_a_transaction_is_refused(tmp_path):
    path = tmp_path / "ours.db"
    with closing(table(path)) as connection, Once(f"sqlite:///{path}", group="group") as once:
        connection.isolation_level = None
        assert insert(connection)
        connection.rollback()  # the handler failed
        assert not insert(connection), "the mark was committed at once: lost"

        with pytest.raises(ConfigurationError, match="autocommit"):
            once.bind(connection).first_time("key")
        assert not once.seen("key")
        connection.isolation_level = "DEFERRED"
        with suppress(ValueError), connection:
            assert once.bind(connection).first_time("key")
            fail("key")
        with connection:
            assert once.bind(connection).first_time("key")
