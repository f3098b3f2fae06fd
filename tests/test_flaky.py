"""The store that fails as planned: it must fail just so, or the tests that use it prove nothing."""

from __future__ import annotations

import pytest

from onceonly.errors import StoreUnavailable
from onceonly.stores.memory import AsyncMemoryStore, MemoryStore
from onceonly.testing import AsyncFlakyStore, FlakyStore, SyncView
from onceonly.testing.flaky import Fault, Plan
from onceonly.types import ClaimRequest, Completion, Mark, RecordId, Release, Renewal, State

ID = RecordId("billing", "", "k")
TOKEN = b"token"

VERBS = {
    "mark_seen": lambda store: store.mark_seen([Mark(ID, 100.0)]),
    "claim": lambda store: store.claim([ClaimRequest(ID, TOKEN, 10.0, 100.0)]),
    "complete": lambda store: store.complete([Completion(ID, TOKEN, 100.0)]),
    "release": lambda store: store.release([Release(ID, TOKEN, 100.0)]),
    "renew": lambda store: store.renew([Renewal(ID, TOKEN, 10.0, 100.0)]),
    "peek": lambda store: store.peek([ID]),
    "forget": lambda store: store.forget([ID], force=True),
    "purge": lambda store: store.purge(),
    "stats": lambda store: store.stats(),
}


@pytest.fixture(params=["sync", "async"])
def flaky(request):
    """Makes a flaky store, shown as a sync one, over a real one that keeps its own eyes open."""
    views: list[SyncView] = []

    def make(plan: Plan | None = None):
        if request.param == "sync":
            inner = MemoryStore()
            store = FlakyStore(inner, plan)
            return store, store, inner
        real = AsyncMemoryStore()
        lossy = AsyncFlakyStore(real, plan)
        views.append(SyncView(lossy))
        return views[-1], lossy, real._store

    yield make
    for view in views:
        view.close()


def state_of(inner: MemoryStore) -> State | None:
    record = inner.peek([ID])[0]
    return None if record is None else record.state


def test_without_a_plan_it_is_the_store_behind_it(flaky):
    store, _, inner = flaky()
    assert VERBS["claim"](store)[0].attempt == 1
    assert VERBS["renew"](store) == VERBS["complete"](store) == [True]
    assert store.peek([ID])[0] == inner.peek([ID])[0]
    assert store.stats() == inner.stats()
    assert store.capabilities == inner.capabilities
    assert VERBS["forget"](store) == [True]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("fault", "unknown"), [("before", False), ("after", True)])
def test_every_verb_fails_as_planned_and_only_once(flaky, verb, fault: Fault, unknown):
    store, _, _ = flaky({verb: [fault]})
    with pytest.raises(StoreUnavailable, match=verb) as raised:
        VERBS[verb](store)
    assert raised.value.unknown is unknown
    VERBS[verb](store)


def test_a_lost_request_changes_nothing_and_a_lost_reply_changes_all(flaky):
    store, _, inner = flaky({"claim": ["before", "after"]})
    with pytest.raises(StoreUnavailable):
        VERBS["claim"](store)
    assert state_of(inner) is None
    with pytest.raises(StoreUnavailable):
        VERBS["claim"](store)
    assert state_of(inner) is State.CLAIMED


def test_a_list_is_followed_in_order_and_ends_well(flaky):
    store, _, _ = flaky({"renew": ["ok", "before", "after"]})
    failed: list[bool | None] = []
    for _ in range(5):
        try:
            VERBS["renew"](store)
            failed.append(None)
        except StoreUnavailable as error:
            failed.append(error.unknown)
    assert failed == [None, False, True, None, None]


def test_a_function_is_asked_with_the_verb_and_the_number_of_the_call(flaky):
    asked: list[tuple[str, int]] = []

    def plan(verb: str, number: int) -> Fault:
        asked.append((verb, number))
        return "ok"

    store, _, _ = flaky(plan)
    VERBS["claim"](store)
    VERBS["claim"](store)
    VERBS["complete"](store)
    assert asked == [("claim", 0), ("claim", 1), ("complete", 0)]


def test_calls_and_items_are_counted_also_those_that_fail(flaky):
    store, counted, _ = flaky({"mark_seen": ["before"]})
    marks = [Mark(RecordId("billing", "", key), 100.0) for key in "abc"]
    with pytest.raises(StoreUnavailable):
        store.mark_seen(marks)
    store.mark_seen(marks)
    store.stats()
    assert counted.calls == {"mark_seen": 2, "stats": 1}
    assert counted.items == {"mark_seen": 6, "stats": 0}
