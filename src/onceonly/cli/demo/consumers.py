"""Three ways to handle a payment: the textbook's, and ours in its two modes."""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from onceonly import InFlight, Once, current_claim
from onceonly.cli.demo.faults import Faults, append, lines
from onceonly.cli.demo.judge import Effect
from onceonly.cli.demo.plan import LEASE, Payment, Step
from onceonly.stores.sqlite import SqliteStore
from onceonly.types import Acquired, ClaimAnswer, ClaimRequest, Completion

_BUSY = 30.0  # seconds to wait for SQLite's write lock


class Consumer(ABC):
    """Made once by the courier to prepare its files, and again by every worker after the fork."""

    name: str

    def __init__(self, directory: Path, faults: Faults) -> None:
        self.directory = directory
        self.faults = faults

    @abstractmethod
    def prepare(self) -> None:
        """Create the files, and leave nothing open for a fork to inherit."""

    @abstractmethod
    def connect(self) -> None:
        """In the worker, before its first message."""

    @abstractmethod
    def handle(self, payment: Payment) -> float | None:
        """None: acknowledge it. A number: deliver it again after so many seconds."""

    @abstractmethod
    def effects(self) -> list[Effect]:
        """The ledger."""

    def work(self, payment: Payment) -> None:
        """The part of the handler that comes before its effect."""
        self.faults.reach(payment.id, Step.EFFECT_BEGUN)
        if payment.slow:
            self.faults.work_slowly(payment.id)


class _FileLedger(Consumer):
    """Effects go to a file that no store can see: it stands for a payment provider."""

    @property
    def _ledger(self) -> Path:
        return self.directory / "ledger.log"

    def effects(self) -> list[Effect]:
        return [Effect(e["message"], e["amount"], e["pid"]) for e in lines(self._ledger)]

    def charge(self, payment: Payment) -> None:
        """The handler."""
        self.work(payment)
        claim = current_claim()
        entry = {"message": payment.id, "account": payment.account, "amount": payment.amount}
        append(self._ledger, {**entry, "pid": os.getpid(), "fence": claim and claim.fence})
        self.faults.reach(payment.id, Step.EFFECT_DONE)


class Textbook(_FileLedger):
    """``process_if_new``: SET key NX EX ttl, then the handler; on an exception DEL key.

    Redis is played by a SQLite table, so that all three consumers run on the same disk.
    """

    name = "textbook"

    def prepare(self) -> None:
        with closing(self._open()) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE marks (key TEXT PRIMARY KEY, expires REAL) WITHOUT ROWID")

    def connect(self) -> None:
        self._connection = self._open()
        self._connection.execute("PRAGMA synchronous=normal")

    def handle(self, payment: Payment) -> None:
        if self._is_duplicate(payment.id):
            return
        try:
            self.faults.reach(payment.id, Step.CLAIMED)
            self.charge(payment)
            self.faults.reach(payment.id, Step.COMPLETED)
        except Exception:
            self._connection.execute("DELETE FROM marks WHERE key = ?", (payment.id,))
            raise

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.directory / "marks.db", timeout=_BUSY, isolation_level=None)

    def _is_duplicate(self, key: str) -> bool:
        now = time.time()
        was_set = self._connection.execute(
            "INSERT INTO marks VALUES (?, ?) ON CONFLICT (key) "
            "DO UPDATE SET expires = excluded.expires WHERE expires <= ?",
            (key, now + LEASE, now),
        )
        return was_set.rowcount == 0


class _KillingStore(SqliteStore):
    """A store whose caller may die right after a claim or a completion took effect."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path, timeout=_BUSY)
        self._faults = faults

    def claim(self, requests: Sequence[ClaimRequest]) -> list[ClaimAnswer]:
        answers = super().claim(requests)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Acquired):
                self._faults.reach(request.id.key, Step.CLAIMED)
        return answers

    def complete(self, completions: Sequence[Completion]) -> list[bool]:
        answers = super().complete(completions)
        for completion, done in zip(completions, answers, strict=True):
            if done:
                self._faults.reach(completion.id.key, Step.COMPLETED)
        return answers


class Leased(_FileLedger):
    """Claim, handler, complete: the default, for effects outside your database."""

    name = "onceonly-leased"

    def prepare(self) -> None:
        SqliteStore(self.directory / "once.db").close()

    def connect(self) -> None:
        store = _KillingStore(self.directory / "once.db", self.faults)
        self._once = Once(store, group="billing", window="24h", lease=LEASE)

    def handle(self, payment: Payment) -> float | None:
        outcome = self._once.process(self.charge, payment, key=payment.id)
        return None if outcome.ack else outcome.retry_after


class Transactional(Consumer):
    """The record commits with the effects, in one SQLite file."""

    name = "onceonly-transactional"

    def prepare(self) -> None:
        SqliteStore(self._path).close()
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("CREATE TABLE ledger (message TEXT, account TEXT, amount INT, pid INT)")
            connection.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, cents INT)")

    def connect(self) -> None:
        self._once = Once(SqliteStore(self._path), group="billing", window="24h", lease=LEASE)
        self._connection = sqlite3.connect(self._path, timeout=_BUSY)
        self._connection.execute("PRAGMA synchronous=normal")

    def handle(self, payment: Payment) -> float | None:
        try:
            with self._connection:  # commits, or rolls back
                if not self._once.bind(self._connection).first_time(payment.id):
                    return None
                self.faults.reach(payment.id, Step.CLAIMED)
                self.charge(payment)
        except InFlight as error:
            return error.retry_after
        self.faults.reach(payment.id, Step.COMPLETED)
        return None

    def charge(self, payment: Payment) -> None:
        """The handler: a ledger row and a balance."""
        self.work(payment)
        row = (payment.id, payment.account, payment.amount, os.getpid())
        self._connection.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", row)
        self._connection.execute(
            "INSERT INTO balances VALUES (?, ?) "
            "ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
            (payment.account, payment.amount),
        )
        self.faults.reach(payment.id, Step.EFFECT_DONE)

    def effects(self) -> list[Effect]:
        with closing(sqlite3.connect(self._path)) as connection:
            rows = connection.execute("SELECT message, amount, pid FROM ledger").fetchall()
            (balance,) = connection.execute("SELECT coalesce(sum(cents), 0) FROM balances").fetchone()
        if balance != sum(amount for _, amount, _ in rows):
            msg = "the balances do not add up to the ledger: a transaction was torn"
            raise RuntimeError(msg)
        return [Effect(*row) for row in rows]

    @property
    def _path(self) -> Path:
        return self.directory / "business.db"


CONSUMERS: tuple[type[Consumer], ...] = (Textbook, Leased, Transactional)
