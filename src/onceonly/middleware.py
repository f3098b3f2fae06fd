"""Deduplication around any handler: ``guarded = with_deduplication(once, handler)``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, overload

from onceonly.core.async_once import AsyncOnce
from onceonly.core.once import Once
from onceonly.keys import content_key

M = TypeVar("M")
T = TypeVar("T")

_ABSENT = object()
_by_content = content_key()


@overload
def with_deduplication(
    once: AsyncOnce, handler: Callable[[M], Awaitable[T]], *, content: bool = True
) -> Callable[[M], Awaitable[T]]: ...
@overload
def with_deduplication(
    once: Once, handler: Callable[[M], T], *, content: bool = True
) -> Callable[[M], T]: ...
def with_deduplication(once, handler, *, content=True):  # type: ignore[no-untyped-def]
    """The handler, run once per message; a duplicate gets the stored result.

    The key is the message's ``id`` (attribute or item). A message without one is told apart by its
    ``payload``, or by its whole content: two equal orders are then one, so pass ``content=False``
    where that is wrong, and a message without id is an ``InvalidKey``.
    """
    fallback = _content_of if content else None
    return once.handler(key=_id_of, fallback=fallback)(handler)


def _id_of(message: object) -> object:
    found = _part(message, "id")
    return None if found is _ABSENT else found


def _content_of(message: object) -> str:
    payload = _part(message, "payload")
    return _by_content(message if payload is _ABSENT else payload)


def _part(message: object, name: str) -> object:
    if isinstance(message, Mapping):
        return message.get(name, _ABSENT)
    return getattr(message, name, _ABSENT)
