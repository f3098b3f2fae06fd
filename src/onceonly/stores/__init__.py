"""Stores by URL. Backends load when they are first asked for; a missing extra says what to install."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from onceonly.errors import ConfigurationError, MissingExtra
from onceonly.protocols import AsyncStore, Store
from onceonly.windows import seconds


class Backend(NamedTuple):
    """Where a scheme's stores are, and the extra that brings their driver."""

    module: str
    sync: str
    asynchronous: str
    extra: str | None = None


BACKENDS = {
    "memory": Backend("onceonly.stores.memory", "MemoryStore", "AsyncMemoryStore"),
    "sqlite": Backend("onceonly.stores.sqlite", "SqliteStore", "AsyncSqliteStore"),
}


def open_store(url: str, *, create: bool = True, bulk: bool = False) -> Store:
    """The store behind ``memory://`` or ``sqlite:///file``. ``create=False`` refuses a new one; ``bulk``
    is for large batches, where the store can make a difference."""
    hints: dict[str, object] = {}
    parts = urlsplit(url)
    if not create:
        hints |= _only_existing(parts)
    if bulk and parts.scheme == "sqlite":
        hints["bulk"] = True
    return cast(Store, _open(url, hints))


def open_async_store(url: str) -> AsyncStore:
    """As :func:`open_store`, for async code."""
    return cast(AsyncStore, _open(url, {}, asynchronous=True))


def _open(url: str, hints: Mapping[str, object], *, asynchronous: bool = False) -> object:
    parts = urlsplit(url)
    backend = BACKENDS.get(parts.scheme)
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in BACKENDS)
        # The URL may hold a password, so only its scheme is shown.
        msg = f"no store for the scheme {parts.scheme!r}; known are {known}"
        if not parts.scheme:
            msg = "a store is given by URL, such as sqlite:///payments.db (three slashes for a relative path)"
        raise ConfigurationError(msg)
    try:
        module = import_module(backend.module)
    except ImportError as error:
        if backend.extra is None:
            raise
        msg = f"{parts.scheme}:// needs an extra: pip install 'onceonly[{backend.extra}]'"
        raise MissingExtra(msg) from error
    kind = getattr(module, backend.asynchronous if asynchronous else backend.sync)
    return kind(*_place(parts), **_options(parts), **hints)


def _only_existing(parts: SplitResult) -> dict[str, object]:
    if parts.scheme == "memory":
        msg = "memory:// lives in one process: here is nothing of it. Name the store of your workers"
        raise ConfigurationError(msg)
    return {"create": False} if parts.scheme == "sqlite" else {}


def _place(parts: SplitResult) -> tuple[str, ...]:
    if parts.fragment or "\0" in parts.path:
        msg = "a store URL cannot hold '#' or a NUL character: write %23 for '#'"
        raise ConfigurationError(msg)
    if parts.scheme == "memory":
        if parts.netloc or parts.path:
            msg = "memory:// has no name: every store opened by it is one of its own"
            raise ConfigurationError(msg)
        return ()
    path = unquote(parts.path)[1:]
    if parts.netloc or not parts.path.startswith("/") or not path or path == ":memory:":
        msg = (
            "a SQLite URL is sqlite:///relative.db or sqlite:////absolute/path.db; "
            "for records in memory use memory://"
        )
        raise ConfigurationError(msg)
    return (path,)


def _options(parts: SplitResult) -> dict[str, object]:
    allowed = {"memory": ("max_records",), "sqlite": ("timeout", "synchronous")}[parts.scheme]
    options: dict[str, object] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in allowed:
            msg = f"{parts.scheme}:// has no option {name!r}; it has {', '.join(allowed)}"
            raise ConfigurationError(msg)
        options[name] = _option(name, text)
    return options


def _option(name: str, text: str) -> object:
    if name == "max_records":
        if not text.isdecimal():
            msg = f"max_records={text!r} must be a whole number"
            raise ConfigurationError(msg)
        return int(text)
    if name == "timeout":
        return seconds(float(text) if text.replace(".", "", 1).isdecimal() else text, name=name)
    return text
