"""What is special to the memory store beyond the conformance suite: its bound, its slices, its lock."""

from __future__ import annotations

import os

import pytest

from onceonly import ConfigurationError, Once, StoreFull
from onceonly.stores import open_store
from onceonly.stores.memory import MemoryStore
from onceonly.testing import ManualClock
from onceonly.types import ClaimRequest, Completion, Mark, RecordId

GROUP = "billing"


def mark(key, window=10.0):
    return Mark(RecordId(GROUP, "", key), window)


@pytest.mark.parametrize("url", ["memory://shared", "memory:///records.db", "memory:name"])
def test_a_url_that_names_a_memory_is_refused_two_engines_would_not_share_it(url):
    with pytest.raises(ConfigurationError, match=r"memory:// has no name"):
        open_store(url)


def test_a_full_store_refuses_the_whole_batch_and_drops_nothing():
    store = MemoryStore(max_records=2, clock=ManualClock())
    assert store.mark_seen([mark("a")]) == [True]
    with pytest.raises(StoreFull, match="limit of 2 records and 2 more"):
        store.mark_seen([mark("b"), mark("c")])
    assert store.mark_seen([mark("a"), mark("b")]) == [False, True]


def test_a_full_store_takes_new_keys_as_soon_as_old_ones_have_expired():
    clock = ManualClock()
    store = MemoryStore(max_records=2, clock=clock)
    store.mark_seen([mark("a", 0.5), mark("b", 0.5)])
    with pytest.raises(StoreFull):
        store.mark_seen([mark("c")])
    clock.advance(0.51)  # within the same slice of time
    assert store.mark_seen([mark("c"), mark("d")]) == [True, True]


def test_a_full_store_finds_room_where_a_completion_ended_earlier_than_its_lease_would_have():
    clock = ManualClock()
    store = MemoryStore(max_records=1, clock=clock)
    record_id = RecordId(GROUP, "", "a")
    store.claim([ClaimRequest(record_id, b"t", 100.0, 1.0)])
    store.complete([Completion(record_id, b"t", 1.0)])
    clock.advance(1.01)
    assert store.mark_seen([mark("b")]) == [True]


def test_expired_records_leave_by_themselves_and_so_do_their_slices():
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for number in range(100):
        store.mark_seen([mark(f"k{number}", window=2.0)])
        clock.advance(1)
    assert len(store._entries) <= 4
    assert sum(map(len, store._slices.values())) <= 4


def test_keys_that_are_forgotten_and_come_again_do_not_pile_up():
    store = MemoryStore(max_records=10, clock=ManualClock())
    for _ in range(1000):
        store.mark_seen([mark("k")])
        store.forget([RecordId(GROUP, "", "k")])
    assert sum(map(len, store._slices.values())) <= 12


def test_a_large_limit_is_not_scanned_at_every_call_once_it_is_reached():
    clock, scans = ManualClock(), []

    class Counting(MemoryStore):
        def _drop_expired(self, now, limit):
            scans.append(now)
            super()._drop_expired(now, limit)

    store = Counting(max_records=1000, clock=clock)
    store.mark_seen([mark(f"k{number}") for number in range(1000)])
    for _ in range(100):
        with pytest.raises(StoreFull):
            store.mark_seen([mark("more")])
        clock.advance(0.0001)
    assert 5 <= len(scans) <= 20


def test_after_a_fork_the_store_is_made_ready_once_however_many_engines_share_it():
    store = MemoryStore()
    engines = [Once(store, group=GROUP), Once(store, group="mail")]
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        locks = []
        for engine in engines:
            engine.first_time("k")
            locks.append(store._lock)
        os.write(writer, b"same" if locks[0] is locks[1] else b"other")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"same"
    os.close(reader)
    os.close(writer)
