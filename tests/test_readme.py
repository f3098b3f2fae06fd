"""What the documents say is true: snippets run, tables match the code, names and links exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import pytest

from onceonly import settings
from onceonly.errors import ConfigurationError
from onceonly.settings import Options, resolve, store_and_group
from onceonly.stores import BACKENDS, open_store
from onceonly.testing.conformance import PROMISES, TRANSACTIONAL_PROMISES
from onceonly.windows import PRESETS
from tests.snippets import ROOT, run_python, said_output

DOCUMENTS = [path for folder in (".", "docs", "examples") for path in sorted((ROOT / folder).glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]*)\)")
_SPAN = re.compile(r"`([^`]+)`")
_PLACE = re.compile(r"([\w/]+\.py)::([\w.]+)")

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT))
)


# --- snippets ---------------------------------------------------------------------------------


class Snippet(NamedTuple):
    name: str
    code: str


def _snippets() -> Iterator[Snippet]:
    for document in DOCUMENTS:
        text = document.read_text()
        for match in _FENCE.finditer(text):
            if match[1] == "python":
                line = text.count("\n", 0, match.start()) + 2
                yield Snippet(f"{document.relative_to(ROOT)}:{line}", match[2])


@pytest.mark.parametrize("snippet", list(_snippets()), ids=lambda snippet: snippet.name)
def test_snippet_prints_what_its_comments_say(snippet, tmp_path):
    said = said_output(snippet.code)
    result = run_python("-c", snippet.code, directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.splitlines() == said


def test_the_readme_has_snippets_and_opens_with_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert len([snippet for snippet in _snippets() if snippet.name.startswith("README.md")]) >= 10
    first, second, *_ = _FENCE.findall(text)
    assert [line.split("  ")[0] for line in first[1].splitlines()] == ["make demo", "make test"]
    assert second[0] == "python"
    assert len([line for line in second[1].splitlines() if line]) <= 10


# --- tables -----------------------------------------------------------------------------------


def _table(document: str, *heads: str) -> list[list[str]]:
    """The rows of the table whose head starts with ``heads``."""
    lines = (ROOT / document).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if _cells(line)[: len(heads)] == list(heads))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(_cells(line))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _option_rows() -> dict[str, list[str]]:
    rows = _table("README.md", "option", "values", "default", "environment")
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_options_table_has_every_option_in_order():
    assert list(_option_rows()) == list(Options.__annotations__)


@pytest.mark.parametrize("name", list(Options.__annotations__))
def test_the_options_table_has_the_default(name):
    cell = _option_rows()[name][1]
    if name == "codec":
        assert cell == "JSON"
        assert type(resolve("g", {}, {}).codec).__name__ == "JsonCodec"
        return
    shown = ast.literal_eval(_SPAN.findall(cell)[0])
    if name == "lease":
        assert resolve("g", {}, {}).lease == resolve("g", {"lease": shown}, {}).lease
        assert resolve("g", {"window": "5s"}, {}).lease == 5.0
        return
    assert shown == dict(settings._DEFAULTS)[name]


@pytest.mark.parametrize("name", list(Options.__annotations__))
def test_the_options_table_has_the_choices(name):
    literals = [choice for choice in _choices(get_type_hints(Options)[name]) if isinstance(choice, str)]
    shown = [ast.literal_eval(span) for span in _SPAN.findall(_option_rows()[name][0]) if span[0] == '"']
    assert shown == literals


def _choices(hint: object) -> Iterator[object]:
    for argument in get_args(hint):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _choices(argument)


@pytest.mark.parametrize("name", list(Options.__annotations__))
def test_the_options_table_has_the_environment_variable(name):
    cell = _option_rows()[name][2]
    shown = _SPAN.findall(cell)
    twin = f"ONCEONLY_{name.upper()}"
    assert shown == ([twin] if name in settings._IN_ENVIRONMENT else []), cell
    if shown:
        with pytest.raises(ConfigurationError):
            resolve("g", {"on_in_flight": "wait"} if name == "wait_timeout" else {}, {twin: "no such thing"})
    else:
        assert resolve("g", {}, {twin: "no such thing"}).group == "g"


def test_the_readme_names_the_variables_for_store_and_group():
    text = (ROOT / "README.md").read_text()
    named = {"ONCEONLY_STORE": "memory://", "ONCEONLY_GROUP": "billing"}
    assert store_and_group(None, None, named) == ("memory://", "billing")
    assert all(f"`{name}`" in text for name in named)


def test_the_readme_has_the_presets():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert ", ".join(f"`{name}` {window}" for name, window in PRESETS.items()) in text


def test_the_stores_table_has_every_store_and_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = _table("README.md", "URL", "records live")
    urls = [_SPAN.findall(row[0])[0] for row in rows]
    assert [url.partition(":")[0] for url in urls] == list(BACKENDS)
    for url, row in zip(urls, rows, strict=True):
        with pytest.raises(ConfigurationError) as refused:
            open_store(f"{url}?no_such_option=1")
        options = str(refused.value).rpartition("it has ")[2].split(", ")
        assert [span for span in _SPAN.findall(row[-1]) if span in options] == options


# --- names and links --------------------------------------------------------------------------


@each_document
def test_links_point_to_what_exists(document):
    for target in _LINK.findall(_FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{document.name} links to {target}"
        assert file.is_relative_to(ROOT)
        assert not anchor or anchor in _anchors(file), f"{document.name} links to {target}"


def _anchors(document: Path) -> list[str]:
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", document.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


@each_document
def test_places_in_the_code_exist(document):
    """``core/flows.py::process``, under ``src/onceonly`` or the root."""
    for path, name in _PLACE.findall(document.read_text()):
        file = next((f for f in (ROOT / "src/onceonly" / path, ROOT / path) if f.exists()), None)
        assert file is not None, f"{document.name} names {path}"
        assert name in _names(file), f"{document.name} names {path}::{name}"


@cache
def _names(file: Path) -> frozenset[str]:
    return frozenset(_defined(ast.parse(file.read_text()), ""))


def _defined(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from _defined(child, f"{prefix}{child.name}.")


def test_what_the_guarantees_are_shown_by_exists():
    tests = frozenset[str]().union(*(_names(file) for file in (ROOT / "tests").glob("test_*.py")))
    promises = {promise.__name__ for promise in PROMISES + TRANSACTIONAL_PROMISES}
    shown = [span for line in _shown_by() for span in _SPAN.findall(line)]
    assert len(shown) > 50
    assert [name for name in shown if name not in tests | promises] == []


def _shown_by() -> Iterator[str]:
    """The last cells of tables whose last head is "shown by"."""
    within = False
    for line in (ROOT / "docs/guarantees.md").read_text().splitlines():
        if not line.startswith("|"):
            within = False
        elif _cells(line)[-1] == "shown by":
            within = True
        elif within:
            yield _cells(line)[-1]


@each_document
def test_no_machine_is_named(document):
    text = document.read_text()
    assert not re.search(r"(?<![\w.:/])/(work|home|root|tmp|usr|opt|var)/", text)
    assert not re.search(r"https?://[\w.]*(pypi|index|mirror|proxy)", text)
