"""The key of a call: given as it is, or found in the message or in the arguments of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from onceonly.errors import ConfigurationError, InvalidKey
from onceonly.keys import extractor, looks_like_spec

KeySpec = str | Callable[..., object]
"""For handlers and batches: ``"$.id"``, ``"header:message-id"``, ``"attr:id"``, or a function."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def key_finder(spec: KeySpec, fallback: object = None) -> Callable[[Any], object]:
    """A function of the message that finds its key, or says clearly that there is none."""
    return extractor(spec, fallback=fallback)  # type: ignore[arg-type]


def call_key(
    key: KeySpec, fallback: Callable[..., object] | None, fn: Callable[..., Any]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], object]:
    """How to find the key of a guarded call: a function is given what the handler is given, a path and a
    fallback look at the message."""
    if callable(key):
        find_in_call = key_finder(_of_call(key), _fallback_of_call(fallback, fn))
        return lambda args, kwargs: find_in_call((args, kwargs))
    message_of = _message_place(fn)
    find = key_finder(key, fallback)
    return lambda args, kwargs: find(message_of(args, kwargs))


def _of_call(key: Callable[..., object]) -> Callable[[Arguments], object]:
    def of_call(call: Arguments) -> object:
        return key(*call[0], **call[1])

    of_call.__name__ = getattr(key, "__name__", type(key).__name__)  # for the error
    return of_call


def _fallback_of_call(fallback: object, fn: Callable[..., Any]) -> object:
    if not callable(fallback):
        return fallback
    message_of = _message_place(fn)
    return lambda call: fallback(message_of(*call))


def _message_place(fn: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], object]:
    """Where the message is among the arguments of a handler: the first one after self or cls."""
    name = getattr(fn, "__qualname__", str(fn))
    try:
        names = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # written in C, and it does not say
        names = ["message"]
    skip = 1 if names and names[0] in ("self", "cls") else 0
    if len(names) <= skip:
        msg = f"{name} takes no message to look for a key in"
        raise ConfigurationError(msg)

    def message_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if len(args) > skip:
            return args[skip]
        if names[skip] in kwargs:
            return kwargs[names[skip]]
        msg = f"the key is looked for in {names[skip]!r}, and {name} was called without it"
        raise ConfigurationError(msg)

    return message_of


def found_key(key: object, message: object, fallback: object = None) -> object:
    """For ``process``: the key itself, or a function of the message."""
    if type(key) is str:
        if looks_like_spec(key):  # taken for a key, all messages would share it
            msg = (
                f"key={key!r} is a place to find a key, but here the key itself is wanted: "
                "pass message['id'], or a function of the message"
            )
            raise InvalidKey(msg)
        return key
    return key_finder(key, fallback)(message) if callable(key) else key
