"""What a flow can want done, and the claim it holds.

A flow is a generator. It yields *effects*, what it wants done, and is sent back what came of them:

=============  =====================================================  ==========================
a request      ask the store; the type of the request is the verb     the store's answer
``Run``        run the handler while the claim, if any, is kept       the handler's result
               alive; it stays so until the flow ends
``Ask``        call the caller's probe, under the claim                its answer
``Sleep``      wait                                                   None
``Emit``       tell the listeners                                     None
=============  =====================================================  ==========================

An effect that fails is thrown into the flow.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from onceonly.errors import LeaseLost
from onceonly.events import Event
from onceonly.settings import Policy, Probe
from onceonly.types import (
    Acquired,
    ClaimRequest,
    Completion,
    Mark,
    Marks,
    Outcome,
    ReadWindows,
    Release,
    Renewal,
)


class Claim:
    """The right to run the handler for one key, as the handler sees it.

    ``fence`` is for downstream systems: let them refuse a smaller fence than the largest they saw.
    ``lost`` turns True when the store says that somebody else owns the claim now, or when the lease
    could not be renewed in time: stop what you are doing, your completion will be refused.
    """

    __slots__ = (
        *("__weakref__", "attempt", "deadline", "elsewhere", "fence", "finishing", "id", "lease"),
        *("lost", "orphaned", "policy", "renewed", "threaded", "token", "type", "window"),
    )

    def __init__(
        self, request: ClaimRequest, answer: Acquired, sent: float, policy: Policy | None = None
    ) -> None:
        self.id = request.id
        self.token = request.token
        self.fence = answer.fence
        self.attempt = answer.attempt
        self.orphaned = answer.orphaned
        self.lease = request.lease
        self.window = request.window
        self.type = request.type
        self.policy = policy  # of the handler that has it
        self.renewed = sent  # by the engine's monotonic clock, before the request left
        self.deadline = sent + request.lease
        self.lost = False
        self.finishing = False  # a refused renewal is no news once the last write is under way
        self.elsewhere = False  # completed by bind(connection).complete(claim)
        self.threaded = False  # its handler or probe runs in a thread, which no cancellation can stop

    @property
    def key(self) -> str:
        return self.id.key

    def check(self) -> None:
        """Raise ``LeaseLost`` if the claim is no longer ours: a safe place to stop a long handler."""
        if self.lost:
            raise lease_lost(self)


class Run(NamedTuple):
    claim: Claim | None


class Ask(NamedTuple):
    claim: Claim
    probe: Probe


class Sleep(NamedTuple):
    seconds: float
    owed: bool = False  # an effect happened and is not recorded yet: whoever is interrupted goes on


class Emit(NamedTuple):
    event: Event


class NotStarted(BaseException):
    """Thrown into a flow instead of running its handler: its batch is abandoned, or its claim is lost.

    A ``reason`` that is an Exception concerns this message only, and is raised in its place.
    """

    def __init__(self, reason: BaseException | None = None) -> None:
        super().__init__()
        self.reason = reason


def lease_lost(claim: Claim) -> LeaseLost:
    msg = (
        f"the claim on {claim.key!r} of group {claim.id.group!r} (attempt {claim.attempt}) is no "
        "longer ours: its lease ended and another worker took over, or it was forgotten"
    )
    return LeaseLost(msg)


VERBS: dict[type, str] = {
    ClaimRequest: "claim",
    Completion: "complete",
    Release: "release",
    Renewal: "renew",
    Mark: "mark_seen",
    Marks: "mark_seen",
    ReadWindows: "windows",
}

Effect = ClaimRequest | Completion | Release | Mark | Marks | ReadWindows | Run | Ask | Sleep | Emit
Flow = Generator[Effect, Any, Outcome[Any]]
