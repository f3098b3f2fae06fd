"""Keys that a consumer finds in a message: at a path, in a header, an attribute, or by a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from onceonly.errors import ConfigurationError, InvalidKey
from onceonly.keys.checking import MAX_KEY_BYTES, check_key, shown
from onceonly.keys.paths import MISSING, Path, child, parse_path

M = TypeVar("M")

_SPEC_STARTS = ("$.", "$[", "header:", "attr:")


def looks_like_spec(key: str) -> bool:
    """Is this a place to look for a key (``$.id``, ``header:…``, ``attr:…``) rather than a key?"""
    return key.startswith(_SPEC_STARTS)


def extractor(
    spec: str | Callable[[M], object], *, fallback: Callable[[M], object] | None = None
) -> Callable[[object], str]:
    """A function that finds the key in a message.

    ``spec`` is a function of the message, or one of

    - ``"$.order.id"``, ``"$.items[0]['line id']"``: one place in a mapping or list, or in text or bytes that
      are JSON (the singular queries of RFC 9535);
    - ``"header:message-id"``: a header, whatever its case, from ``message.headers``, ``message.headers()``
      or ``message["headers"]``, a mapping or (name, value) pairs; bytes are read as UTF-8;
    - ``"attr:properties.message_id"``: an attribute.

    An integer found there becomes its decimal text, so ``17`` and ``"17"`` are one key. Where the id is
    missing, None or empty (for a function: also KeyError, IndexError or AttributeError), ``fallback``
    makes the key, and without one InvalidKey says so. An id that is there but cannot be a key is
    InvalidKey always. A spec that cannot be read is a ConfigurationError now, not at the first message.
    """
    return _Extractor(_spec_name(spec), _finder(spec), _checked_fallback(fallback))


def _checked_fallback(fallback: object) -> Callable[[object], object] | None:
    if fallback is None or callable(fallback):
        return fallback
    msg = f"fallback must be a function of the message, such as content_key(...), not {fallback!r}"
    raise ConfigurationError(msg)


_FORMS = "'$.path', 'header:name', 'attr:name'"


@dataclass(frozen=True, slots=True)
class _Extractor:
    spec: str
    find: Callable[[object], object]
    fallback: Callable[[object], object] | None

    def __call__(self, message: object) -> str:
        try:
            found = self.find(message)
        except (KeyError, IndexError, AttributeError) as error:
            return self._without_id(message, error)
        if found is None or (isinstance(found, str) and not found):
            return self._without_id(message, None)
        return _id_text(found, self.spec)

    def _without_id(self, message: object, cause: Exception | None) -> str:
        if self.fallback is None:
            msg = f"{self.spec} found no id in the message; to do without, give fallback=content_key(...)"
            raise InvalidKey(msg) from cause
        return _id_text(self.fallback(message), f"fallback of {self.spec}")


def _id_text(found: object, spec: str) -> str:
    if isinstance(found, int) and not isinstance(found, bool) and found.bit_length() <= MAX_KEY_BYTES:
        return int.__repr__(found)
    try:
        return check_key(found)
    except InvalidKey as error:
        msg = f"{spec}: {error}"
        raise InvalidKey(msg) from None


def _spec_name(spec: object) -> str:
    return spec if isinstance(spec, str) else f"key function {getattr(spec, '__name__', type(spec).__name__)}"


def _finder(spec: object) -> Callable[[object], object]:
    if isinstance(spec, str):
        return _named_place(spec)
    if callable(spec):
        return cast("Callable[[object], object]", spec)
    msg = f"key must be a function or one of {_FORMS}, not {type(spec).__name__}"
    raise ConfigurationError(msg)


def _named_place(spec: str) -> Callable[[object], object]:
    if spec.startswith(("$.", "$[")):
        return _AtPath(parse_path(spec))
    kind, _, name = spec.partition(":")
    if kind == "header" and name.strip():
        return _InHeader(name.strip().lower())
    if kind == "attr" and all(part.isidentifier() for part in name.split(".")):
        return _AtAttribute(tuple(name.split(".")))
    msg = f"key={shown(spec)} must be a function or one of {_FORMS}"
    raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class _AtPath:
    path: Path

    def __call__(self, message: object) -> object:
        value = _loaded(message) if isinstance(message, (str, bytes)) else message
        for part in self.path:
            value = child(value, part)
        return None if value is MISSING else value


def _loaded(message: str | bytes) -> object:
    try:
        return cast("object", json.loads(message))
    except (ValueError, RecursionError):
        return MISSING


@dataclass(frozen=True, slots=True)
class _AtAttribute:
    names: tuple[str, ...]

    def __call__(self, message: object) -> object:
        for name in self.names:
            message = getattr(message, name, None)
        return message


@dataclass(frozen=True, slots=True)
class _InHeader:
    name: str

    def __call__(self, message: object) -> object:
        values = [value for name, value in _headers(message) if name.lower() == self.name]
        if any(value != values[0] for value in values):
            msg = f"header:{self.name} is there more than once, with different values"
            raise InvalidKey(msg)
        return values[0] if values else None


def _headers(message: object) -> Iterator[tuple[str, object]]:
    headers = getattr(message, "headers", None)
    if headers is None and isinstance(message, Mapping):
        headers = message.get("headers")
    if callable(headers):
        headers = headers()
    if headers is None:
        return
    for name, value in headers.items() if hasattr(headers, "items") else headers:
        yield str(_header_text(name)), _header_text(value)


def _header_text(value: object) -> object:
    """Header values that are not UTF-8 are left as bytes: refused if they are the id, ignored if not."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return value
