"""The command line. Needs the ``cli`` extra; the library does not."""

from __future__ import annotations

import sys
from importlib import import_module

_NEEDED = ("click", "rich")


def main() -> None:
    """The console script: run ``onceonly``, or say what to install."""
    this = main
    try:
        command = import_module("onceonly.cli.main").command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(f"onceonly: {error.name} is missing; install 'onceonly[cli]'\n")
        sys.exit(2)
    finally:
        globals()["main"] = this  # importing the module of that name has put itself here
    command(prog_name="onceonly")
