"""What a handler may be, and where its key is looked for."""

# mypy: disable-error-code="union-attr"
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceonly import (
    AsyncOnce,
    ConfigurationError,
    InvalidKey,
    Once,
    ResultUnreadable,
    State,
    Verdict,
    content_key,
    current_claim,
)
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore


@pytest.fixture
def once():
    with Once("memory://", group="billing") as engine:
        yield engine


class Worker:
    """Has an id of its own, which is not the message's."""

    id = "worker-1"
    once = Once("memory://", group="methods")

    def __init__(self) -> None:
        self.handled: list[Any] = []

    @once.handler(key="attr:id")
    def by_attribute(self, message: Any) -> None:
        self.handled.append(message)

    @once.handler(key="$.id", fallback=content_key())
    def by_path(self, message: Any) -> None:
        self.handled.append(message)


class Thing:
    def __init__(self, number: int) -> None:
        self.id = f"thing-{number}"


def test_the_key_of_a_method_is_looked_for_in_its_message_not_in_self():
    worker, things = Worker(), [Thing(1), Thing(2)]
    for thing in (*things, *things):
        worker.by_attribute(thing)
    assert worker.handled == things


def test_a_method_may_be_called_by_keyword_and_have_a_fallback():
    worker = Worker()
    worker.by_path({"id": "m-1"})
    worker.by_path(message={"id": "m-1"})
    worker.by_path({"no": "id"})
    worker.by_path(message={"no": "id"})
    assert worker.handled == [{"id": "m-1"}, {"no": "id"}]


def test_the_message_is_found_by_name_whatever_the_order_of_keywords(once):
    handled = []

    @once.handler(key="$.id")
    def handle(message, trace=None):
        handled.append(message["id"])

    for name in ("p", "q"):
        handle(trace={"id": "T"}, message={"id": name})
    assert handled == ["p", "q"]
    with pytest.raises(ConfigurationError, match="looked for in 'message'"):
        handle(trace={"id": "T"})


def test_a_function_without_a_message_is_refused_when_it_is_decorated(once):
    with pytest.raises(ConfigurationError, match="takes no message"):
        once.handler(key="$.id")(lambda: None)
    assert once.handler(key=lambda: "daily")(lambda: 5)() == 5


def test_a_key_function_is_named_where_it_finds_nothing(once):
    def order_number(message):
        return message["number"]

    with pytest.raises(InvalidKey, match="key function order_number found no id"):
        once.handler(key=order_number)(print)({})


def test_process_takes_a_fallback_too(once):
    by_number = content_key(fields=["number"])
    for _ in range(2):
        outcome = once.process(str, {"number": 7}, key=lambda m: m["id"], fallback=by_number)
    assert outcome.verdict is Verdict.DUPLICATE


def test_a_batch_has_a_scope_and_a_type(once):
    for tenant in ("a", "b"):
        (outcome,) = once.process_many(str, ["k"], key=str, scope=tenant, type="order")
        assert outcome.verdict is Verdict.PROCESSED
    record = once.peek("k", scope="a")
    assert (record.type, once.peek("k")) == ("order", None)


@pytest.mark.parametrize("many", [False, True])
def test_what_cannot_be_called_is_refused_before_anything_is_claimed(once, many):
    with pytest.raises(ConfigurationError, match="must be a function, not str"):
        once.process_many("f", ["k"], key=str) if many else once.process("f", "m", key="k")
    assert once.peek("k") is None


def numbers(message):
    yield message


@pytest.mark.parametrize("handler", [numbers, lambda message: (n for n in message)], ids=["def", "lambda"])
def test_a_generator_has_not_run_and_is_not_taken_for_done(once, handler):
    with pytest.raises(ConfigurationError, match="generator"):
        once.process(handler, "m", key="k")
    assert once.peek("k").state is State.FREE


@pytest.mark.parametrize("error", [GeneratorExit(), StopIteration()], ids=repr)
def test_errors_that_python_uses_itself_give_the_claim_back_too(once, error):
    def handle(message):
        raise error

    with pytest.raises(RuntimeError):
        once.process(handle, "m", key="k")
    assert once.peek("k").state is State.FREE


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_be_shown_is_stored_all_the_same():
    def handle(message):
        raise Unspeakable

    with Once("memory://", group="billing", store_failure=lambda error: True) as once:
        with pytest.raises(Unspeakable):
            once.process(handle, "m", key="k")
        assert once.process(handle, "m", key="k").error.kind == "Unspeakable"


class Changed:
    """A codec that cannot read what it wrote before."""

    def encode(self, value):
        return b"old"

    def decode(self, data):
        raise ValueError("schema changed")


def test_a_result_that_cannot_be_read_is_still_a_duplicate_that_may_be_acked():
    with Once("memory://", group="billing", codec=Changed()) as once:
        handle = once.handler(key=str)(lambda message: 5)
        assert handle("k") == 5
        outcome = once.process(lambda message: 6, "k", key="k")
        assert (outcome.verdict, outcome.ack, outcome.result) == (Verdict.DUPLICATE, True, None)
        with pytest.raises(ResultUnreadable, match="schema changed"):
            handle("k")


def test_a_bad_fingerprint_is_named():
    once = Once("memory://", group="billing", fingerprint=lambda message: object())
    with pytest.raises(InvalidKey, match=r"^fingerprint: "):
        once.process(str, "m", key="k")


def test_a_claim_by_hand_is_the_current_one_within_its_block(once):
    before = current_claim()  # a test may have left one
    with once.claim("k") as outer:
        assert current_claim() is outer.claim
        with once.claim("j") as inner:
            assert current_claim() is inner.claim
        assert current_claim() is outer.claim
        outer.complete()
    assert current_claim() is before


@pytest.mark.parametrize("store", [5, Path("x.db"), object(), None.__class__], ids=repr)
@pytest.mark.parametrize("engine", [Once, AsyncOnce])
def test_what_is_no_store_is_refused_at_once(engine, store):
    with pytest.raises(ConfigurationError, match="store must be a URL"):
        engine(store, group="billing")


@pytest.mark.parametrize(
    ("engine", "store", "words"),
    [(Once, AsyncMemoryStore, "use AsyncOnce"), (AsyncOnce, MemoryStore, "use Once")],
)
def test_a_store_of_the_other_kind_is_refused_at_once(engine, store, words):
    with pytest.raises(ConfigurationError, match=words):
        engine(store(), group="billing")
