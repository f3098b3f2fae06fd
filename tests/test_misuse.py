"""What was not done must not be marked done, whatever a handler, probe or predicate returns."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import copy
import pickle
import sqlite3
import time

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    Happened,
    InFlight,
    InvalidKey,
    NotRecorded,
    Once,
    State,
    StoredFailure,
    StoreUnavailable,
    Verdict,
    with_deduplication,
)
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.types import ClaimRequest, RecordId


class Lazy:
    """An awaitable that is no coroutine, as HTTP clients return."""

    def __await__(self):
        pytest.fail("awaited")
        yield


async def coroutine():
    pytest.fail("awaited")


def never_run(kind):
    if kind == "coroutine":
        return coroutine()
    if kind == "generator":
        return (pytest.fail("iterated") for _ in range(1))
    if kind == "map":
        return map(pytest.fail, ["iterated"])
    return Lazy()


def close(value):
    if hasattr(value, "close"):
        value.close()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", ["coroutine", "awaitable", "generator", "map"])
def test_what_has_yet_to_run_is_not_done(kind, many):
    with Once("memory://", group="billing") as once:
        if many:
            (outcome,) = once.process_many(lambda message: never_run(kind), ["k"], key=str)
            assert isinstance(outcome.error, ConfigurationError)
        else:
            with pytest.raises(ConfigurationError, match=r"use AsyncOnce|return a list"):
                once.process(lambda message: never_run(kind), "m", key="k")
        assert once.peek("k").state is State.FREE


@pytest.mark.parametrize("how", ["async", "plain", "callable"])
@pytest.mark.parametrize("kind", ["coroutine", "awaitable", "generator", "map"])
def test_in_async_code_what_an_awaited_handler_returns_must_not_be_something_to_await(kind, how):
    async def handler(message):
        return never_run(kind)

    class Callable:
        async def __call__(self, message):
            return never_run(kind)

    def plain(message):
        return handler(message)

    chosen = {"async": handler, "plain": plain, "callable": Callable()}[how]

    async def main():
        async with AsyncOnce("memory://", group="billing") as once:
            with pytest.raises(ConfigurationError):
                await once.process(chosen, "m", key="k")
            return (await once.peek("k")).state

    assert asyncio.run(main()) is State.FREE


def test_an_exception_that_is_returned_is_a_result_alone_and_in_a_batch():
    with Once("memory://", group="billing") as once:
        returned = ValueError("soft")
        assert once.process(lambda message: returned, "m", key="a").verdict is Verdict.PROCESSED
        (outcome,) = once.process_many(lambda message: returned, ["b"], key=str)
        assert (outcome.verdict, outcome.result) == (Verdict.PROCESSED, returned)
        assert once.process(pytest.fail, "m", key="b").verdict is Verdict.DUPLICATE


@pytest.mark.parametrize("raised", [StopIteration, GeneratorExit])
def test_a_handler_that_raises_what_ends_generators_gives_its_claim_back(raised):
    def failing(message):
        raise raised

    async def main():
        async with AsyncOnce("memory://", group="billing") as once, asyncio.timeout(5):
            with pytest.raises(RuntimeError, match=raised.__name__):
                await once.process(failing, "m", key="k")
            return (await once.peek("k")).state

    with Once("memory://", group="billing") as once:
        with pytest.raises(RuntimeError, match=raised.__name__):
            once.process(failing, "m", key="k")
        assert once.peek("k").state is State.FREE
        (outcome,) = once.process_many(failing, ["j"], key=str)
        assert isinstance(outcome.error, RuntimeError)
        assert once.peek("j").state is State.FREE
    if raised is StopIteration:
        assert asyncio.run(main()) is State.FREE


def orphan(store):
    store.claim([ClaimRequest(RecordId("billing", "", "k"), b"dead", 0.001, 100.0)])
    time.sleep(0.01)
    return store


@pytest.mark.parametrize("answer", [0, "", [], "no", 1, Happened], ids=repr)
def test_a_probe_that_answers_something_else_settles_nothing(answer):
    with Once(orphan(MemoryStore()), group="billing", on_orphan=lambda message: answer) as once:
        with pytest.raises(ConfigurationError, match="probe must answer True, False, None or Happened"):
            once.process(pytest.fail, "m", key="k")
        record = once.peek("k")
        assert (record.state, record.attempt) == (State.FREE, 1)


def test_an_async_probe_is_refused_by_the_sync_engine():
    async def probe(message):
        return False

    with pytest.raises(ConfigurationError, match="use AsyncOnce"):
        Once("memory://", group="billing", on_orphan=probe)
    with pytest.raises(ConfigurationError, match="use AsyncOnce"):
        Once("memory://", group="billing").handler(key=str, on_orphan=probe)
    hidden = Once(orphan(MemoryStore()), group="billing", on_orphan=lambda message: probe(message or ""))
    with pytest.raises(ConfigurationError, match="use AsyncOnce"):
        hidden.process(pytest.fail, "m", key="k")
    assert hidden.peek("k").state is State.FREE

    async def main():
        async with AsyncOnce(AsyncMemoryStore(), group="billing", on_orphan=probe) as once:
            orphan(once._store._store)
            return await once.process(str, "m", key="k")

    assert asyncio.run(main()).verdict is Verdict.PROCESSED


@pytest.mark.parametrize("option", ["store_failure", "fingerprint", "on_event", "scope", "type"])
@pytest.mark.parametrize("engine", [Once, AsyncOnce])
def test_a_function_that_nobody_awaits_must_not_be_async(engine, option):
    async def function(*_):
        return True

    with pytest.raises(ConfigurationError, match=f"{option} must be a plain function"):
        engine("memory://", group="billing", **{option: function})


@pytest.mark.parametrize("handler", [None, 5, classmethod(str)], ids=repr)
@pytest.mark.parametrize("engine", [Once, AsyncOnce])
def test_what_is_no_function_cannot_be_guarded(engine, handler):
    with pytest.raises(ConfigurationError, match="must be a function"):
        engine("memory://", group="billing").handler(key=str)(handler)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_purge_ends_although_more_expires_meanwhile(kind, tmp_path):
    """With ten thousand at a time it stops at the first step that found fewer."""
    with Once("memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'a.db'}", group="billing") as once:
        calls, purge = [], once._store.purge

        def purging(*, limit):
            calls.append(limit)
            return purge(limit=limit) or 3

        once._store.purge = purging
        assert once.purge() == 3
        assert len(calls) == 1


# --- claims by hand ---------------------------------------------------------------------------


def test_a_claim_outside_of_its_block_does_not_look_like_a_duplicate():
    with Once("memory://", group="billing") as once:
        claim = once.claim("k")
        for look in (lambda: claim.fresh, lambda: claim.result):
            with pytest.raises(ConfigurationError, match="use it in a with block"):
                look()
        with claim:
            assert claim.fresh
        with pytest.raises(ConfigurationError, match="used before"), claim:
            pytest.fail("entered")
        assert claim.fresh


def test_an_async_claim_outside_of_its_block_does_not_look_like_a_duplicate():
    async def main():
        async with AsyncOnce("memory://", group="billing") as once:
            claim = once.claim("k")
            with pytest.raises(ConfigurationError, match="use it in a with block"):
                claim.fresh  # noqa: B018
            async with claim:
                pass
            with pytest.raises(ConfigurationError, match="used before"):
                await claim.__aenter__()

    asyncio.run(main())


# --- the rest ---------------------------------------------------------------------------------


def test_without_a_listener_what_costs_protection_is_logged_and_nothing_else(caplog):
    with Once("memory://", group="billing") as once:
        once.process(lambda message: {"secret"}, "payload", key="k")
        once.process(lambda message: 1, "payload", key="j")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("onceonly", "WARNING")
    assert record.getMessage().startswith("ResultDropped: key 'k' of group 'billing': ")
    assert "secret" not in record.getMessage()
    assert "payload" not in record.getMessage()


def test_with_a_listener_nothing_is_logged(caplog):
    events = []
    with Once("memory://", group="billing", on_event=events.append) as once:
        once.process(lambda message: {1}, "m", key="k")
    assert len(events) == 2
    assert not caplog.records


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_can_be_copied_and_pickled(copied):
    for error in (
        StoredFailure("ValueError", "no such account"),
        StoredFailure("ValueError", ""),
        InFlight("busy", retry_after=3.0),
        StoreUnavailable("down", unknown=True),
        NotRecorded("late", result=5),
    ):
        again = copied(error)
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_bad_key_is_refused_also_where_dedup_is_off():
    with Once("memory://", group="billing", window=None) as once:
        for call in (
            lambda: once.process(pytest.fail, "m", key=""),
            lambda: once.first_time(None),
            lambda: once.first_time_many([""]),
        ):
            with pytest.raises(InvalidKey):
                call()


def test_a_middleware_whose_arguments_are_swapped_is_told_so():
    with pytest.raises(ConfigurationError, match="the first must be an engine, not function"):
        with_deduplication(lambda message: None, Once("memory://", group="billing"))


@pytest.mark.parametrize("deliver", ["process", "many", "bound"])
def test_an_async_handler_is_refused_before_it_is_claimed(deliver, tmp_path):
    async def handler(message):
        pytest.fail("run")

    connection = sqlite3.connect(tmp_path / "a.db")
    with Once(f"sqlite:///{tmp_path / 'a.db'}", group="billing") as once:
        call = {
            "process": lambda: once.process(handler, "m", key="k"),
            "many": lambda: once.process_many(handler, ["k"], key=str),
            "bound": lambda: once.bind(connection).process(handler, "m", key="k"),
        }[deliver]
        with pytest.raises(ConfigurationError, match="use AsyncOnce"):
            call()
        assert once.peek("k") is None
