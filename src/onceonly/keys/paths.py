"""The singular queries of RFC 9535: ``$.a.b``, ``$['a b'][0]``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from onceonly.errors import ConfigurationError
from onceonly.keys.checking import shown

Path = tuple[str | int, ...]

MISSING = object()

_NAME = r"A-Za-z_\u0080-\uD7FF\uE000-\U0010FFFF"
_SEGMENT = re.compile(
    rf"""[ \t\n\r]*(?:
        \.(?P<name>[{_NAME}][0-9{_NAME}]*)
      | \[[ \t\n\r]*(?:
            (?P<index>0|-?[1-9][0-9]{{0,14}})
          | '(?P<single>(?:[^'\\\x00-\x1f]|\\[^"])*)'
          | "(?P<double>(?:[^"\\\x00-\x1f]|\\[^'])*)"
        )[ \t\n\r]*\]
    )""",
    re.VERBOSE,
)
_QUOTING = re.compile(r'\\(.)|"')


def parse_path(text: str) -> Path:
    path: list[str | int] = []
    position = 1
    while position < len(text):
        match = _SEGMENT.match(text, position)
        if match is None:
            raise _bad_path(text, position)
        path.append(_part(match, text))
        position = match.end()
    return tuple(path)


def _part(match: re.Match[str], text: str) -> str | int:
    if match["name"] is not None:
        return match["name"]
    if match["index"] is not None:
        return int(match["index"])
    quoted = match["double"] if match["single"] is None else _QUOTING.sub(_requote, match["single"])
    try:
        name = cast("str", json.loads(f'"{quoted}"'))
        name.encode()
    except ValueError:
        raise _bad_path(text, match.start()) from None
    return name


def _requote(match: re.Match[str]) -> str:
    """One escape or double quote of a single-quoted name, as a JSON string writes it."""
    if match[0] == '"':
        return '\\"'
    return "'" if match[1] == "'" else match[0]


def _bad_path(text: str, position: int) -> ConfigurationError:
    return ConfigurationError(
        f"path {shown(text)} cannot be read at position {position}: "
        "write .name, ['any name'] or [0], and nothing that could match several places"
    )


def child(value: object, part: str | int) -> object:
    if isinstance(part, str):
        return value.get(part, MISSING) if isinstance(value, Mapping) else MISSING
    if isinstance(value, (list, tuple)) and -len(value) <= part < len(value):
        return cast("object", value[part])
    return MISSING
