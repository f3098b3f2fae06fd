"""Records in a SQLite file: durable, shared by the processes of one host, transactional with ``bind``.

Every verb is one short write transaction: ``BEGIN IMMEDIATE``, look at the clock, decide by
``rules.py``, ``COMMIT``. The data model is in ``sqlite.sql``, the statements in ``sqlite_plans.py``.

Time is the host's wall clock, which all processes on the host share. A jump forward ends leases and
windows early (a handler may run again); a jump backward makes them last longer (a retry waits).

Durability: WAL with ``synchronous=normal`` survives ``kill -9`` at any moment; the last commits
before a power loss may be gone. ``?synchronous=full`` survives that too, at one fsync per commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from onceonly.errors import ConfigurationError, OnceonlyError, StoreClosed, StoreUnavailable
from onceonly.protocols import Clock
from onceonly.stores.rules import Rules
from onceonly.stores.sqlite_plans import Plans, claim_new, complete_ours
from onceonly.types import (
    EVERY_STATE,
    Capabilities,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Mark,
    Query,
    ReadWindows,
    Record,
    RecordId,
    Release,
    Renewal,
    State,
    Stats,
    StoredWindow,
)

A = TypeVar("A")
T = TypeVar("T")

_SCHEMA_VERSION = 1
_PAGE_BYTES = 2048  # a commit writes whole pages, and most change one row; only a new file can choose
_CHECKPOINT_BYTES = 64 * 2**20  # of log; the default of 4 MB rewrites hot pages too often
_BULK_PAGE_BYTES = 8192  # where a commit changes many rows of each page
_BULK_CHECKPOINT_BYTES = 256 * 2**20
_CLOSE_PATIENCE = 1.0  # seconds
_GLIMPSE = 0.02  # seconds that SQLite itself waits for another writer; then we do
_BUSY_PAUSE = 0.005
_PURGE_BATCH = 1000  # rows per write transaction, so that nobody waits long for the lock
_AUTOCOMMIT = (
    "this connection is in autocommit mode: outside a transaction bind() would silently be "
    "a filter. Open it without isolation_level=None, or execute BEGIN first"
)


class SqliteStore:
    """A store in one SQLite file, for any number of threads and processes on one host.

    ``bulk`` suits marks in batches of 100,000 and more; leased messages do better without.
    """

    capabilities = Capabilities(
        durable=True, shared=True, transactional=True, server_clock=False, native_ttl=False
    )

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 5.0,
        synchronous: str = "normal",
        create: bool = True,
        bulk: bool = False,
        clock: Clock = time.time,
        rules: Rules | None = None,
    ) -> None:
        if synchronous not in ("normal", "full"):
            msg = f"synchronous={synchronous!r} must be 'normal' or 'full'"
            raise ConfigurationError(msg)
        self._path = Path(path).resolve()
        self._timeout = timeout
        self._synchronous = synchronous
        self._create = create
        self._bulk = bulk
        self._clock = clock
        self._rules = rules or Rules()
        self._groups: dict[str, int] = {}
        self._purged_to = b""
        self._inherited: list[sqlite3.Connection] = []
        self._open()

    # --- verbs --------------------------------------------------------------------------------

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._write(Plans.mark_seen, marks)

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        if len(requests) == 1:
            request = requests[0]
            answer = self._at_once(claim_new, request) or self._read(lambda plans: plans.done(request))
            if answer is not None:
                return [answer]
        return self._write(Plans.claim, requests)

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        if len(completions) == 1:
            done = self._at_once(complete_ours, completions[0])
            if done is not None:
                return [done]
        return self._write(Plans.complete, completions)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._write(Plans.release, releases)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return self._write(Plans.renew, renewals)

    def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return self._read(lambda plans: plans.peek(ids))

    def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return self._write(lambda plans, chosen: plans.forget(chosen, force=force, only=only), ids)

    def purge(self, *, limit: int = 10_000) -> int:
        """Look for expired rows on a connection of its own, then delete them in short transactions."""
        expired = self._find_expired(limit)
        batches = range(0, len(expired), _PURGE_BATCH)
        return sum(self._write(Plans.delete_expired, expired[i : i + _PURGE_BATCH]) for i in batches)

    def stats(self) -> Stats:
        return self._read_apart(Plans.stats)

    def find(self, query: Query) -> list[Record]:
        return self._read_apart(lambda plans: plans.find(query))

    def revoke(self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False) -> list[bool]:
        return self._write(lambda plans, s: plans.revoke(s, force=force, afresh=afresh), shown)

    def groups(self) -> list[str]:
        return self._read(Plans.groups)

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._read(lambda plans: plans.windows(requests))

    def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        self._write(Plans.set_window, (group, type, window))

    def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return self._write(Plans.clear_window, (group, type))

    def bind(self, connection: object) -> BoundSqliteStore:
        return BoundSqliteStore(connection, self._path, self._clock, self._rules)

    def close(self) -> None:
        """Wait for a call under way, but not for ever: its connection is then left to its end."""
        if self._lock.acquire(timeout=_CLOSE_PATIENCE):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """Leave the parent's connection alone: closing it here would touch the parent's files."""
        if self._pid != os.getpid():  # else another engine on this store was first
            self._inherited.append(self._connection)  # kept, so that it is never closed in this process
            self._open()

    # --- connection ---------------------------------------------------------------------------

    @property
    def files(self) -> list[Path]:
        """The file, and those that SQLite keeps beside it. Nobody else may write to them."""
        return [self._path, *(self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))]

    def _open(self) -> None:
        self._lock = threading.Lock()
        try:
            self._connection = self._connect()
            self._cursor = self._connection.cursor()
            self._begin = partial(self._cursor.execute, "BEGIN IMMEDIATE")
            self._prepare()
        except sqlite3.Error as error:
            raise _cannot_open(error, self._path, create=self._create) from error
        self._pid = os.getpid()  # last: a child that failed here must try again, not use its parent's

    def connect(self) -> sqlite3.Connection:
        """A connection to this file, with this store's settings, for ``bind``. You write BEGIN and COMMIT."""
        connection = self._connect()
        self._tune(connection.execute)
        return connection

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if self._create else "rw"
        place = f"{self._path.as_uri()}?mode={mode}"
        return sqlite3.connect(
            place, uri=True, timeout=_GLIMPSE, isolation_level=None, check_same_thread=False
        )

    def _prepare(self) -> None:
        execute = self._connection.execute
        self._refuse_foreign()
        execute(f"PRAGMA page_size={_BULK_PAGE_BYTES if self._bulk else _PAGE_BYTES}")
        self.patiently(lambda: execute("PRAGMA journal_mode=WAL"))
        self._tune(execute)
        tables = "SELECT 1 FROM sqlite_master WHERE name = 'onceonly_windows'"  # the youngest of them
        if execute(tables).fetchone() is None:
            script = files("onceonly.stores").joinpath("sqlite.sql").read_text()
            create = f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;"
            self.patiently(lambda: self._connection.executescript(create))
        version = execute("SELECT value FROM onceonly_meta WHERE name = 'schema'").fetchone()
        if version != (_SCHEMA_VERSION,):
            msg = (
                f"{self._path} has schema version {version and version[0]}, this onceonly needs "
                f"{_SCHEMA_VERSION}: use the release that wrote the file, or a new file"
            )
            raise ConfigurationError(msg)

    def _tune(self, execute: Callable[[str], sqlite3.Cursor]) -> None:
        (page_bytes,) = execute("PRAGMA page_size").fetchone()
        execute(f"PRAGMA synchronous={self._synchronous}")
        checkpoint_bytes = _BULK_CHECKPOINT_BYTES if self._bulk else _CHECKPOINT_BYTES
        execute(f"PRAGMA wal_autocheckpoint={checkpoint_bytes // page_bytes}")
        execute("PRAGMA cache_size=-65536")

    def _refuse_foreign(self) -> None:
        """Who only looks must not change a database that never held a table of ours, not even its mode."""
        if self._create:
            return
        ours = "SELECT 1 FROM sqlite_master WHERE name = 'onceonly_meta'"
        if self.patiently(lambda: self._connection.execute(ours).fetchone()) is None:
            msg = f"{self._path} is a SQLite database, but no onceonly store: check the path"
            raise ConfigurationError(msg)

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Until no other writer is in the way, or the timeout is over."""
        give_up = 0.0
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                now = time.monotonic()
                give_up = give_up or now + self._timeout
                if not _is_busy(error) or now >= give_up:
                    raise
                time.sleep(_BUSY_PAUSE)

    def _at_once(
        self, statement: Callable[[sqlite3.Cursor, A, float, Mapping[str, int]], T], request: A
    ) -> T | None:
        """The usual case in one statement, without BEGIN and COMMIT around it. None: it is another case,
        or somebody else is writing. It waits for a glimpse at most, so its time is no older."""
        with self._lock:
            try:
                return statement(self._cursor, request, self._clock(), self._groups)
            except sqlite3.Error as error:
                if _is_busy(error):
                    return None
                raise _unavailable(error, self._path) from error

    def _write(self, plan: Callable[[Plans, A], T], argument: A) -> T:
        """One write transaction; the clock is read once the lock is ours."""
        with self._lock:
            cursor = self._cursor
            try:
                self.patiently(self._begin)
                plans = Plans(cursor, self._clock(), self._groups, self._rules)
                answer = plan(plans, argument)
                cursor.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo()
                raise _unavailable(error, self._path) from error
            except BaseException:
                self._undo()
                raise
            self._groups.update(plans.learned)
            return answer

    def _read(self, plan: Callable[[Plans], T]) -> T:
        with self._lock:
            try:
                return self.patiently(
                    lambda: plan(Plans(self._cursor, self._clock(), self._groups, self._rules))
                )
            except sqlite3.Error as error:
                raise _unavailable(error, self._path) from error

    def _read_apart(self, plan: Callable[[Plans], T]) -> T:
        """On a connection of its own, so that nobody waits for it."""
        try:
            with closing(self._connect()) as reader:
                plans = Plans(reader.cursor(), self._clock(), {}, self._rules)
                return self.patiently(lambda: plan(plans))
        except sqlite3.Error as error:
            raise _unavailable(error, self._path) from error

    def _undo(self) -> None:
        with suppress(sqlite3.Error):  # a closed connection has nothing to roll back
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _find_expired(self, limit: int) -> list[bytes]:
        try:
            scanner = self._connect()
            try:
                found = Plans.scan_expired(scanner, self._clock(), self._purged_to, limit)
                if len(found) < limit and self._purged_to:
                    self._purged_to = b""
                    found += Plans.scan_expired(scanner, self._clock(), b"", limit - len(found))
            finally:
                scanner.close()
        except sqlite3.Error as error:
            raise _unavailable(error, self._path) from error
        self._purged_to = found[-1] if len(found) == limit else b""
        return found


class BoundSqliteStore:
    """The verbs of :class:`SqliteStore` on the caller's connection, in the caller's transaction."""

    def __init__(self, connection: object, path: Path, clock: Clock, rules: Rules) -> None:
        self._connection = _check_connection(connection, path)
        self._path = path
        self._clock = clock
        self._rules = rules

    def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._run(lambda plans: plans.mark_seen(marks, refuse_live_claims=True))

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._run(lambda plans: plans.claim(requests))

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._run(lambda plans: plans.complete(completions, refuse_lost=True))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._run(lambda plans: plans.release(releases))

    def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._run(lambda plans: plans.windows(requests))

    def _run(self, plan: Callable[[Plans], T]) -> T:
        try:
            cursor = self._connection.cursor()
            cursor.row_factory = None  # the caller's row factory is not for us
            # Opens the caller's implicit transaction and takes the write lock, so that what we
            # read next cannot change before what we write.
            cursor.execute("DELETE FROM onceonly_meta WHERE 0")
            if not self._connection.in_transaction:  # the caller's own BEGIN is over by now
                raise ConfigurationError(_AUTOCOMMIT)
            return plan(Plans(cursor, self._clock(), {}, self._rules))
        except sqlite3.Error as error:
            raise _unavailable(error, self._path) from error


class AsyncSqliteStore:
    """:class:`SqliteStore` behind ``await``: one thread does all the work, in order."""

    capabilities = SqliteStore.capabilities

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 5.0,
        synchronous: str = "normal",
        create: bool = True,
        clock: Clock = time.time,
        rules: Rules | None = None,
    ) -> None:
        self._store = SqliteStore(
            path, timeout=timeout, synchronous=synchronous, create=create, clock=clock, rules=rules
        )
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="onceonly-sqlite")
        self._pid = os.getpid()

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return await self._do(self._store.mark_seen, marks)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return await self._do(self._store.claim, requests)

    async def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return await self._do(self._store.complete, completions)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        return await self._do(self._store.release, releases)

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return await self._do(self._store.renew, renewals)

    async def peek(self, ids: Sequence[RecordId]) -> list[Record | None]:
        return await self._do(self._store.peek, ids)

    async def forget(
        self, ids: Sequence[RecordId], *, force: bool = False, only: Collection[State] = EVERY_STATE
    ) -> list[bool]:
        return await self._do(lambda i: self._store.forget(i, force=force, only=only), ids)

    async def purge(self, *, limit: int = 10_000) -> int:
        return await asyncio.to_thread(self._store.purge, limit=limit)  # beside the writer: it may take long

    async def stats(self) -> Stats:
        return await asyncio.to_thread(self._store.stats)

    async def find(self, query: Query) -> list[Record]:
        return await asyncio.to_thread(self._store.find, query)

    async def revoke(
        self, shown: Sequence[Record], *, force: bool = False, afresh: bool = False
    ) -> list[bool]:
        return await self._do(lambda s: self._store.revoke(s, force=force, afresh=afresh), shown)

    async def groups(self) -> list[str]:
        return await self._do(lambda _: self._store.groups(), None)

    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return await self._do(self._store.windows, requests)

    async def set_window(self, group: str, type: str | None, window: float | None) -> None:  # noqa: A002
        await self._do(lambda args: self._store.set_window(*args), (group, type, window))

    async def clear_window(self, group: str, type: str | None) -> bool:  # noqa: A002
        return await self._do(lambda args: self._store.clear_window(*args), (group, type))

    def bind(self, connection: object) -> AsyncBoundSqliteStore:
        return AsyncBoundSqliteStore(self._store.bind(connection))

    async def close(self) -> None:
        with suppress(StoreClosed):
            closed = self._do(lambda _: self._store.close(), None)
            await asyncio.wait([closed], timeout=_CLOSE_PATIENCE)
        self._writer.shutdown(wait=False)

    def after_fork(self) -> None:
        self._store.after_fork()
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="onceonly-sqlite")

    def _do(self, verb: Callable[[A], T], argument: A) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._writer, verb, argument)
        except RuntimeError as error:  # its thread has been sent home
            msg = "this SQLite store was closed"
            raise StoreClosed(msg) from error


class AsyncBoundSqliteStore:
    """:class:`BoundSqliteStore` for async code. A ``sqlite3.Connection`` belongs to the caller's
    thread, so its statements run right there."""

    def __init__(self, bound: BoundSqliteStore) -> None:
        self._bound = bound

    async def mark_seen(self, marks: Sequence[Mark]) -> list[bool]:
        return self._bound.mark_seen(marks)

    async def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        return self._bound.claim(requests)

    async def complete(self, completions: Sequence[Completion]) -> list[bool]:
        return self._bound.complete(completions)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        return self._bound.release(releases)

    async def windows(self, requests: Sequence[ReadWindows]) -> list[list[StoredWindow]]:
        return self._bound.windows(requests)


def _check_connection(connection: object, path: Path) -> sqlite3.Connection:
    if not isinstance(connection, sqlite3.Connection):
        kind = type(connection).__name__
        msg = f"bind() on a sqlite:/// store takes a sqlite3.Connection, not {kind}"
        raise ConfigurationError(msg)
    legacy_autocommit = connection.isolation_level is None and not connection.in_transaction
    if legacy_autocommit or getattr(connection, "autocommit", -1) is True:
        raise ConfigurationError(_AUTOCOMMIT)
    cursor = connection.cursor()
    cursor.row_factory = None
    listed = cursor.execute("SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'")
    main = os.fsdecode(listed.fetchone()[0] or b"")  # as a BLOB, for the caller may have a text_factory
    if not main or Path(main).resolve() != path:
        msg = (
            f"this connection is to {main or 'a database in memory'}, the store to {path}: "
            "only one file can commit both together"
        )
        raise ConfigurationError(msg)
    return connection


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _cannot_open(error: sqlite3.Error, path: Path, *, create: bool) -> OnceonlyError:
    if not path.parent.is_dir():
        return ConfigurationError(f"there is no directory {path.parent} for the SQLite file {path.name}")
    if not create and not path.exists():
        return ConfigurationError(f"there is no SQLite file {path}: check the path")
    if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
        return ConfigurationError(f"{path} is not a SQLite database")
    return _unavailable(error, path)


def _unavailable(error: sqlite3.Error, path: Path) -> StoreUnavailable:
    """Everything a SQLite call can raise means: not done, ask later. A failed commit rolls back."""
    hint = ""
    if _is_busy(error):
        hint = (
            " (another writer held it for longer than the timeout; "
            "if that is your own open transaction, use once.bind(connection))"
        )
    kind = StoreClosed if "closed database" in str(error) else StoreUnavailable
    return kind(f"SQLite at {path}: {error}{hint}")
