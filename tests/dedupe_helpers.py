"""Runs ``onceonly dedupe`` as a user does, and as a user would not: killed at a chosen moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.commands import environment

MAIN = "from onceonly.cli.dedupe.command import dedupe; dedupe(prog_name='onceonly dedupe')"

# Kills the process just before or after the Nth call of a function, with kill -9.
KILLED = """
import os, signal, sys
import onceonly.cli.dedupe.filtering as filtering
import onceonly.cli.dedupe.outputs as outputs

where, count = sys.argv.pop(1), int(sys.argv.pop(1))
calls = 0

def due():
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)

def before(place, name):
    real = getattr(place, name)
    def wrapped(*args, **kwargs):
        due()
        return real(*args, **kwargs)
    setattr(place, name, wrapped)

def after(place, name):
    real = getattr(place, name)
    def wrapped(*args, **kwargs):
        answer = real(*args, **kwargs)
        due()
        return answer
    setattr(place, name, wrapped)

def halfway(descriptor, data):
    global calls
    calls += 1
    if calls == count:
        os.write(descriptor, bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(descriptor, data)

class Connection:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def execute(self, statement, *args):
        if statement == "COMMIT" and where == "before the commit":
            due()
        answer = self.real.execute(statement, *args)
        if statement == "COMMIT" and where == "after the commit":
            due()
        return answer

if where == "halfway through a write":
    outputs.write_all = halfway
elif where == "before the sync":
    before(os, "fdatasync")
elif where == "after the sync":
    after(os, "fdatasync")
elif where == "before the marks":
    before(filtering.Filter, "_marked")
elif where == "after the marks":
    after(filtering.Filter, "_marked")
elif where == "after the cut":
    after(os, "ftruncate")
elif where == "after the flush":
    after(filtering.Filter, "_pass_on")
else:
    real_transaction = filtering.Filter._transaction
    real_init = filtering.Filter.__init__
    from onceonly.stores.sqlite import SqliteStore
    connect = SqliteStore.connect
    SqliteStore.connect = lambda self: Connection(connect(self))
    bind = SqliteStore.bind
    SqliteStore.bind = lambda self, connection: bind(self, getattr(connection, "real", connection))

from onceonly.cli.dedupe.command import dedupe
dedupe(prog_name="onceonly dedupe")
"""

MOMENTS = (
    "before the marks",
    "after the marks",
    "halfway through a write",
    "before the sync",
    "after the sync",
    "before the commit",
    "after the commit",
    "after the cut",
)


def run(
    directory: Path, *options: str, text: str | bytes = b"", store: str = "sqlite:///store.db"
) -> subprocess.CompletedProcess[bytes]:
    return _run([sys.executable, "-W", "error", "-c", MAIN, "--store", store, *options], directory, text)


def run_killed(
    directory: Path, moment: str, count: int, *options: str, text: str | bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", KILLED, moment, str(count), "--store", "sqlite:///store.db", *options]
    return _run(command, directory, text)


def _run(command: list[str], directory: Path, text: str | bytes) -> subprocess.CompletedProcess[bytes]:
    given = text.encode() if isinstance(text, str) else text
    return subprocess.run(
        command, cwd=directory, input=given, capture_output=True, env=environment(), timeout=60, check=False
    )
