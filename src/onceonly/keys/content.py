"""Keys and fingerprints made from what a message says."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from hashlib import blake2b
from typing import cast

import rfc8785

from onceonly.errors import ConfigurationError, InvalidKey
from onceonly.keys.checking import SHOWN, length_prefixed, sha256_of, shown
from onceonly.keys.paths import MISSING, Path, child, parse_path

_Json = None | bool | int | float | str | list["_Json"] | dict[str, "_Json"]

_MAX_INTEGER = 2**53 - 1  # beyond it, other languages' JSON parsers round


@dataclass(frozen=True, slots=True)
class ContentKey:
    """Makes a key from what a message says; see :func:`content_key`, which builds it."""

    fields: tuple[Path, ...]
    ignore: frozenset[Path]
    context: tuple[tuple[str, str], ...]
    nfc: bool

    def __call__(self, message: object) -> str:
        """The key of ``message``: equal content, equal key. Raises InvalidKey where it cannot tell."""
        parts = [b"%d" % len(self.context)]
        for name, value in self.context:
            parts += [name.encode(), value.encode()]
        return "c1:" + sha256_of([*parts, *self._content(message)])

    def _content(self, message: object) -> tuple[bytes, bytes]:
        plain = _Plain(nfc=self.nfc, ignore=self.ignore)
        if self.fields:
            source = _decoded(message)
            chosen = [(path, plain.chosen(source, path)) for path in self.fields]
            if all(value is None or value in ("", [], {}) for _, value in chosen):
                msg = f"{', '.join(_show(path) for path, _ in chosen)}: nothing is there to make a key from"
                raise InvalidKey(msg)
            return b"fields", plain.canonical([[list(path), value] for path, value in chosen])
        content = plain.tagged(_decoded(message) if self.ignore else message)
        if content in _EMPTY:
            msg = "the message has no content to make a key from; all such messages would share one key"
            raise InvalidKey(msg)
        return content


_EMPTY = frozenset({(b"bytes", b""), (b"text", b""), (b"json", b"null"), (b"json", b"{}"), (b"json", b"[]")})


def content_key(
    *,
    fields: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    context: Mapping[str, str] | None = None,
    nfc: bool = False,
) -> ContentKey:
    """A function that makes a key from a message's content. Opt-in: two real, equal orders get one key.

    Use it only where equal content within the window *is* the same event, and choose ``fields`` (or
    ``ignore`` what changes on a retry, such as ``sent_at``); they are dotted paths, or ``$['a.b']`` for
    names with dots. A chosen field must be there. ``context`` names what else tells events apart, such as
    a topic or tenant. The content is a mapping, list, dataclass, JSON scalar, text or bytes; text and bytes
    are taken as they are, unless fields are chosen or ignored: then they must be JSON.

    Equality is that of RFC 8785: the order of names never matters, 1.0 is 1. It tells Unicode forms apart;
    ``nfc=True`` normalises all text first. Refused with InvalidKey, naming the field: integers beyond
    2^53 - 1, NaN, infinities, whatever is not JSON, and messages without any content.
    """
    if fields is not None and ignore is not None:
        msg = "give content_key either fields or ignore, not both"
        raise ConfigurationError(msg)
    chosen = frozenset() if fields is None else _field_paths(fields, "fields", nfc=nfc)
    dropped = frozenset() if ignore is None else _field_paths(ignore, "ignore", nfc=nfc)
    if any(isinstance(path[-1], int) or _counts_back(path) for path in dropped):
        msg = "ignore can drop names only, and cannot count from the end of a list"
        raise ConfigurationError(msg)
    return ContentKey(tuple(sorted(chosen, key=repr)), dropped, _context(context or {}, nfc=nfc), nfc)


def near_duplicate(
    *, fields: Iterable[str], context: Mapping[str, str] | None = None, nfc: bool = False
) -> ContentKey:
    """A fingerprint for "equal within N seconds": the chosen fields, without any time.

    The N seconds are the window, counted from the first event, so there is no bucket edge to fall over::

        same = near_duplicate(fields=["user", "action"])
        Once(..., window="5s").first_time(same(event))

    Do not choose a field that holds a time. To know which event was the first, let its id be the result:
    ``once.process(lambda event: event["id"], event, key=same)`` gives it back with every duplicate.
    """
    return content_key(fields=fields, context=context, nfc=nfc)


def fingerprint_bytes(value: object) -> bytes:
    """16 bytes that stand for a payload: text, bytes or anything :func:`content_key` takes.

    Equal JSON content gives equal bytes; text, bytes and JSON never equal each other.
    """
    content = _Plain(nfc=False, ignore=frozenset()).tagged(value)
    return blake2b(length_prefixed(content), digest_size=16).digest()


def _field_paths(paths: Iterable[str], name: str, *, nfc: bool) -> frozenset[Path]:
    parsed = frozenset() if isinstance(paths, str) else frozenset(_field_path(p, name, nfc) for p in paths)
    if not parsed:
        msg = f"{name} must be a list of at least one field"
        raise ConfigurationError(msg)
    return parsed


def _field_path(text: object, name: str, nfc: bool) -> Path:  # noqa: FBT001
    path: Path = ()
    if isinstance(text, str):
        path = parse_path(text) if text.startswith(("$.", "$[")) else tuple(text.split("."))
    if not path or "" in path:
        msg = f"{name} must hold names like 'user' or 'user.id', not {text!r}"
        raise ConfigurationError(msg)
    return tuple(_nfc(part) if nfc and isinstance(part, str) else part for part in path)


def _counts_back(path: Path) -> bool:
    return any(isinstance(part, int) and part < 0 for part in path)


def _context(context: Mapping[str, str], *, nfc: bool) -> tuple[tuple[str, str], ...]:
    try:
        pairs = {_context_text(name, nfc): _context_text(value, nfc) for name, value in context.items()}
    except (TypeError, UnicodeEncodeError) as error:
        msg = f"context must map text to text: {error}"
        raise ConfigurationError(msg) from None
    if len(pairs) != len(context):
        msg = "two names in context are equal under NFC"
        raise ConfigurationError(msg)
    return tuple(sorted(pairs.items()))


def _context_text(value: object, nfc: bool) -> str:  # noqa: FBT001
    if not isinstance(value, str):
        msg = f"found {type(value).__name__}"
        raise TypeError(msg)
    value.encode()
    return _nfc(value) if nfc else value


def _decoded(message: object) -> object:
    """A message whose fields can be looked at: raw payloads must be JSON, without doubled names."""
    if not isinstance(message, (str, bytes)):
        return message
    try:
        return cast("object", json.loads(message, object_pairs_hook=unique_members))
    except (ValueError, RecursionError):
        msg = f"cannot look for fields: the {type(message).__name__} payload is not JSON"
        raise InvalidKey(msg) from None


def unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For ``json.loads``: parsers differ in which of two equal names they take."""
    members = dict(pairs)
    if len(members) != len(pairs):
        msg = "an object in the payload has the same name twice"
        raise InvalidKey(msg)
    return members


@dataclass(slots=True)
class _Plain:
    """Turns a message into plain JSON values, and refuses, by path, what has no exact JSON form."""

    nfc: bool
    ignore: frozenset[Path]
    subtle: bool = False  # met what RFC 8785 writes or sorts otherwise than Python does

    def tagged(self, content: object) -> tuple[bytes, bytes]:
        """What kind of content this is, and its one byte form."""
        if isinstance(content, (bytes, bytearray, memoryview)):
            return b"bytes", bytes(content)
        if isinstance(content, str):
            return b"text", self._text(content, ()).encode()
        return b"json", self.canonical(self.whole(content, ()))

    def canonical(self, content: _Json) -> bytes:
        """As RFC 8785 has it. Without floats, and with names in ASCII, Python's own writer does the same."""
        try:
            return rfc8785.dumps(content) if self.subtle else _ENCODE(content).encode()
        except RecursionError:
            raise _unfit((), _TOO_DEEP) from None

    def chosen(self, message: object, path: Path) -> _Json:
        value = message
        for depth, part in enumerate(path):
            value = self.child(value, part, path[:depth])
            if value is MISSING:
                msg = f"the message has no field {_show(path)}"
                raise InvalidKey(msg)
        return self.whole(value, path)

    def whole(self, value: object, path: Path) -> _Json:
        try:
            return self._value(value, path)
        except RecursionError:
            raise _unfit(path, _TOO_DEEP) from None

    def child(self, value: object, part: str | int, path: Path) -> object:
        if isinstance(part, str) and _is_object(value):
            return self._members(value, path).get(part, MISSING)
        return child(value, part)

    def _value(self, value: object, path: Path) -> _Json:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, (int, float)):
            self.subtle |= isinstance(value, float)
            return _number(value, path)
        if isinstance(value, (list, tuple)):
            return [self._value(item, (*path, index)) for index, item in enumerate(value)]
        if _is_object(value):
            return self._object(value, path)
        raise _unfit(path, f"is {type(value).__name__}, not JSON; convert it first")

    def _object(self, value: object, path: Path) -> _Json:
        members = self._members(value, path)
        return {
            name: self._value(member, (*path, name))
            for name, member in members.items()
            if (*path, name) not in self.ignore
        }

    def _members(self, value: object, path: Path) -> dict[str, object]:
        members: dict[str, object] = {}
        for name, member in _items(value):
            if not isinstance(name, str):
                raise _unfit(path, f"has a name that is {type(name).__name__}, not text")
            text = self._text(name, path)
            self.subtle |= not text.isascii()
            if text in members:
                raise _unfit((*path, text), "stands for two names that are equal as text or under NFC")
            members[text] = member
        return members

    def _text(self, value: str, path: Path) -> str:
        text = str.__str__(value)
        if not text.isascii():
            _check_encodable(text, path)
            return _nfc(text) if self.nfc else text
        return text


_TOO_DEEP = "is nested too deeply, or contains itself"


_ENCODE = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=True
).encode


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return value.items()
    return [(f.name, getattr(value, f.name)) for f in dataclass_fields(cast("type", value))]


def _number(value: float, path: Path) -> int | float:
    if isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise _unfit(path, "is an integer beyond 2^53 - 1, which JSON rounds; send it as text")
        return int(value)
    if not math.isfinite(value):
        raise _unfit(path, "is NaN or infinite, which JSON does not have")
    return float(value)


def _check_encodable(text: str, path: Path) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _unfit(path, "holds a lone surrogate, which is not text") from None


def _unfit(path: Path, why: str) -> InvalidKey:
    return InvalidKey(f"cannot make a key: {_show(path)} {why}")


def _show(path: Path) -> str:
    """A path for people, ``$.items[0].id``; long names are cut."""
    return "$" + "".join(
        f".{part[:SHOWN]}" if isinstance(part, str) and part.isidentifier() else f"[{_show_part(part)}]"
        for part in path
    )


def _show_part(part: str | int) -> str:
    return shown(part) if isinstance(part, str) else str(part)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)
