"""onceonly: each message takes effect once. See the README for a working example in ten lines."""

from onceonly.core.async_once import AsyncOnce
from onceonly.core.effects import Claim
from onceonly.core.engine import current_claim
from onceonly.core.once import Once
from onceonly.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    LeaseLost,
    MissingExtra,
    NotRecorded,
    OnceonlyError,
    PayloadMismatch,
    Quarantined,
    ResultUnreadable,
    StoredFailure,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from onceonly.keys import content_key, event_key, namespaced, near_duplicate, uuid4_key, uuid7_key
from onceonly.middleware import with_deduplication
from onceonly.types import Happened, Outcome, Record, State, Stats, StoredWindow, Verdict

__version__ = "0.1.0"

__all__ = [
    "AsyncOnce",
    "Claim",
    "ConfigurationError",
    "Happened",
    "InFlight",
    "InvalidKey",
    "LeaseLost",
    "MissingExtra",
    "NotRecorded",
    "Once",
    "OnceonlyError",
    "Outcome",
    "PayloadMismatch",
    "Quarantined",
    "Record",
    "ResultUnreadable",
    "State",
    "Stats",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoredFailure",
    "StoredWindow",
    "Verdict",
    "content_key",
    "current_claim",
    "event_key",
    "namespaced",
    "near_duplicate",
    "uuid4_key",
    "uuid7_key",
    "with_deduplication",
]
