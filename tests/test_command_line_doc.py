"""The sessions in docs/command-line.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess

from onceonly.cli.main import command
from tests.commands import ONCEONLY, environment
from tests.snippets import ROOT, run_python

TEXT = (ROOT / "docs" / "command-line.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

# What differs from run to run: rates, moments, distances in time, fences. Columns are as wide as those.
_VARIES = (
    (r"[\d.]+ s(, [\d,]+ lines/s)?$", "S"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MOMENT"),
    (r"\bin \d+[smhd]\b|\b\d+[smhd] ago\b|\bnow\b", "TIME"),
    (r"\b\d{16}\b", "FENCE"),
    (r" +", " "),
)


def test_every_session_shows_what_it_says(tmp_path):
    for code in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        run_python("-c", code, directory=tmp_path).check_returncode()
    ends = "printf '\\n=== end ===\\n'"
    script = [f'onceonly() {{ {" ".join(map(_quoted, ONCEONLY))} "$@" 2>&1; }}']
    script += [line for prompt in _prompts() for line in (prompt, ends)]
    done = subprocess.run(
        ["bash"],
        input="\n".join(script),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    shown = done.stdout.replace(f"{tmp_path}/", "").split("\n=== end ===\n")[:-1]
    assert len(shown) == len(_prompts()) > 15
    for prompt, output in zip(_prompts(), shown, strict=True):
        assert _steady(output) == _steady(_prompts()[prompt]), prompt


def test_every_command_and_exit_code_is_there():
    listed = re.findall(r"^\| `onceonly (\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(listed) == sorted(command.commands)
    codes = re.findall(r"^\| (\d) \|", TEXT, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5"]


def _prompts() -> dict[str, str]:
    """What is typed, and what is shown for it."""
    found: dict[str, str] = {}
    for session in SESSIONS:
        for typed in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            prompt, _, output = typed.partition("\n")
            found[prompt if prompt not in found else f"{prompt} "] = output
    return found


def _steady(output: str) -> list[str]:
    lines = output.splitlines()
    for pattern, word in _VARIES:
        lines = [re.sub(pattern, word, line).strip() for line in lines]
    return lines


def _quoted(word: str) -> str:
    return f"'{word}'"
