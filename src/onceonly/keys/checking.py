"""What may be a key, and how parts are hashed into one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from hashlib import sha256

from onceonly.errors import InvalidKey

MAX_KEY_BYTES = 512

SHOWN = 40


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
    if key is None or callable(key):
        msg = "there is no key: it is None" if key is None else "a key is wanted here, not a function"
        raise InvalidKey(msg)
    if not isinstance(key, str):
        msg = (
            f"a key must be text, not {type(key).__name__}: "
            "convert it to text yourself so that 1 and '1' cannot be confused"
        )
        raise InvalidKey(msg)
    size = _utf8_size(key)
    if not 0 < size <= MAX_KEY_BYTES:
        what = f"{shown(key)} has {size} bytes, more than {MAX_KEY_BYTES}" if size else "it is empty"
        msg = f"this {type(key).__name__} cannot be a key: {what}"
        raise InvalidKey(msg)
    return str.__str__(key)  # a subclass, such as a StrEnum member, as plain text


def _utf8_size(key: str) -> int:
    try:
        return len(key.encode())
    except UnicodeEncodeError as error:
        msg = f"this {type(key).__name__} cannot be a key: lone surrogate at index {error.start}"
        raise InvalidKey(msg) from None


def shown(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        msg = f"{shown(text)} holds a lone surrogate, which is not text"
        raise InvalidKey(msg) from None


def length_prefixed(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def sha256_of(parts: Iterable[bytes]) -> str:
    return sha256(length_prefixed(parts)).hexdigest()
