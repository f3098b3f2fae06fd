"""Deduplication around any handler: ``guarded = with_deduplication(once, handler)``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, overload

from onceonly.core.async_once import AsyncOnce
from onceonly.core.finding import KeySpec
from onceonly.core.once import Once
from onceonly.errors import ConfigurationError
from onceonly.keys import content_key

M = TypeVar("M")
T = TypeVar("T")

_by_content = content_key()


@overload
def with_deduplication(
    once: AsyncOnce,
    handler: Callable[[M], Awaitable[T]],
    *,
    key: KeySpec = ...,
    fallback: Callable[[M], object] | None = ...,
) -> Callable[[M], Awaitable[T]]: ...
@overload
def with_deduplication(
    once: AsyncOnce,
    handler: Callable[[M], T],
    *,
    key: KeySpec = ...,
    fallback: Callable[[M], object] | None = ...,
) -> Callable[[M], Awaitable[T]]: ...
@overload
def with_deduplication(
    once: Once,
    handler: Callable[[M], T],
    *,
    key: KeySpec = ...,
    fallback: Callable[[M], object] | None = ...,
) -> Callable[[M], T]: ...
def with_deduplication(once, handler, *, key=None, fallback=None):  # type: ignore[no-untyped-def]
    """The handler, run once per message; a duplicate gets the stored result.

    The key is the message's ``id`` (attribute or item). A message that has none (or None), only a
    ``payload``, is told apart by that: two equal payloads are then one event. Where that is wrong, or the
    id is elsewhere, name the place: ``key="header:message-id"``. An id that is there but empty is an
    ``InvalidKey``, unless a ``fallback`` such as ``content_key(...)`` makes one.
    """
    if not isinstance(once, (Once, AsyncOnce)):
        msg = f"with_deduplication(once, handler): the first must be an engine, not {type(once).__name__}"
        raise ConfigurationError(msg)
    return once.handler(key=key if key is not None else _id_or_payload, fallback=fallback)(handler)


def _id_or_payload(message: object) -> object:
    found = _part(message, "id")
    if found is not None:
        return found
    payload = _part(message, "payload")
    return None if payload is None else _by_content(payload)


def _part(message: object, name: str) -> object:
    if isinstance(message, Mapping):
        return message.get(name)
    return getattr(message, name, None)
