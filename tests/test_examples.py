"""The examples run, again and again, print what their comments say, and leave nothing behind."""

from __future__ import annotations

import ast
import re

import pytest

from tests.snippets import ROOT, run_python, said_output

FOLDER = ROOT / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
MODES = ["leased", "transactional", "filter", "any"]

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@each_example
def test_an_example_prints_what_its_comments_say_and_leaves_nothing_behind(example, tmp_path):
    said = said_output(example.read_text())
    assert said
    for _ in range(2):
        result = run_python(str(example), directory=tmp_path, TMPDIR=str(tmp_path))
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.splitlines() == said
        assert list(tmp_path.iterdir()) == []


@each_example
def test_an_example_says_in_three_lines_what_it_shows_and_how_to_run_it(example):
    what, _, mode, how = (ast.get_docstring(ast.parse(example.read_text())) or "").splitlines()
    assert what.endswith(".")
    assert mode.lower().startswith(f"{_rows()[example.name][1]} mode")
    assert how == f"Run it: python examples/{example.name}"


def test_the_table_lists_the_examples_there_are():
    rows = _rows()
    assert sorted(rows) == [example.name for example in EXAMPLES]
    assert all(mode in MODES for _, mode, _ in rows.values())


def _rows() -> dict[str, list[str]]:
    """What is shown, the mode and the promise, by file."""
    rows = re.findall(r"^\| \[(.*?)\]\((.*?)\) \|(.*)\|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert all(name == target for name, target, _ in rows)
    return {name: [cell.strip() for cell in cells.split("|")] for name, _, cells in rows}
