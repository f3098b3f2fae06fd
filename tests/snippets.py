"""Code in documents and examples: what it says it prints, and running it as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

_OUTPUT = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)
_PRINT = re.compile(r"^\s*print\(", re.MULTILINE)


def said_output(code: str) -> list[str]:
    """The lines that the comments beside the prints promise. Each print runs once, in the order written."""
    said = _OUTPUT.findall(code)
    assert len(said) == len(_PRINT.findall(code)), "a print without its output beside it"
    return said


def run_python(*arguments: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """With warnings as errors, and without options from the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEONLY_")}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command,
        cwd=directory,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
