"""Every error this library raises, under one root.

    OnceonlyError
    ├── ConfigurationError     a setting is wrong or does not fit with another
    │   └── MissingExtra       an optional dependency is not installed
    ├── InvalidKey             a key is missing, empty, too long or not text
    ├── PayloadMismatch        the same key came with another payload
    ├── InFlight               somebody else is processing this key right now
    ├── Quarantined            the record waits for an operator
    ├── StoredFailure          replay of a failure that was stored as final
    ├── ResultUnreadable       done before, but the stored result cannot be decoded
    ├── LeaseLost              the claim is no longer ours; its write was refused
    └── StoreError
        ├── StoreUnavailable   the store could not be asked, or did not answer
        │   ├── StoreClosed    somebody closed it
        │   └── NotRecorded    the effect happened, its completion could not be written
        └── StoreFull          a bounded store has no room left; nothing was dropped

A driver's own error is kept as ``__cause__``. Messages name the field or record at fault and what
to do about it; they never contain a payload.
"""

from __future__ import annotations


class OnceonlyError(Exception):
    """Something went wrong in onceonly."""


class ConfigurationError(OnceonlyError):
    """A setting is wrong or does not fit with another."""


class MissingExtra(ConfigurationError):
    """An optional dependency is not installed."""


class InvalidKey(OnceonlyError):
    """A key is missing, empty, too long or not text. The message was not touched."""


class PayloadMismatch(OnceonlyError):
    """The same key came with another payload: a producer reuses its keys, or the key is wrong."""


class InFlight(OnceonlyError):
    """Somebody else is processing this key right now. Deliver it again later; do not acknowledge it."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Quarantined(OnceonlyError):
    """This record waits for an operator. Dead-letter the message before acknowledging it."""


class StoredFailure(OnceonlyError):
    """Replay of a failure that was stored as final by ``store_failure``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)  # both, so that it can be pickled
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class ResultUnreadable(OnceonlyError):
    """The message is done, but its stored result cannot be decoded: the codec has changed since."""


class LeaseLost(OnceonlyError):
    """The claim is no longer ours: somebody else took it over, or it was forgotten.

    When it is raised by a completion, the handler has run; another run may have happened too.
    """


class StoreError(OnceonlyError):
    """The store could not do what it was asked."""


class StoreUnavailable(StoreError):
    """The store could not be asked, or did not answer.

    ``unknown`` is True when the request may have taken effect all the same.
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class StoreClosed(StoreUnavailable):
    """Somebody closed the store: trying again is no use."""


class NotRecorded(StoreUnavailable):
    """The effect happened, but its completion could not be written before the lease ended.

    The record was not released. Once its lease is over a redelivery will run the handler again
    unless ``on_orphan`` says otherwise.
    """

    def __init__(self, message: str, *, result: object = None) -> None:
        super().__init__(message, unknown=True)
        self.result = result


class StoreFull(StoreError):
    """A bounded store has no room left. Nothing was dropped and nothing was run."""
