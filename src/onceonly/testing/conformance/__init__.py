"""What every store promises, one function per promise: each takes a Harness and raises
AssertionError where the promise is broken. To test a store of your own with pytest::

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    def test_my_store(promise, tmp_path):
        clock = ManualClock()
        harness = Harness(MyStore(tmp_path / "db", clock=clock), advance=clock.advance)
        promise(harness)
        harness.close()

Add ``TRANSACTIONAL_PROMISES``, and ``transaction=`` to the harness, where the store has ``bind``. An
async store is shown as a sync one by ``SyncView(store)``.
"""

from __future__ import annotations

from collections.abc import Callable

from onceonly.testing.conformance import (
    batches,
    bound,
    claims,
    completion,
    expiry,
    identity,
    marks,
    operating,
    release,
    revoking,
    windows,
)
from onceonly.testing.harness import Harness

Promise = Callable[[Harness], None]

PROMISES: tuple[Promise, ...] = (
    *claims.PROMISES,
    *completion.PROMISES,
    *release.PROMISES,
    *marks.PROMISES,
    *expiry.PROMISES,
    *identity.PROMISES,
    *batches.PROMISES,
    *operating.PROMISES,
    *revoking.PROMISES,
    *windows.PROMISES,
)

TRANSACTIONAL_PROMISES: tuple[Promise, ...] = (
    *bound.TRANSACTIONAL_PROMISES,
    *windows.TRANSACTIONAL_PROMISES,
)

__all__ = ["PROMISES", "TRANSACTIONAL_PROMISES", "Promise"]
