"""Keys: what they may be, how producers make them, how consumers find them in a message.

A key is text, so that a prefixed key, a UUID and a broker's message id all fit. Keys made here are the
same in every process and version; the marks ``c1`` and ``e1`` in front of hashed ones change if a recipe
ever does. Parts are hashed with their lengths, never joined by a separator, so ``a:b`` + ``c`` is not
``a`` + ``b:c``. Whatever cannot be a key is refused: nothing invalid is hashed into a shared one.
Error messages name fields and types, never a payload.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, timedelta
from hashlib import blake2b, sha256
from typing import TypeVar, cast

import rfc8785

from onceonly.errors import ConfigurationError, InvalidKey, MissingExtra
from onceonly.windows import Duration, seconds

M = TypeVar("M")

Path = tuple[str | int, ...]
_Json = None | bool | int | float | str | list["_Json"] | dict[str, "_Json"]

MAX_KEY_BYTES = 512

_SHOWN = 40
_MAX_INTEGER = 2**53 - 1  # beyond it, other languages' JSON parsers round
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAR = 1e12  # seconds: the year 33658; in milliseconds it was 2001
_MICROSECOND = timedelta(microseconds=1)
_SPEC_STARTS = ("$.", "$[", "header:", "attr:")


# --- checking ---------------------------------------------------------------------------------


def check_key(key: object) -> str:
    """``key`` as text, unchanged; a ``uuid.UUID`` becomes its usual form.

    Raises InvalidKey unless it is text of 1 to 512 bytes in UTF-8. Numbers and bytes are not converted:
    the caller knows how, and ``1`` and ``"1"`` must not be confused silently.
    """
    if type(key) is str and 0 < len(key) <= MAX_KEY_BYTES and key.isascii():
        return key
    return _check_unusual(key)


def check_keys(keys: Iterable[object]) -> list[str]:
    """Every key checked as by :func:`check_key`, in order; an error names the index of the first bad one."""
    if isinstance(keys, (str, bytes)):
        msg = f"keys must be a list of keys, not one {type(keys).__name__}"
        raise InvalidKey(msg)
    return [
        key if type(key) is str and 0 < len(key) <= MAX_KEY_BYTES and key.isascii() else _check_at(index, key)
        for index, key in enumerate(keys)
    ]


def _check_at(index: int, key: object) -> str:
    try:
        return _check_unusual(key)
    except InvalidKey as error:
        msg = f"keys[{index}]: {error}"
        raise InvalidKey(msg) from None


def _check_unusual(key: object) -> str:
    if isinstance(key, uuid.UUID):
        return str(key)
    if not isinstance(key, str):
        msg = (
            f"a key must be text, not {type(key).__name__}: "
            "convert it to text yourself so that 1 and '1' cannot be confused"
        )
        raise InvalidKey(msg)
    size = _utf8_size(key)
    if not 0 < size <= MAX_KEY_BYTES:
        what = f"{_shown(key)} has {size} bytes, more than {MAX_KEY_BYTES}" if size else "it is empty"
        msg = f"this {type(key).__name__} cannot be a key: {what}"
        raise InvalidKey(msg)
    return str.__str__(key)  # a subclass, such as a StrEnum member, as plain text


def _utf8_size(key: str) -> int:
    try:
        return len(key.encode())
    except UnicodeEncodeError as error:
        msg = f"this {type(key).__name__} cannot be a key: lone surrogate at index {error.start}"
        raise InvalidKey(msg) from None


def _shown(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def looks_like_spec(key: str) -> bool:
    """Is this a place to look for a key (``$.id``, ``header:…``, ``attr:…``) rather than a key?"""
    return key.startswith(_SPEC_STARTS)


# --- made by the producer ---------------------------------------------------------------------


def uuid4_key(service: str | None = None) -> str:
    """A random key. Make it once per logical event and store it before the first send.

    A key made at send time does not survive a crash: the retry would get another one.
    """
    return _with_service(service, str(uuid.uuid4()))


def uuid7_key(service: str | None = None) -> str:
    """A random key that sorts after every key this process made before; made once, as :func:`uuid4_key`."""
    return _with_service(service, _uuid7())


def namespaced(service: str, key: str) -> str:
    """``service:key``. No two services collide, because a service's name has no colon."""
    if ":" in _named(service, "service"):
        msg = f"service must be a name without ':', or two services could collide; not {_shown(service)}"
        raise InvalidKey(msg)
    whole = check_key(f"{service}:{check_key(key)}")
    if looks_like_spec(whole):
        msg = f"a service cannot be called {_shown(service)}: its keys would look like a place to find keys"
        raise InvalidKey(msg)
    return whole


def event_key(entity: str, type: str, at: datetime | float, *, bucket: Duration) -> str:  # noqa: A002
    """The same key whenever the same event is computed again: entity, type and the bucket ``at`` falls in.

    For producers only, where one event always carries one timestamp: its own, not the time of sending.
    Two timestamps on either side of a bucket's edge give two keys however close they are, and two events
    in one bucket give one key. To drop events that are *about* equal use :func:`near_duplicate`.
    Buckets count from 1970 in UTC; another ``bucket`` gives other keys.
    """
    width = round(seconds(bucket, name="bucket") * 1e6)
    if width < 1:
        msg = f"bucket={bucket!r} must be at least one microsecond"
        raise ConfigurationError(msg)
    number = _microseconds(at) // width
    names = [_utf8(_named(entity, "entity")), _utf8(_named(type, "type"))]
    return "e1:" + _sha256([*names, b"%d" % width, b"%d" % number])


def _with_service(service: str | None, key: str) -> str:
    return key if service is None else namespaced(service, key)


def _uuid7() -> str:
    stdlib = getattr(uuid, "uuid7", None)  # since Python 3.14
    if stdlib is not None:
        return str(stdlib())
    try:
        import uuid_utils  # noqa: PLC0415
    except ImportError as error:
        msg = "uuid7_key needs Python 3.14 or the package uuid-utils: pip install uuid-utils"
        raise MissingExtra(msg) from error
    return str(uuid_utils.uuid7())


def _named(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        msg = f"{name} must be non-empty text, not " + ("''" if value == "" else type(value).__name__)
        raise InvalidKey(msg)
    return value


def _microseconds(at: object) -> int:
    """Whole microseconds since 1970: exact, and equal for a datetime and its ``timestamp()``."""
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            msg = "at is a naive datetime: give it a timezone, or the event would depend on the host's"
            raise InvalidKey(msg)
        return (at - _EPOCH) // _MICROSECOND
    if isinstance(at, bool) or not isinstance(at, (int, float)):
        msg = f"at must be an aware datetime or seconds since 1970, not {type(at).__name__}"
        raise InvalidKey(msg)
    if not abs(at) < _FAR:  # also refuses NaN
        msg = "at is not a time in seconds since 1970; is it in milliseconds?"
        raise InvalidKey(msg)
    return at * 1_000_000 if isinstance(at, int) else round(at * 1e6)


# --- made from the content --------------------------------------------------------------------


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
        return "c1:" + _sha256([*parts, *self._content(message)])

    def _content(self, message: object) -> tuple[bytes, bytes]:
        plain = _Plain(nfc=self.nfc, ignore=self.ignore)
        if self.fields:
            source = _decoded(message)
            chosen: _Json = [[list(path), plain.chosen(source, path)] for path in self.fields]
            return b"fields", _canonical(chosen)
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

    Do not choose a field that holds a time.
    """
    return content_key(fields=fields, context=context, nfc=nfc)


def fingerprint_bytes(value: object) -> bytes:
    """16 bytes that stand for a payload: text, bytes or anything :func:`content_key` takes.

    Equal JSON content gives equal bytes; text, bytes and JSON never equal each other.
    """
    content = _Plain(nfc=False, ignore=frozenset()).tagged(value)
    return blake2b(_length_prefixed(content), digest_size=16).digest()


def _field_paths(paths: Iterable[str], name: str, *, nfc: bool) -> frozenset[Path]:
    parsed = frozenset() if isinstance(paths, str) else frozenset(_field_path(p, name, nfc) for p in paths)
    if not parsed:
        msg = f"{name} must be a list of at least one field"
        raise ConfigurationError(msg)
    return parsed


def _field_path(text: object, name: str, nfc: bool) -> Path:  # noqa: FBT001
    path: Path = ()
    if isinstance(text, str):
        path = _parse_path(text) if text.startswith(("$.", "$[")) else tuple(text.split("."))
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
        return cast("object", json.loads(message, object_pairs_hook=_unique))
    except (ValueError, RecursionError):
        msg = f"cannot look for fields: the {type(message).__name__} payload is not JSON"
        raise InvalidKey(msg) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        msg = "an object in the payload has the same name twice"
        raise InvalidKey(msg)
    return members


@dataclass(frozen=True, slots=True)
class _Plain:
    """Turns a message into plain JSON values, and refuses, by path, what has no exact JSON form."""

    nfc: bool
    ignore: frozenset[Path]

    def tagged(self, content: object) -> tuple[bytes, bytes]:
        """What kind of content this is, and its one byte form."""
        if isinstance(content, (bytes, bytearray, memoryview)):
            return b"bytes", bytes(content)
        if isinstance(content, str):
            return b"text", self._text(content, ()).encode()
        return b"json", _canonical(self.whole(content, ()))

    def chosen(self, message: object, path: Path) -> _Json:
        value = message
        for depth, part in enumerate(path):
            value = self._child(value, part, path[:depth])
            if value is _MISSING:
                msg = f"the message has no field {_show(path)}"
                raise InvalidKey(msg)
        return self.whole(value, path)

    def whole(self, value: object, path: Path) -> _Json:
        try:
            return self._value(value, path)
        except RecursionError:
            raise _unfit(path, _TOO_DEEP) from None

    def _child(self, value: object, part: str | int, path: Path) -> object:
        if isinstance(part, str) and _is_object(value):
            return self._members(value, path).get(part, _MISSING)
        return _child(value, part)

    def _value(self, value: object, path: Path) -> _Json:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, (int, float)):
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


_MISSING = object()
_TOO_DEEP = "is nested too deeply, or contains itself"


def _canonical(content: _Json) -> bytes:
    try:
        return rfc8785.dumps(content)
    except RecursionError:
        raise _unfit((), _TOO_DEEP) from None


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
        f".{part[:_SHOWN]}" if isinstance(part, str) and part.isidentifier() else f"[{_show_part(part)}]"
        for part in path
    )


def _show_part(part: str | int) -> str:
    return _shown(part) if isinstance(part, str) else str(part)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        msg = f"{_shown(text)} holds a lone surrogate, which is not text"
        raise InvalidKey(msg) from None


def _length_prefixed(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _sha256(parts: Iterable[bytes]) -> str:
    return sha256(_length_prefixed(parts)).hexdigest()


# --- found in a message -----------------------------------------------------------------------


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
    made = None if fallback is None else cast("Callable[[object], object]", fallback)
    return _Extractor(_spec_name(spec), _finder(spec), made)


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
        return _AtPath(_parse_path(spec))
    kind, _, name = spec.partition(":")
    if kind == "header" and name.strip():
        return _InHeader(name.strip().lower())
    if kind == "attr" and all(part.isidentifier() for part in name.split(".")):
        return _AtAttribute(tuple(name.split(".")))
    msg = f"key={_shown(spec)} must be a function or one of {_FORMS}"
    raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class _AtPath:
    path: Path

    def __call__(self, message: object) -> object:
        value = _loaded(message) if isinstance(message, (str, bytes)) else message
        for part in self.path:
            value = _child(value, part)
        return None if value is _MISSING else value


def _loaded(message: str | bytes) -> object:
    try:
        return cast("object", json.loads(message))
    except (ValueError, RecursionError):
        return _MISSING


def _child(value: object, part: str | int) -> object:
    if isinstance(part, str):
        return value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    if isinstance(value, (list, tuple)) and -len(value) <= part < len(value):
        return cast("object", value[part])
    return _MISSING


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


# --- RFC 9535 singular queries ----------------------------------------------------------------

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


def _parse_path(text: str) -> Path:
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
        f"path {_shown(text)} cannot be read at position {position}: "
        "write .name, ['any name'] or [0], and nothing that could match several places"
    )
