"""What a store, or an application that uses one, is tested with.

``conformance``: every promise of a store as one function · ``broken``: stores that break one promise
each, to test the tests · ``machine``: a Hypothesis state machine against a model (needs ``hypothesis``)
· ``FlakyStore``: replies that get lost · ``ManualClock``: time that moves when told to.
"""

from onceonly.testing.clock import ManualClock
from onceonly.testing.flaky import AsyncFlakyStore, FlakyStore
from onceonly.testing.harness import Harness, SyncView, sqlite_transactions

__all__ = [
    "AsyncFlakyStore",
    "FlakyStore",
    "Harness",
    "ManualClock",
    "SyncView",
    "sqlite_transactions",
]
