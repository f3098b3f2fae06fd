"""Claims by hand: ``with once.claim(key) as claim``."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, Generic, TypeVar

from onceonly.core.effects import Ask, Claim, NotStarted, Run
from onceonly.core.engine import _current, unwrap
from onceonly.core.runners import AsyncRunner, Runner, called, throwable
from onceonly.errors import ConfigurationError

T = TypeVar("T")


class _Held(Generic[T]):
    """What a claim by hand shows, sync or async."""

    def __init__(self, flow: Any, key: str, message: object) -> None:
        self._flow = flow
        self._key = key
        self._about = key if message is None else message  # what a probe is asked about
        self._state: Any = None
        self._result: T | None = None
        self._outer: Token[Claim | None] | None = None
        self._fresh: bool | None = None  # not entered yet
        self.claim: Claim | None = None

    @property
    def fresh(self) -> bool:
        """True if the block is to do the work; False if it was done before."""
        self._check_entered()
        return self._fresh is True

    @property
    def result(self) -> T | None:
        """What was stored: by this block, or before."""
        self._check_entered()
        return self._result

    def _check_entered(self) -> None:
        if self._fresh is None:
            msg = f"the claim on {self._key!r} was not entered: use it in a with block"
            raise ConfigurationError(msg)

    def _check_new(self) -> None:
        if self._fresh is not None:
            msg = f"the claim on {self._key!r} was used before: each block needs its own, claim() again"
            raise ConfigurationError(msg)

    @property
    def fence(self) -> int | None:
        """Grows with each owner of the key: for downstream systems to refuse a smaller one."""
        return self.claim.fence if self.claim else None

    @property
    def attempt(self) -> int:
        """1 the first time it is started; 0 if it was done before."""
        return self.claim.attempt if self.claim else 0

    @property
    def lost(self) -> bool:
        """True once another worker owns it: stop, the completion will be refused."""
        return self.claim is not None and self.claim.lost

    def _entered(self, state: Any) -> None:
        self._state = state
        if type(state) is not Run:
            self._fresh = False
            self._result = unwrap(state, self._key)
            return
        self.claim, self._fresh = state.claim, True
        self._outer = _current.set(self.claim)

    def _left(self) -> None:
        if self._outer is not None:
            try:
                _current.reset(self._outer)
            except ValueError:  # left in another context than entered, as generators may be
                _current.set(None)
            self._outer = None

    def _check_open(self) -> None:
        if not self._fresh or type(self._state) is not Run:
            msg = f"the claim on {self._key!r} is not open: complete() once, and only if claim.fresh"
            raise ConfigurationError(msg)


class ManualClaim(_Held[T]):
    """A claim in a ``with`` block, which takes the handler's place in the flow.

    ``fresh`` is True if the block is to do the work; else ``result`` is what was stored. Leaving the
    block completes with what ``complete(x)`` was given, or with a bare record; an exception gives
    the claim back. What is in flight raises ``InFlight`` on entering, so that it is not taken for done.
    """

    def __init__(self, runner: Runner, flow: Any, key: str, message: object = None) -> None:
        super().__init__(flow, key, message)
        self._runner = runner

    def __enter__(self) -> ManualClaim[T]:
        self._check_new()
        try:
            state = self._runner.advance(self._flow, self._flow.send, None)
            while type(state) is Ask:
                try:
                    self.claim = self._runner.keep(state.claim)
                    answer = self._runner.ask(state, (self._about,), {})
                except BaseException as error:  # noqa: BLE001 - the flow gives the claim back and re-raises
                    state = self._runner.advance(self._flow, self._flow.throw, throwable(error))
                else:
                    state = self._runner.advance(self._flow, self._flow.send, answer)
            if type(state) is Run and state.claim is not None:
                try:
                    self._runner.keep(state.claim)
                except NotStarted as refused:
                    self._runner.advance(self._flow, self._flow.throw, refused)
            self._entered(state)
        finally:
            if not self._fresh:
                self._runner.let_go(self.claim)
        return self

    def complete(self, result: T | None = None) -> None:
        """Write *done* now, with this result."""
        self._check_open()
        self._result = result
        self._finish(self._flow.send, result)

    def _finish(self, step: Callable[[Any], Any], value: object) -> None:
        try:
            self._state = self._runner.advance(self._flow, step, value)
        except BaseException:
            self._state = None
            raise
        finally:
            self._runner.let_go(self.claim)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()
        if type(self._state) is not Run:
            return
        if error is None:
            self._finish(self._flow.send, None)
            return
        thrown = throwable(error)
        try:
            self._finish(self._flow.throw, thrown)
        except BaseException as raised:
            if raised is not thrown:
                raise


class AsyncManualClaim(_Held[T]):
    """As :class:`~onceonly.core.manual.ManualClaim`, in an ``async with`` block."""

    def __init__(self, runner: AsyncRunner, flow: Any, key: str, message: object = None) -> None:
        super().__init__(flow, key, message)
        self._runner = runner

    async def __aenter__(self) -> AsyncManualClaim[T]:
        self._check_new()
        try:
            state = await self._runner.advance(self._flow, self._flow.send, None)
            while type(state) is Ask:
                state = await self._ask(state)
            if type(state) is Run and state.claim is not None:
                try:
                    self._runner.keep(state.claim)
                except NotStarted as refused:
                    await self._runner.advance(self._flow, self._flow.throw, refused)
            self._entered(state)
        finally:
            if not self._fresh:
                self._runner.let_go(self.claim)
        return self

    async def _ask(self, effect: Ask) -> Any:
        late: list[BaseException] = []
        try:
            self.claim = self._runner.keep(effect.claim)
            answer = await called(effect.probe, (self._about,), {}, late, effect.claim)
        except BaseException as error:  # noqa: BLE001 - the flow gives the claim back and re-raises
            late.append(throwable(error))
        if late:
            return await self._runner.shielded(self._flow, self._flow.throw, late[0])
        return await self._runner.shielded(self._flow, self._flow.send, answer)

    async def complete(self, result: T | None = None) -> None:
        """Write *done* now, with this result."""
        self._check_open()
        self._result = result
        await self._finish(self._flow.send, result)

    async def _finish(self, step: Callable[[Any], Any], value: object) -> None:
        self._state = None
        try:
            self._state = await self._runner.shielded(self._flow, step, value)
        finally:
            self._runner.let_go(self.claim)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()
        if type(self._state) is not Run:
            return
        if error is None:
            await self._finish(self._flow.send, None)
            return
        thrown = throwable(error)
        try:
            await self._finish(self._flow.throw, thrown)
        except BaseException as raised:
            if raised is not thrown:
                raise
