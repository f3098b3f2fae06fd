"""What is special to SQLite: real processes on one file, kill -9, locks, bad files, clocks that jump.

What every store promises is in ``onceonly.testing.conformance``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    InFlight,
    LeaseLost,
    NotRecorded,
    Once,
    State,
    StoreUnavailable,
    Verdict,
    current_claim,
)
from onceonly.stores import open_async_store, open_store
from onceonly.stores.rules import Rules
from onceonly.stores.sqlite import AsyncSqliteStore, SqliteStore
from onceonly.testing import ManualClock, SyncView
from onceonly.types import (
    Acquired,
    Busy,
    ClaimRequest,
    Completion,
    Done,
    Mark,
    RecordId,
    Release,
    Renewal,
    Status,
)

HOUR, YEAR = 3600.0, 365 * 86400.0
LEASE, WINDOW = 30.0, 600.0
KEY = RecordId("group", "", "key")
OUR_TABLES = {"onceonly_meta", "onceonly_groups", "onceonly_records", "onceonly_windows"}
PROCESSES = multiprocessing.get_context("forkserver")  # clean children: no threads, no connections of ours
PROCESSES.set_forkserver_preload(["onceonly", "pytest"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, clock=clock, timeout=0.05)) as store:
        yield store


@pytest.fixture
def lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Another writer: ``lock.execute("BEGIN IMMEDIATE")`` to begin, ``lock.rollback()`` to end."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    yield connection
    connection.close()


def claim(store: Any, token: bytes = b"ours", key: RecordId = KEY, **more: Any) -> Any:
    return store.claim([ClaimRequest(key, token, LEASE, WINDOW, **more)])[0]


def complete(store: Any, token: bytes = b"ours", key: RecordId = KEY, **more: Any) -> bool:
    return bool(store.complete([Completion(key, token, WINDOW, **more)])[0])


def peek(store: Any, key: RecordId = KEY) -> Any:
    return store.peek([key])[0]


def content(path: Path) -> list[str]:
    """Everything in the file, as SQL."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def url(path: Path, options: str = "") -> str:
    return f"sqlite:///{path}{options}"


def append(ledger: Path, text: str) -> None:
    """One line, in one write, so that processes never mix theirs."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def run_together(target: Callable[..., None], *args: Any, count: int = 4) -> None:
    """Start ``count`` processes, let them go at the same moment, and see them all end well."""
    barrier = PROCESSES.Barrier(count)
    processes = [PROCESSES.Process(target=target, args=(barrier, *args)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count


def run_until_killed(target: Callable[..., None], *args: Any) -> None:
    process = PROCESSES.Process(target=target, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- processes that race ----------------------------------------------------------------------

KEYS = [f"key-{number}" for number in range(200)]


def _note(effects: Path, key: str) -> None:
    append(effects, f"{key} {os.getpid()}")
    time.sleep(0.001)  # long enough for others to meet it in flight


def _process_all(barrier: Any, path: Path, effects: Path, verdicts: Path) -> None:
    waiting = deque(random.sample(KEYS, len(KEYS)))
    with Once(url(path), group="race") as once:
        barrier.wait(60)
        while waiting:
            outcome = once.process(lambda key: _note(effects, key), waiting[0], key=waiting[0])
            append(verdicts, outcome.verdict)
            if outcome.ack:
                waiting.popleft()
            waiting.rotate(-1)


def _process_all_async(barrier: Any, path: Path, effects: Path, verdicts: Path) -> None:
    waiting = deque(random.sample(KEYS, len(KEYS)))

    async def work(once: AsyncOnce) -> None:
        while waiting:
            key = waiting.popleft()
            outcome = await once.process(lambda key: _note(effects, key), key, key=key)
            append(verdicts, outcome.verdict)
            if not outcome.ack:
                waiting.append(key)

    async def everything() -> None:
        async with AsyncOnce(url(path), group="race") as once:
            barrier.wait(60)
            await asyncio.gather(*[work(once) for _ in range(8)])

    asyncio.run(everything())


@pytest.mark.parametrize("worker", [_process_all, _process_all_async], ids=["sync", "async"])
def test_four_processes_share_200_messages_and_each_takes_effect_once(worker, path, tmp_path):
    effects, verdicts = tmp_path / "effects", tmp_path / "verdicts"
    run_together(worker, path, effects, verdicts)
    lines = [line.split() for line in effects.read_text().splitlines()]
    assert Counter(key for key, _ in lines) == dict.fromkeys(KEYS, 1)
    assert len({pid for _, pid in lines}) > 1, "only one process did all the work: nothing raced"
    told = Counter(verdicts.read_text().split())
    assert (told["processed"], told["duplicate"]) == (200, 600)


def _mark_all(barrier: Any, path: Path, new: Path) -> None:
    keys = random.sample(KEYS * 5, 1000)  # each key five times, also within one batch
    with Once(url(path), group="race") as once:
        barrier.wait(60)
        for start in range(0, len(keys), 50):
            batch = keys[start : start + 50]
            for key, first in zip(batch, once.first_time_many(batch), strict=True):
                if first:
                    append(new, key)


def test_four_processes_mark_the_same_keys_and_each_is_new_once(path, tmp_path):
    run_together(_mark_all, path, tmp_path / "new")
    assert Counter((tmp_path / "new").read_text().split()) == dict.fromkeys(KEYS, 1)


def _book_all(barrier: Any, path: Path) -> None:
    with Once(url(path), group="race") as once, closing(sqlite3.connect(path, timeout=30)) as connection:
        barrier.wait(60)
        for key in random.sample(KEYS, len(KEYS)):
            with connection:
                if once.bind(connection).first_time(key):
                    connection.execute("UPDATE account SET balance = balance + 1")


def test_four_processes_book_the_same_messages_in_their_own_transactions(path):
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            connection.executescript("CREATE TABLE account (balance); INSERT INTO account VALUES (0)")
        run_together(_book_all, path)
        assert connection.execute("SELECT balance FROM account").fetchone() == (200,)


def _open_and_mark(barrier: Any, path: Path) -> None:
    barrier.wait(60)
    with closing(SqliteStore(path)) as store:
        store.mark_seen([Mark(RecordId("group", "", str(os.getpid())), WINDOW)])


def test_a_file_not_yet_in_wal_mode_is_waited_for_like_any_other(path, lock):
    lock.execute("CREATE TABLE orders (id)")
    lock.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, lock.rollback).start()
    with closing(SqliteStore(path, timeout=30)) as store:
        assert isinstance(claim(store), Acquired)


def test_processes_that_create_the_same_file_at_once_all_get_it(tmp_path):
    for number in range(5):
        path = tmp_path / f"{number}.db"
        run_together(_open_and_mark, path, count=4)
        with closing(SqliteStore(path)) as store:
            assert store.stats().records == 4


# --- kill -9 ----------------------------------------------------------------------------------


def _claim_and_die(path: Path, fence: Path) -> None:
    answer = claim(SqliteStore(path), b"theirs", type="order", fingerprint=b"f")
    append(fence, str(answer.fence))
    die()


@pytest.fixture
def abandoned(path: Path, tmp_path: Path) -> int:
    """The fence of a claim whose process was killed."""
    run_until_killed(_claim_and_die, path, tmp_path / "fence")
    return int((tmp_path / "fence").read_text())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_claim_of_a_killed_process_is_taken_over_after_its_lease(kind, abandoned, path):
    clock = ManualClock(time.time())
    store: Any = (
        SqliteStore(path, clock=clock) if kind == "sync" else SyncView(AsyncSqliteStore(path, clock=clock))
    )
    with closing(store):
        early = claim(store)
        assert isinstance(early, Busy)
        assert 0 < early.retry_after <= LEASE
        clock.advance(LEASE)
        assert peek(store).orphaned
        late = claim(store)
        assert (late.attempt, late.orphaned, late.fingerprint) == (2, True, b"f")
        assert late.fence > abandoned
        assert not complete(store, b"theirs")
        assert complete(store)


def test_the_handler_sees_that_it_takes_over_from_a_killed_process(abandoned, path):
    clock = ManualClock(time.time())
    seen: list[Any] = []
    with (
        closing(SqliteStore(path, clock=clock)) as store,
        Once(store, group="group", lease=LEASE, window=WINDOW) as once,
    ):
        waiting = once.process(seen.append, "message", key="key")
        assert (waiting.verdict, waiting.ack, seen) == (Verdict.IN_FLIGHT, False, [])
        clock.advance(LEASE)
        outcome = once.process(lambda _: seen.append(current_claim()), "message", key="key")
    assert (outcome.verdict, outcome.attempt, seen[0].orphaned) == (Verdict.PROCESSED, 2, True)


def _book_and_die(path: Path, moment: str) -> None:
    once, connection = Once(url(path), group="group"), sqlite3.connect(path)

    def reached(now: str) -> None:
        if now == moment:
            die()

    reached("before anything")
    assert once.bind(connection).first_time("key")
    reached("after the mark")
    connection.execute("INSERT INTO effects VALUES ('key')")
    reached("after the effect")
    connection.commit()
    reached("after the commit")


@pytest.mark.parametrize(
    ("moment", "kept"),
    [("before anything", 0), ("after the mark", 0), ("after the effect", 0), ("after the commit", 1)],
)
def test_a_kill_around_a_bound_transaction_leaves_effect_and_mark_or_neither(moment, kept, path):
    with closing(sqlite3.connect(path)) as connection, Once(url(path), group="group") as once:
        connection.execute("CREATE TABLE effects (key)")
        run_until_killed(_book_and_die, path, moment)
        effects = connection.execute("SELECT count(*) FROM effects").fetchone()[0]
        assert (effects, once.seen("key")) == (kept, bool(kept))
        with connection:  # the redelivery
            if once.bind(connection).first_time("key"):
                connection.execute("INSERT INTO effects VALUES ('key')")
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)


def _die_while_writing(path: Path) -> None:
    def clock() -> float:  # it is read inside the transaction
        die()
        return 0.0

    store = SqliteStore(path, clock=clock)
    store.mark_seen([Mark(RecordId("group", "", "other"), WINDOW)])


def test_a_kill_inside_a_store_call_leaves_no_lock_and_no_trace(path):
    with closing(SqliteStore(path, timeout=0.05)) as store:
        claim(store)
        before = content(path)
        run_until_killed(_die_while_writing, path)
        assert content(path) == before
        assert complete(store)


# --- the file ---------------------------------------------------------------------------------


def test_the_file_is_in_wal_mode(store, path):
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("options", "level"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=full", 2)]
)
@pytest.mark.parametrize("opener", [open_store, open_async_store])
def test_synchronous_is_normal_or_full(opener, options, level, path):
    opened = opener(url(path, options))
    inner = getattr(opened, "_store", opened)
    assert inner._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    inner.close()


@pytest.mark.parametrize("bad", ["off", "FULL", "extra", "", 2])
@pytest.mark.parametrize("kind", [SqliteStore, AsyncSqliteStore])
def test_any_other_synchronous_is_refused_by_name_and_makes_no_file(kind, bad, path):
    with pytest.raises(ConfigurationError, match="synchronous"):
        kind(path, synchronous=bad)
    assert not path.exists()


def test_our_tables_leave_the_tables_of_the_application_alone(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("CREATE TABLE orders (id); INSERT INTO orders VALUES (1)")
        SqliteStore(path).close()
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        assert names == {"orders", *OUR_TABLES}


@pytest.mark.parametrize("version", ["2", "0", None])
def test_another_schema_version_is_a_clear_error_and_changes_nothing(version, path):
    with closing(SqliteStore(path)) as store:
        claim(store)
    change = "DELETE FROM onceonly_meta" if version is None else f"UPDATE onceonly_meta SET value = {version}"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"{change} WHERE name = 'schema'")
    before = content(path)
    with pytest.raises(ConfigurationError, match=f"schema version {version}.*needs 1") as refused:
        Once(url(path), group="group")
    assert str(path) in str(refused.value)
    assert content(path) == before


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path):
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(ConfigurationError, match="not a SQLite database") as refused:
        SqliteStore(path)
    assert str(path) in str(refused.value)
    assert isinstance(refused.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == b"not a database " * 1000


@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_directory_that_is_not_there_is_named(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=f"no directory .*{place}"):
        SqliteStore(tmp_path / place / "store.db")


def test_a_directory_in_the_place_of_the_file_is_refused_by_name(tmp_path):
    with pytest.raises(StoreUnavailable, match=tmp_path.name):
        SqliteStore(tmp_path)


def _write_without_rights(path: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write anywhere
    with pytest.raises(StoreUnavailable, match=path.name):
        SqliteStore(path).mark_seen([Mark(KEY, WINDOW)])


@pytest.mark.parametrize("exists", [False, True], ids=["new file", "existing file"])
def test_an_unwritable_directory_is_refused_by_name(exists):
    directory = Path(tempfile.mkdtemp())  # not tmp_path: others must be able to look into it
    try:
        path = directory / "store.db"
        if exists:
            SqliteStore(path).close()
            path.chmod(0o444)
        directory.chmod(0o555)
        process = PROCESSES.Process(target=_write_without_rights, args=(path,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


def test_a_restart_keeps_every_record(path, clock):
    def key(name: str) -> RecordId:
        return RecordId("group", "tenant", name)

    with closing(SqliteStore(path, clock=clock)) as first:
        for name in ("claimed", "free", "done", "failed", "quarantined"):
            claim(first, key=key(name), fingerprint=b"\x00f", type="order")
        first.release([Release(key("free"), b"ours", WINDOW, delay=5.0)])
        complete(first, key=key("done"), result=b"\x00result")
        complete(first, key=key("failed"), status=Status.FAILED, result=b"")
        complete(first, key=key("quarantined"), status=Status.QUARANTINED)
        first.mark_seen([Mark(key("marked"), WINDOW, "order")])
        ids = [key(n) for n in ("claimed", "free", "done", "failed", "quarantined", "marked")]
        before, stats = first.peek(ids), first.stats()
    with closing(SqliteStore(path, clock=clock)) as second:
        assert second.peek(ids) == before
        assert second.stats() == stats
        assert None not in before
        assert claim(second, key=key("done")) == Done(Status.PROCESSED, b"\x00result", b"\x00f", 1)
        assert isinstance(claim(second, b"another", key("claimed")), Busy)
        assert complete(second, key=key("claimed")), "the token outlives the process"


# --- URLs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("sqlite://", "sqlite:///relative.db"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite:", "sqlite:///relative.db"),
        ("sqlite://store.db", "sqlite:///relative.db"),
        ("sqlite://host/store.db", "sqlite:///relative.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///store.db?mode=ro", "mode"),
        ("sqlite:///store.db?Timeout=5", "Timeout"),
        ("sqlite:///store.db?timeout=soon", "timeout"),
        ("sqlite:///store.db?timeout=0", "timeout"),
        ("sqlite:///store.db?timeout=-1", "timeout"),
        ("sqlite:///store.db?timeout=", "timeout"),
        ("sqlite:///store.db?synchronous=off", "synchronous"),
        ("sqlite3:///store.db", "sqlite3"),
        ("postgres://user:secret@host/db", "postgres"),
        ("store.db", "by URL"),
        ("", "by URL"),
        ("memory://?max_records=many", "max_records"),
        ("memory://?timeout=5", "timeout"),
    ],
)
@pytest.mark.parametrize("opener", [open_store, open_async_store])
def test_a_bad_url_is_refused_by_what_is_wrong_and_makes_no_file(opener, bad, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=says) as refused:
        opener(bad)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_url_without_slashes_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"sqlite:///relative\.db"):
        open_store("sqlite:store.db")


def test_a_url_with_a_fragment_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError):
        open_store("sqlite:///a#1.db")


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("sqlite:///store.db", "store.db"),
        ("sqlite:///sub/store.db", "sub/store.db"),
        ("sqlite:///{here}/store.db", "store.db"),
        ("sqlite:///a%20b%3F.db", "a b?.db"),
        ("sqlite:///store.db?timeout=250ms", "store.db"),
    ],
)
def test_a_url_names_a_relative_or_absolute_file(template, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    opened = open_store(template.format(here=tmp_path))
    opened.close()
    assert (tmp_path / place).is_file()


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("250ms", 0.25), ("1m", 60.0)])
def test_the_timeout_of_a_url_is_a_duration_or_seconds(text, seconds, path):
    with closing(open_store(url(path, f"?timeout={text}"))) as opened:
        assert isinstance(opened, SqliteStore)
        assert opened._timeout == seconds


# --- locked -----------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Any], Any]] = {
    "mark_seen": lambda store: store.mark_seen([Mark(RecordId("group", "", "new"), WINDOW)]),
    "claim": lambda store: claim(store, key=RecordId("group", "", "new")),
    "complete": complete,
    "release": lambda store: store.release([Release(KEY, b"ours", WINDOW)]),
    "renew": lambda store: store.renew([Renewal(KEY, b"ours", 99.0, WINDOW)]),
    "forget": lambda store: store.forget([KEY], force=True),
    "purge": lambda store: store.purge(),
}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("verb", WRITES)
def test_a_file_locked_for_too_long_is_unavailable_and_unchanged(verb, kind, path, lock, clock):
    store: Any = SqliteStore(path, clock=clock, timeout=0.02)
    if kind == "async":
        store.close()
        store = SyncView(AsyncSqliteStore(path, clock=clock, timeout=0.02))
    with closing(store):
        store.mark_seen([Mark(RecordId("group", "", "expired"), 1.0)])
        clock.advance(2)
        claim(store)
        before = content(path)
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked") as refused:
            WRITES[verb](store)
        assert refused.value.unknown is False
        assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
        assert peek(store).state is State.CLAIMED, "readers do not wait for writers"
        lock.rollback()
        assert content(path) == before
        WRITES[verb](store)
        assert content(path) != before


def test_a_file_locked_for_less_than_the_timeout_is_waited_for(path, lock):
    with closing(SqliteStore(path, timeout=30)) as store:
        lock.execute("BEGIN IMMEDIATE")
        threading.Timer(0.1, lock.rollback).start()
        assert isinstance(claim(store), Acquired)


def test_the_event_loop_goes_on_while_the_file_is_locked(path, lock):
    async def scenario() -> int:
        ticks = 0
        store = AsyncSqliteStore(path, timeout=30)
        lock.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.mark_seen([Mark(KEY, WINDOW)]))
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += 1
            assert not waiting.done()
        lock.rollback()
        assert await waiting == [True]
        await store.close()
        return ticks

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == 20


def test_a_handler_is_not_run_when_the_file_is_locked(path, lock):
    runs: list[str] = []
    with Once(url(path, "?timeout=20ms"), group="group") as once:
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            once.process(runs.append, "message", key="key")
        lock.rollback()
        assert runs == []
        assert once.process(runs.append, "message", key="key").attempt == 1


def test_a_completion_waits_for_the_lock_within_its_lease(path, lock):
    runs: list[str] = []

    def handler(message: str) -> str:
        runs.append(message)
        lock.execute("BEGIN IMMEDIATE")
        threading.Timer(0.1, lock.rollback).start()
        return "paid"

    with Once(url(path, "?timeout=10ms"), group="group") as once:
        assert once.process(handler, "message", key="key").verdict is Verdict.PROCESSED
        assert once.process(handler, "message", key="key").result == "paid"
    assert runs == ["message"]


def test_a_completion_that_never_gets_the_lock_is_not_recorded_and_not_released(path, lock):
    def handler(message: str) -> str:
        lock.execute("BEGIN IMMEDIATE")
        return "paid"

    with Once(url(path, "?timeout=10ms"), group="group", lease="300ms") as once:
        with pytest.raises(NotRecorded) as raised:
            once.process(handler, "message", key="key")
        assert raised.value.result == "paid"
        lock.rollback()
        record = once.peek("key")
        assert record is not None
        assert record.state is State.CLAIMED


# --- closed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb in WRITES if verb != "purge"])
def test_a_closed_store_is_unavailable(verb, store):
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        WRITES[verb](store)


def test_a_store_can_be_closed_twice(store):
    store.close()
    store.close()


def test_closing_an_engine_does_not_wait_for_a_file_that_stays_locked(path, lock):
    once = Once(url(path, "?timeout=9s"), group="group", lease=0.3)
    once.claim("key").__enter__()
    lock.execute("BEGIN IMMEDIATE")
    while not once._store._lock.locked():  # type: ignore[attr-defined]
        time.sleep(0.01)  # until a renewal waits for the file
    begun = time.monotonic()
    once.close()
    assert time.monotonic() - begun < 5


# --- clocks -----------------------------------------------------------------------------------


def test_a_clock_set_back_does_not_reopen_a_live_claim_and_its_owner_goes_on(store, clock):
    claim(store)
    clock.jump(-HOUR)
    assert claim(store, b"other").retry_after == pytest.approx(LEASE + HOUR)
    assert store.renew([Renewal(KEY, b"ours", LEASE, WINDOW)]) == [True]
    assert complete(store, result=b"1")
    assert claim(store, b"other") == Done(Status.PROCESSED, b"1")


def test_a_clock_set_back_never_shortens_a_lease_on_renewal(store, clock):
    claim(store)
    until = peek(store).lease_until
    clock.jump(-HOUR)
    store.renew([Renewal(KEY, b"ours", LEASE, WINDOW)])
    assert peek(store).lease_until == until


def test_a_clock_set_back_makes_a_lease_last_by_as_much_and_no_more(store, clock):
    claim(store)
    clock.jump(-HOUR)
    clock.advance(HOUR + LEASE - 0.001)
    assert isinstance(claim(store, b"other"), Busy)
    clock.advance(0.001)
    taken = claim(store, b"other")
    assert (taken.attempt, taken.orphaned) == (2, True)


def test_a_clock_set_back_makes_a_done_record_last_by_as_much_and_no_more(store, clock):
    claim(store)
    complete(store)
    clock.jump(-HOUR)
    assert store.purge() == 0
    clock.advance(HOUR + WINDOW - 0.001)
    assert isinstance(claim(store, b"other"), Done)
    clock.advance(0.001)
    assert claim(store, b"other").attempt == 1


def test_a_clock_set_back_delays_a_retry_and_keeps_its_attempts(store, clock):
    claim(store)
    store.release([Release(KEY, b"ours", WINDOW, delay=5.0)])
    clock.jump(-HOUR)
    assert claim(store, b"other").retry_after == pytest.approx(HOUR + 5.0)
    clock.advance(HOUR + 5.0)
    assert claim(store, b"other").attempt == 2


def test_a_clock_set_forward_ends_a_lease_early_and_the_old_owner_is_refused(store, clock):
    claim(store)
    clock.jump(LEASE)
    taken = claim(store, b"other")
    assert (taken.attempt, taken.orphaned) == (2, True)
    assert not complete(store)
    assert complete(store, b"other")


# --- fences -----------------------------------------------------------------------------------


def _release(store: SqliteStore, clock: ManualClock) -> None:
    clock.jump(-YEAR)
    store.release([Release(KEY, b"ours", WINDOW)])


def _take_over(store: SqliteStore, clock: ManualClock) -> None:
    clock.advance(LEASE)


def _expire(store: SqliteStore, clock: ManualClock) -> None:
    clock.advance(LEASE + WINDOW)


def _expire_as_done(store: SqliteStore, clock: ManualClock) -> None:
    complete(store)
    clock.advance(WINDOW)


def _purge_then_set_back(store: SqliteStore, clock: ManualClock) -> None:
    clock.advance(LEASE + WINDOW)
    assert store.purge() == 1
    clock.jump(-YEAR)


def _forget_then_set_back(store: SqliteStore, clock: ManualClock) -> None:
    store.forget([KEY], force=True)
    clock.jump(-YEAR)


def _mark_over_it(store: SqliteStore, clock: ManualClock) -> None:
    clock.jump(-YEAR)
    store.release([Release(KEY, b"ours", WINDOW)])
    assert store.mark_seen([Mark(KEY, 1.0)]) == [True]
    clock.advance(1.0)


def _mark_then_forget(store: SqliteStore, clock: ManualClock) -> None:
    _mark_over_it(store, clock)
    store.forget([KEY])
    clock.jump(-YEAR)


def _expire_mark_forget(store: SqliteStore, clock: ManualClock) -> None:
    _expire(store, clock)
    assert store.mark_seen([Mark(KEY, WINDOW)]) == [True]
    store.forget([KEY])
    clock.jump(-YEAR)


BETWEEN = [
    *(_expire_mark_forget, _release, _take_over, _expire, _expire_as_done),
    *(_purge_then_set_back, _forget_then_set_back, _mark_over_it, _mark_then_forget),
]


@pytest.mark.parametrize("reopen", [False, True], ids=["same store", "reopened"])
@pytest.mark.parametrize("between", BETWEEN, ids=lambda step: step.__name__.strip("_"))
def test_a_later_owner_has_a_larger_fence(between, reopen, path, clock):
    store = SqliteStore(path, clock=clock)
    fences = []
    for token in (b"ours", b"other"):
        fences.append(claim(store, token).fence)
        if token == b"ours":
            between(store, clock)
            if reopen:
                store.close()
                store = SqliteStore(path, clock=clock)
    store.close()
    assert fences[0] < fences[1] < 2**53


# --- purge ------------------------------------------------------------------------------------


def _expired(path: Path, count: int) -> None:
    with closing(SqliteStore(path, clock=lambda: time.time() - HOUR)) as past:
        past.mark_seen([Mark(RecordId("group", "", f"old-{n}"), 1.0) for n in range(count)])


def _keep_writing(path: Path, started: Any, stop: Any, written: Any) -> None:
    store = SqliteStore(path, timeout=1.0)
    while not stop.is_set():
        new = RecordId("group", "", f"new-{written.value}")
        assert store.mark_seen([Mark(new, WINDOW)]) == [True]
        written.value += 1
        started.set()


def test_purge_takes_small_steps_so_that_another_process_goes_on_writing(path):
    _expired(path, 20_000)
    started, stop, written = PROCESSES.Event(), PROCESSES.Event(), PROCESSES.Value("i", 0)
    writer = PROCESSES.Process(target=_keep_writing, args=(path, started, stop, written))
    writer.start()
    steps: Counter[int] = Counter()
    with closing(SqliteStore(path, timeout=30)) as store:
        store._connection.set_trace_callback(
            lambda sql: steps.update([steps[-1]] if sql.startswith("DELETE") else [-1] * (sql == "COMMIT"))
        )
        assert started.wait(30)
        removed = [store.purge(limit=5000) for _ in range(6)]
        stop.set()
        writer.join(30)
        assert writer.exitcode == 0
        assert removed == [5000, 5000, 5000, 5000, 0, 0]
        assert max(count for step, count in steps.items() if step >= 0) <= 1000
        assert store.stats().records == written.value
        assert store.stats().expired == 0


def test_two_cleaners_share_the_work_and_count_each_record_once(path):
    _expired(path, 6000)
    removed: list[int] = []

    def clean() -> None:
        with Once(url(path, "?timeout=30"), group="group") as once:
            removed.append(once.purge())

    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for cleaner in cleaners:
        cleaner.start()
    for cleaner in cleaners:
        cleaner.join(30)
    assert sum(removed) == 6000


# --- bind -------------------------------------------------------------------------------------


@pytest.fixture
def connection(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """The application's own connection to the store's file, with a table of its own."""
    connection = sqlite3.connect(path, timeout=0.05)
    connection.execute("CREATE TABLE effects (key)")
    yield connection
    connection.close()


@pytest.fixture
def once(store: SqliteStore) -> Iterator[Once]:
    with Once(store, group="group", lease=LEASE, window=WINDOW) as once:
        yield once


def effects(path: Path) -> int:
    """How many effects others can see."""
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("SELECT count(*) FROM effects").fetchone()[0])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_effect_and_mark_become_visible_together_or_not_at_all(end, once, connection, path):
    assert once.bind(connection).first_time("key")
    connection.execute("INSERT INTO effects VALUES ('key')")
    assert (effects(path), once.seen("key")) == (0, False)
    getattr(connection, end)()
    done = end == "commit"
    assert (effects(path), once.seen("key")) == (int(done), done)
    assert once.bind(connection).first_time("key") is not done


def test_a_bound_process_stores_its_result_with_the_effect(once, connection, path):
    def handler(message: str) -> str:
        connection.execute("INSERT INTO effects VALUES (?)", (message,))
        return "paid"

    for verdict in (Verdict.PROCESSED, Verdict.DUPLICATE):
        with connection:
            outcome = once.bind(connection).process(handler, "message", key="key")
        assert (outcome.verdict, outcome.result, effects(path)) == (verdict, "paid", 1)


def test_a_bound_handler_that_raises_leaves_nothing_after_rollback(once, connection, path):
    def handler(message: str) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (message,))
        raise ValueError("card refused")

    with pytest.raises(ValueError, match="card refused"), connection:
        once.bind(connection).process(handler, "message", key="key")
    assert (effects(path), once.peek("key")) == (0, None)


def test_a_bound_store_never_commits_whatever_it_is_asked(store, connection, path):
    before = content(path)
    bound = store.bind(connection)
    second = RecordId("group", "", "second")
    bound.mark_seen([Mark(RecordId("new group", "", "key"), WINDOW)])
    bound.claim([ClaimRequest(KEY, b"ours", LEASE, WINDOW), ClaimRequest(second, b"ours", LEASE, WINDOW)])
    bound.complete([Completion(KEY, b"ours", WINDOW)])
    bound.release([Release(second, b"ours", WINDOW)])
    with pytest.raises(LeaseLost):
        bound.complete([Completion(KEY, b"not ours", WINDOW)])
    assert connection.in_transaction
    assert content(path) == before
    connection.rollback()
    assert content(path) == before


def test_a_refusal_in_a_bound_store_leaves_the_transaction_to_the_caller(store, connection, path):
    claim(store)
    connection.execute("INSERT INTO effects VALUES ('other work')")
    with pytest.raises(InFlight):
        store.bind(connection).mark_seen([Mark(KEY, WINDOW)])
    assert connection.in_transaction
    connection.commit()
    assert effects(path) == 1


def test_a_bound_store_changes_no_setting_of_the_connection(store, connection):
    connection.row_factory = sqlite3.Row
    pragmas = (
        "busy_timeout",
        "foreign_keys",
        "synchronous",
        "cache_size",
        "wal_autocheckpoint",
        "query_only",
    )

    def settings() -> list[Any]:
        found = [tuple(connection.execute(f"PRAGMA {name}").fetchone()) for name in pragmas]
        return [*found, connection.row_factory, connection.text_factory, connection.isolation_level]

    before = settings()
    bound = store.bind(connection)
    bound.mark_seen([Mark(KEY, WINDOW)])
    assert settings() == before
    connection.commit()
    assert settings() == before


@pytest.mark.parametrize(
    "factory", [sqlite3.Row, lambda cursor, row: list(reversed(row))], ids=["Row", "own"]
)
def test_the_callers_row_factory_does_not_confuse_a_bound_store(factory, once, connection):
    connection.row_factory = factory
    with connection:
        bound = once.bind(connection)
        assert [bound.first_time("key"), bound.first_time("key")] == [True, False]
    assert once.seen("key")


def test_the_callers_text_factory_does_not_confuse_a_bound_store(once, connection):
    connection.text_factory = bytes
    with suppress(ValueError):
        once.process(lambda _: int("not a number"), "message", key="key", type="order")
    with connection:
        once.bind(connection).process(lambda message: "ok", "message", key="key")
    assert once.peek("key").type == "order"


@pytest.mark.parametrize("level", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_of_a_transaction_will_do(level, once, connection):
    connection.isolation_level = level
    with connection:
        assert once.bind(connection).first_time("key")
    assert once.seen("key")


def test_a_transaction_begun_by_hand_will_do(once, connection):
    connection.isolation_level = None
    connection.execute("BEGIN")
    assert once.bind(connection).first_time("key")
    connection.execute("COMMIT")
    assert once.seen("key")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_autocommit_connection_is_refused(kind, store, connection):
    connection.isolation_level = None
    bind = store.bind if kind == "sync" else AsyncSqliteStore(store._path).bind
    with pytest.raises(ConfigurationError, match="autocommit"):
        bind(connection)


def test_a_savepoint_takes_the_mark_back_with_the_effect(once, connection):
    with connection:
        connection.execute("INSERT INTO effects VALUES ('kept')")
        connection.execute("SAVEPOINT one")
        assert once.bind(connection).first_time("key")
        connection.execute("ROLLBACK TO one")
    assert not once.seen("key")


def test_a_snapshot_grown_old_is_refused_and_the_whole_transaction_can_be_retried(once, connection):
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM effects").fetchall()
    once.first_time("other")  # another writer commits: what the caller has read is old now
    with pytest.raises(StoreUnavailable) as refused:
        once.bind(connection).first_time("key")
    assert refused.value.unknown is False
    connection.rollback()
    with connection:
        assert once.bind(connection).first_time("key")


def test_a_bound_call_on_a_locked_file_is_unavailable_and_marks_nothing(once, connection, lock):
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        once.bind(connection).first_time("key")
    lock.rollback()
    connection.rollback()
    assert not once.seen("key")


@pytest.mark.parametrize("other", [":memory:", "other.db"])
def test_a_connection_to_another_database_is_refused_by_name(other, store, path):
    with closing(sqlite3.connect(path.parent / other if other != ":memory:" else other)) as elsewhere:
        with pytest.raises(ConfigurationError, match="memory" if other == ":memory:" else "other.db"):
            store.bind(elsewhere)
        elsewhere.execute("ATTACH ? AS ours", (str(path),))
        with pytest.raises(ConfigurationError, match="only one file"):
            store.bind(elsewhere)


def test_the_same_file_by_another_name_is_the_same_file(once, path):
    link = path.parent / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(link)) as connection, connection:
        assert once.bind(connection).first_time("key")
        connection.commit()
    assert once.seen("key")


def test_a_leased_claim_completes_in_the_transaction_of_its_effect(once, connection, path):
    with once.claim("key") as claim:
        with connection:
            connection.execute("INSERT INTO effects VALUES ('key')")
            once.bind(connection).complete(claim.claim, "paid")
        assert (effects(path), once.seen("key")) == (1, True)
    with once.claim("key") as again:
        assert (again.fresh, again.result) == (False, "paid")


def test_a_lost_claim_rolls_its_effect_back(once, connection, path, clock):
    def late(message: str) -> None:
        clock.advance(LEASE)
        assert once.process(lambda _: "taken over", message, key="key").attempt == 2
        with connection:
            connection.execute("INSERT INTO effects VALUES ('late')")
            once.bind(connection).complete(current_claim(), "late")

    with pytest.raises(LeaseLost, match="roll back"):
        once.process(late, "message", key="key")
    assert effects(path) == 0
    assert once.process(late, "message", key="key").result == "taken over"


def test_an_async_engine_binds_a_connection_of_its_own_thread(path):
    async def scenario() -> list[bool]:
        async with AsyncOnce(url(path), group="group") as once:
            with closing(sqlite3.connect(path)) as connection:
                with connection:
                    first = await once.bind(connection).first_time("key")
                connection.execute("BEGIN")
                await once.bind(connection).first_time("other")
                connection.rollback()
            return [first, await once.seen("key"), await once.seen("other")]

    assert asyncio.run(scenario()) == [True, True, False]


# --- the short cuts, and what they must not cut off -------------------------------------------


def test_a_single_claim_and_completion_wait_for_another_writer(path, lock):
    with closing(SqliteStore(path, timeout=10)) as opened:
        claim(opened, key=RecordId("group", "", "before"))  # so that the group is known
        for call in (claim, complete):
            lock.execute("BEGIN IMMEDIATE")
            threading.Timer(0.1, lock.rollback).start()  # longer than SQLite itself waits here
            assert call(opened)
        assert peek(opened).state is State.PROCESSED


@pytest.mark.parametrize("verb", ["claim", "renew"])
def test_time_is_read_once_the_lock_is_ours(verb, path, lock, clock):
    with closing(SqliteStore(path, timeout=10, clock=clock)) as opened:
        claim(opened)
        before = clock()
        lock.execute("BEGIN IMMEDIATE")

        def later() -> None:
            clock.advance(5)
            lock.rollback()

        threading.Timer(0.1, later).start()
        if verb == "renew":
            opened.renew([Renewal(KEY, b"ours", LEASE, WINDOW)])
            assert peek(opened).lease_until == before + 5 + LEASE
        else:
            ids = [RecordId("group", "", name) for name in "ab"]
            opened.claim([ClaimRequest(record_id, b"ours", LEASE, WINDOW) for record_id in ids])
            assert peek(opened, ids[0]).lease_until == before + 5 + LEASE


def test_a_duplicate_is_answered_although_another_writes(path, lock):
    with closing(SqliteStore(path, timeout=0.2)) as opened:
        claim(opened)
        complete(opened, result=b"done")
        lock.execute("BEGIN IMMEDIATE")
        assert claim(opened, b"other").result == b"done"
        lock.rollback()


def test_purge_spares_what_was_claimed_again_since_it_looked(store, path, clock, monkeypatch):
    store.mark_seen([Mark(KEY, 1.0)])
    clock.advance(2)
    look = store._find_expired

    def look_then_lose(limit: int) -> Any:
        found = look(limit)
        with closing(SqliteStore(path, clock=clock)) as other:
            claim(other, b"theirs")
        return found

    monkeypatch.setattr(store, "_find_expired", look_then_lose)
    assert store.purge() == 0
    assert peek(store).state is State.CLAIMED


def test_purge_in_small_steps_comes_round_to_what_expired_behind_it(store, clock):
    marks = [Mark(RecordId("group", "", f"key-{number}"), 1.0) for number in range(50)]
    store.mark_seen(marks[:25])
    clock.advance(2)
    purged = sum(store.purge(limit=1) for _ in range(20))
    store.mark_seen(marks[25:])
    clock.advance(2)
    while step := store.purge(limit=3):
        purged += step
    assert (purged, store.stats().expired) == (50, 0)


def test_a_group_of_a_transaction_that_was_rolled_back_is_not_remembered(path, clock):
    class Refusing(Rules):
        def claim(self, *args: Any) -> Any:
            raise KeyboardInterrupt

    with closing(SqliteStore(path, clock=clock)) as first:
        claim(first)
    with closing(SqliteStore(path, clock=clock, rules=Refusing())) as opened:
        new = RecordId("never seen", "", "key")
        with pytest.raises(KeyboardInterrupt):
            opened.claim([ClaimRequest(i, b"other", LEASE, WINDOW) for i in (new, KEY)])
        opened.mark_seen([Mark(new, WINDOW)])
        assert set(opened.stats().groups) == {"group", "never seen"}


def test_counting_waits_for_nobody(store):
    claim(store)
    with store._lock:  # as while a call is under way
        assert store.stats().records == 1


def test_after_a_fork_two_engines_share_one_new_connection(path):
    store = SqliteStore(path)
    engines = [Once(store, group="a"), Once(store, group="b")]
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        connections = []
        for engine in engines:
            engine.first_time("k")
            connections.append(store._connection)
        good = connections[0] is connections[1] and len(store._inherited) == 1
        os.write(writer, b"good" if good else b"bad")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"good"
    os.close(reader)
    os.close(writer)
    assert [engine.first_time("k") for engine in engines] == [False, False]
    store.close()
