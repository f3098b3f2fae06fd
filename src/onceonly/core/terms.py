"""On what terms: the window and lease that count now, by the store's word and the code's."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from onceonly.core.effects import Claim, Effect, Emit
from onceonly.errors import StoreUnavailable
from onceonly.events import WindowsChanged
from onceonly.settings import Policy
from onceonly.types import ClaimRequest, ReadWindows


def windows_of_now(policy: Policy, now: float) -> Generator[Effect, Any, None]:
    """Ask which windows are set in the store, if that is due. What is known stays while it is away."""
    overrides = policy.overrides
    if now < overrides.due or (policy.window is None and not overrides.known and now < overrides.away_until):
        return
    overrides.asking(now)
    changes = overrides.changes
    try:
        stored = yield ReadWindows(policy.group)
    except StoreUnavailable:
        if not overrides.known and policy.window is not None:  # who wants no dedup needs no store
            raise
        overrides.away(now)
        return
    if overrides.learn(stored, now, changes):
        yield Emit(WindowsChanged(policy.group, overrides.windows))


def on_terms_of_now(
    policy: Policy, request: ClaimRequest, now: float
) -> Generator[Effect, Any, ClaimRequest]:
    yield from windows_of_now(policy, now)
    window, lease = policy.terms(request.type)
    return request if window == request.window else request._replace(window=window, lease=lease)


def window_at_end(policy: Policy, claim: Claim) -> float:
    """The window of now, for what was claimed under another, perhaps. Not less than the lease: until that
    would have ended, a completion whose reply was lost must find its record."""
    window, _ = policy.terms(claim.type)
    return max(window or claim.window, claim.lease)
