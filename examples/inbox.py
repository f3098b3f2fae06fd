"""Book transfers, each once, in the database that also holds the records, even if we die at the worst moment.

Transactional mode: the record of a message commits, or rolls back, together with the rows.
Run it: python examples/inbox.py
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from typing import TypedDict

from onceonly import Once

SCHEMA = """
CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
INSERT INTO accounts VALUES ('ann', 10000), ('bob', 0);
"""


class Transfer(TypedDict):
    id: str
    giver: str
    taker: str
    cents: int


class Crash(Exception):
    """Stands in for the end of the process."""


def book(once: Once, connection: sqlite3.Connection, transfer: Transfer) -> None:
    """The transaction is the caller's."""
    if once.bind(connection).first_time(transfer["id"]):
        connection.execute("UPDATE accounts SET cents = cents - :cents WHERE name = :giver", transfer)
        connection.execute("UPDATE accounts SET cents = cents + :cents WHERE name = :taker", transfer)


def balances(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, cents FROM accounts"))


def deliver(once: Once, connection: sqlite3.Connection) -> None:
    transfer: Transfer = {"id": "t-1", "giver": "ann", "taker": "bob", "cents": 2500}
    with suppress(Crash), connection:
        book(once, connection, transfer)
        print("before the commit:", balances(connection))  # before the commit: {'ann': 7500, 'bob': 2500}
        raise Crash
    print("after the crash:", balances(connection))  # after the crash: {'ann': 10000, 'bob': 0}

    for _ in range(2):  # nobody acknowledged it, so it comes again; and then once too often
        with connection:
            book(once, connection, transfer)
    print("delivered twice more:", balances(connection))  # delivered twice more: {'ann': 7500, 'bob': 2500}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/bank.db"
        with (
            Once(f"sqlite:///{path}", group="ledger", window="payment") as once,
            closing(sqlite3.connect(path)) as connection,
        ):
            connection.executescript(SCHEMA)
            deliver(once, connection)


if __name__ == "__main__":
    main()
