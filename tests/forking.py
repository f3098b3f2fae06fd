"""Work in a forked child."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[[], object]) -> Any:
    """What ``work`` returned in a child process, which then dies without a word."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs must not outlive the test
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said)
