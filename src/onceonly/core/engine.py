"""What :class:`Once` and :class:`AsyncOnce` share: settings, identities, requests, counting. No I/O."""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from onceonly.core.batch import BatchEffect, firsts, repeated, together
from onceonly.core.effects import Claim, Flow
from onceonly.core.finding import KeySpec, key_finder
from onceonly.core.flows import process
from onceonly.core.terms import window_at_end
from onceonly.errors import ConfigurationError, InFlight, InvalidKey, Quarantined
from onceonly.events import Event, FailedOpen, LeaseWasLost, Listener, ReleaseFailed, ResultDropped
from onceonly.keys import check_key, check_keys, fingerprint_bytes
from onceonly.protocols import AsyncStore, Clock, Store
from onceonly.settings import Options, Policy, Text, check_name, resolve, store_and_group
from onceonly.types import (
    ClaimRequest,
    Completion,
    Marks,
    Outcome,
    RecordId,
    Release,
    Stats,
    Status,
    Verdict,
)
from onceonly.windows import Overrides

T = TypeVar("T")

_process, _fork_lock = os.getpid(), threading.Lock()


CLOSED = -1  # in place of a process number
PURGE_STEP = 10_000


def _note_fork() -> None:
    global _process, _fork_lock
    _process, _fork_lock = os.getpid(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

_current: ContextVar[Claim | None] = ContextVar("onceonly_claim", default=None)


def current_claim() -> Claim | None:
    """The claim under which this handler runs; None outside of one, or where dedup is off.

    Hand its ``fence`` to downstream systems, or its ``key`` as their idempotency key.
    """
    return _current.get()


class Tokens:
    """A new token for every attempt: random per process, counted within it."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10)
        self._count = itertools.count()

    def mint(self) -> bytes:
        return self._prefix + next(self._count).to_bytes(6, "big")


_log = logging.getLogger("onceonly")
_WORTH_A_WARNING = (FailedOpen, ResultDropped, LeaseWasLost, ReleaseFailed)


class Counts:
    """Events go to the listener; the two that cost protection are counted as well.

    Without a listener, what an operator should know is logged as a warning: key and reason, no payload.
    """

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self.failed_open = 0
        self.results_dropped = 0

    def emit(self, event: Event) -> None:
        kind = type(event)
        if kind is FailedOpen:
            self.failed_open += 1
        elif kind is ResultDropped:
            self.results_dropped += 1
        if self._listener is not None:
            with suppress(Exception):  # a listener must never cost a message
                self._listener(event)
        elif isinstance(event, _WORTH_A_WARNING):
            group, _, key = event.id
            _log.warning("%s: key %r of group %r: %s", kind.__name__, key, group, event[1])


class Job(NamedTuple):
    """One call of a handler and the request that guards it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    request: ClaimRequest


class Engine:
    """Names, policies and requests of one group. Thread-safe; cheap to share."""

    _store: Store | AsyncStore
    _asynchronous: bool

    def __init__(self, store: object, group: str | None, options: Options, clock: Clock) -> None:
        self._store_or_url, self._group = store_and_group(store, group)
        self._options = options
        self._overrides = Overrides()
        self._policy = self._resolved(options)
        self._clock = clock
        self._counts = Counts(self._policy.on_event)
        self._tokens = Tokens()
        self._process = _process

    @property
    def group(self) -> str:
        return self._group

    def _check_process(self) -> None:
        """After a fork the child starts its own connections, keeper and tokens. A closed engine refuses."""
        if self._process != _process:
            self._after_fork()

    def _after_fork(self) -> None:
        if self._process == CLOSED:
            msg = "this engine was closed: make a new one"
            raise ConfigurationError(msg)
        with _fork_lock:
            if self._process != _process:
                self._tokens = Tokens()
                self._store.after_fork()
                self._start()
                self._process = _process

    def _start(self) -> None:
        raise NotImplementedError

    def _check_store(self, store: object) -> None:
        claim = getattr(store, "claim", None)
        if not callable(claim):
            msg = (
                f"store must be a URL such as 'sqlite:///onceonly.db', or a store; not {type(store).__name__}"
            )
            raise ConfigurationError(msg)
        if inspect.iscoroutinefunction(claim) is not self._asynchronous:
            wanted, right = ("an async", "Once") if self._asynchronous else ("a sync", "AsyncOnce")
            msg = f"{type(self).__name__} needs {wanted} store; with {type(store).__name__} use {right}"
            raise ConfigurationError(msg)

    def _override(self, options: Options) -> Policy:
        if "on_event" in options:
            msg = "on_event belongs to the engine: pass it to Once() or AsyncOnce()"
            raise ConfigurationError(msg)
        return self._resolved({**self._options, **options}) if options else self._policy

    def _resolved(self, options: Options) -> Policy:
        policy = resolve(self._group, options, overrides=self._overrides)
        if inspect.iscoroutinefunction(policy.on_orphan) and not self._asynchronous:
            msg = "the on_orphan probe is async: use AsyncOnce, or give a plain function"
            raise ConfigurationError(msg)
        return policy

    # --- requests -----------------------------------------------------------------------------

    def _request(
        self,
        policy: Policy,
        key: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        scope: str | None = None,
        kind: str | None = None,
    ) -> ClaimRequest:
        """What is asked of the store, computed once and before the handler can change its input."""
        key = check_key(key)
        fingerprint = None
        if policy.fingerprint is not None:
            fingerprint = _fingerprint_of(policy.fingerprint(*args, **kwargs))
        if scope:
            check_name("scope", scope)
        elif scope is None and policy.scope is not None:
            scope = _text(policy.scope, "scope", args, kwargs)
        if kind is not None:
            check_name("type", kind)
        elif policy.type is not None:
            kind = _text(policy.type, "type", args, kwargs)
        record_id = RecordId(policy.group, scope or "", key)
        token = self._tokens.mint()
        window, lease = policy.terms(kind)
        return ClaimRequest(record_id, token, lease, window, fingerprint, kind)

    def _flow_by_hand(self, request: ClaimRequest) -> Flow:
        """On the terms of when it begins, which may be long after it was made."""
        window, lease = self._policy.terms(request.type)
        return (yield from self._flow(self._policy, request._replace(window=window, lease=lease)))

    def _flow(self, policy: Policy, request: ClaimRequest) -> Flow:
        return process(policy, request, self._clock)

    def _batch(
        self, messages: Sequence[Any], key: KeySpec, fallback: object, scope: str | None, kind: str | None
    ) -> Batch:
        find = key_finder(key, fallback)
        jobs: list[Job | Exception] = []
        for message in messages:
            try:
                found = find(message)
                request = self._request(self._policy, found, (message,), {}, scope=scope, kind=kind)
                jobs.append(Job((message,), {}, request))
            except Exception as error:  # noqa: BLE001 - one bad message fails alone
                jobs.append(error)
        return Batch(self, jobs)

    def _claim_request(self, key: str, message: object, scope: str | None, kind: str | None) -> ClaimRequest:
        """For a claim by hand, which has no message unless the caller gives it."""
        policy = self._policy
        if message is None and (callable(policy.scope) or callable(policy.type) or policy.fingerprint):
            msg = "scope, type or fingerprint is a function of the message: pass message= to claim() too"
            raise ConfigurationError(msg)
        return self._request(policy, key, (message,), {}, scope=scope, kind=kind)

    def _id(self, key: str, scope: str | None) -> RecordId:
        return RecordId(self._group, self._fixed_scope(scope), check_key(key))

    def _fixed_scope(self, scope: str | None) -> str:
        if scope is None and callable(self._policy.scope):
            msg = "the scope is a function of the message, and here is only a key: pass scope="
            raise ConfigurationError(msg)
        if scope is not None:
            return check_name("scope", scope) if scope else ""
        return self._policy.scope or ""  # type: ignore[return-value]

    def _fixed_type(self, kind: str | None) -> str | None:
        if kind is not None:
            return check_name("type", kind)
        return self._policy.type if isinstance(self._policy.type, str) else None

    def _marks(self, keys: Sequence[str], scope: str | None, kind: str | None) -> Marks:
        kind = self._fixed_type(kind)
        window, _ = self._policy.terms(kind)
        return Marks(self._group, self._fixed_scope(scope), check_keys(keys), window, kind)

    def _completion(self, claim: Claim, result: object) -> Completion:
        """For completing a leased claim inside the caller's own transaction."""
        stored = None
        if result is not None and self._policy.keep_result:
            stored = self._policy.codec.encode(result)  # raises: the caller can still roll back
            if len(stored) > self._policy.max_result_bytes:
                stored = None
                self._counts.emit(ResultDropped(claim.id, "larger than max_result_bytes"))
        window = window_at_end(claim.policy or self._policy, claim)
        return Completion(claim.id, claim.token, window, Status.PROCESSED, stored)

    def _with_counts(self, stats: Stats) -> Stats:
        counts = self._counts
        return Stats(stats.groups, stats.expired, counts.failed_open, counts.results_dropped)


class Batch:
    """The flows of a batch, with equal keys collapsed, and their outcomes spread out again."""

    def __init__(self, engine: Engine, jobs: list[Job | Exception]) -> None:
        self._jobs = jobs
        ids = [job.request.id if isinstance(job, Job) and job.request.window else None for job in jobs]
        self._firsts = firsts(ids)
        self._chosen = [i for i, job in enumerate(jobs) if isinstance(job, Job) and self._firsts[i] == i]
        self._flows = [engine._flow(engine._policy, self.job(n).request) for n in range(len(self._chosen))]

    def job(self, number: int) -> Job:
        job = self._jobs[self._chosen[number]]
        if not isinstance(job, Job):
            raise TypeError
        return job

    def flow(self) -> Generator[BatchEffect, Any, list[Outcome[Any]]]:
        return together(self._flows)

    def spread(self, outcomes: Sequence[Outcome[Any]]) -> list[Outcome[Any]]:
        by_index = dict(zip(self._chosen, outcomes, strict=True))
        return [self._outcome(i, job, by_index) for i, job in enumerate(self._jobs)]

    def _outcome(
        self, index: int, job: Job | Exception, by_index: Mapping[int, Outcome[Any]]
    ) -> Outcome[Any]:
        if isinstance(job, Exception):
            return Outcome(Verdict.FAILED, error=job)
        first = self._firsts[index]
        if first == index:
            return by_index[index]
        leader = self._jobs[first]
        same = isinstance(leader, Job) and _fingerprint(leader) == _fingerprint(job)
        return repeated(by_index[first], same_payload=same)


def _fingerprint(job: Job) -> bytes | None:
    return job.request.fingerprint


def _fingerprint_of(value: object) -> bytes:
    try:
        return fingerprint_bytes(value)
    except InvalidKey as error:
        msg = f"fingerprint: {error}"
        raise InvalidKey(msg) from None


def _text(value: Text, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if not callable(value):
        return value  # checked with the settings
    found = value(*args, **kwargs)
    return None if found is None else check_name(name, found)


def unstarted(request: ClaimRequest) -> Release:
    """Give back a claim whose handler never ran."""
    return Release(request.id, request.token, request.window, started=False)


def unwrap(outcome: Outcome[T], key: str) -> T:
    """For the decorator: the result, or the reason why there is none."""
    if outcome.verdict is Verdict.IN_FLIGHT:
        msg = f"{key!r} is being processed by another worker; deliver it again later"
        raise InFlight(msg, retry_after=outcome.retry_after)
    if outcome.verdict is Verdict.QUARANTINED:
        msg = f"{key!r} is quarantined and waits for an operator; dead-letter it"
        raise Quarantined(msg)
    if outcome.error is not None:
        raise outcome.error
    return outcome.result  # type: ignore[return-value]
