import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from emblema.errors import CapacityError, StoreError
from emblema.store import ArtifactKey, ArtifactKind, ChunkSegment, Store, TenantStore, TextSegment
from emblema.store.settings import StoreSettings
from tests.store.pieces import chunk, patch, rows


def memory_store(capacity_bytes: int | None = None) -> TenantStore:
    """Return a tenant's part of a store without slower tiers."""
    return Store(device_bytes=capacity_bytes, settings=StoreSettings(host_bytes=0)).tenant()


def test_chunks_come_back_as_they_were_put() -> None:
    store = memory_store()
    given = chunk("a")
    first = store.put(given)
    assert first.rows[0] is given.rows[0] and (first.bytes, first.encoded) == (80, given.encoded)
    assert "a" in store and "b" not in store and 7 not in store
    assert store.get("a") is store.find("a") is first
    assert store.find("b") is None
    with pytest.raises(StoreError, match="add it again"):
        store.get("b")
    assert (len(store), store.bytes, store.ids()) == (1, 100, ["a"])
    assert (store.statistics.hits, store.statistics.misses) == (2, 2)
    assert store.put(chunk("a")) is store.put(first) is first and first.rows[0] is given.rows[0]
    assert (len(store), store.bytes) == (1, 100)
    store.flush()


def test_the_least_recently_used_go_first() -> None:
    store = memory_store(300)
    for name in "abc":
        store.put(chunk(name))
    store.find("a")
    store.put(chunk("d"))
    assert store.ids() == ["c", "a", "d"]
    assert store.statistics.evictions == 1
    store.put(chunk("e", 15))
    assert store.ids() == ["e"]


def test_sizes_that_cannot_fit() -> None:
    store = memory_store(100)
    with pytest.raises(CapacityError, match="120 bytes"):
        store.put(chunk("a", 6))
    with pytest.raises(StoreError, match="more than 0"):
        memory_store(0)
    store.put(chunk("a", 2))
    assert not store.put_artifact(ArtifactKey("m", "a", ()), patch(3)), "no answer fails for a patch that does not fit"
    assert store.ids() == ["a"]


def test_deleting_takes_every_patch_and_prefix_along() -> None:
    store = memory_store()
    for name in "abc":
        store.put(chunk(name))
    keys = [
        ArtifactKey("m", "b", ("a",)),
        ArtifactKey("m", "c", ("a", "b")),
        ArtifactKey("m", "c", ("b",), ArtifactKind.ORBIT),
    ]
    for key in keys:
        assert store.put_artifact(key, patch())
    prefixes = store.prefixes("owner")
    prefixes.put([ChunkSegment("a", 5), TextSegment((1,))], rows(6))
    assert store.delete("a")
    assert [store.find_patch(key) is None for key in keys] == [True, True, False]
    assert (len(store), store.statistics.patches, store.bytes, len(prefixes)) == (2, 1, 240, 0)
    assert not store.delete("a")
    assert store.delete("b")
    assert store.statistics.patches == 0


def test_deleting_reaches_patches_of_a_chunk_that_was_evicted() -> None:
    store = memory_store(300)
    key = ArtifactKey("m", "b", ("a",))
    store.put(chunk("a"))
    store.put(chunk("b"))
    store.put_artifact(key, patch())
    # It has served, so that it stays and the oldest chunk goes.
    assert store.find_patch(key) is not None
    store.put(chunk("c"))
    assert store.ids() == ["b", "c"] and store.find_patch(key) is not None
    assert store.delete("a")
    assert store.find_patch(key) is None


def test_a_patch_that_never_served_goes_first() -> None:
    store = memory_store(300)
    served, idle = ArtifactKey("m", "b", ("a",)), ArtifactKey("m", "a", ("b",))
    for name in "ab":
        store.put(chunk(name))
    assert store.put_artifact(served, patch()) and store.find_patch(served) is not None
    # The newest of all, and the first to go: nothing was saved by it yet.
    assert store.put_artifact(idle, patch())
    store.put(chunk("c"))
    assert store.ids() == ["b", "c"]
    assert not store.has_artifact(idle) and store.has_artifact(served)


def test_a_patch_does_not_bring_back_what_was_deleted() -> None:
    store = memory_store()
    for name in "ab":
        store.put(chunk(name))
    with store.lease(["a", "b"]):
        store.delete("a")
        assert not store.put_artifact(ArtifactKey("m", "b", ("a",)), patch())
    assert store.statistics.patches == 0


def test_patches_are_found_by_key_and_counted() -> None:
    store = memory_store()
    for name in "ab":
        store.put(chunk(name))
    key = ArtifactKey("m", "b", ("a",))
    assert store.find_patch(key) is None
    small, large = patch(1), patch(2)
    store.put_artifact(key, small)
    assert store.find_patch(ArtifactKey("m", "b", ("a",))) is small
    store.put_artifact(key, large)
    assert store.find_patch(key) is large
    assert store.bytes == 280
    assert store.find_patch(ArtifactKey("other", "b", ("a",))) is None
    assert (store.statistics.patch_hits, store.statistics.patch_misses) == (2, 2)


def test_leased_chunks_stay() -> None:
    store = memory_store(300)
    for name in "abc":
        store.put(chunk(name))
    with store.lease(["b", "a", "b"]) as held:
        assert list(held.rows) == ["b", "a"] and held.missing == ()
        assert store.statistics.leased_bytes == 200
        store.put(chunk("d"))
        assert sorted(store.ids()) == ["a", "b", "d"]
        store.put(chunk("e", 10))
        assert sorted(store.ids()) == ["a", "b", "e"]
        assert store.bytes == 400
    assert store.bytes <= 300
    assert store.statistics.leased_bytes == 0


def test_leases_of_the_same_chunk_add_up() -> None:
    store = memory_store(200)
    store.put(chunk("a"))
    with store.lease(["a"]):
        with store.lease(["a"]):
            pass
        store.put(chunk("b", 10))
        assert "a" in store
    assert store.ids() == ["b"]


def test_what_cannot_be_leased() -> None:
    store = memory_store(300)
    for name in "ab":
        store.put(chunk(name))
    with store.lease(["a", "z"]) as held:
        assert (list(held.rows), held.missing) == (["a"], ("z",))
    with store.lease(["a", "b"]):
        store.put(chunk("c", 10))
        with pytest.raises(CapacityError, match="3 chunks need 400"), store.lease(["a", "b", "c"]):
            pass
    assert store.statistics.leased_bytes == 0


def test_a_lease_ends_when_its_block_fails() -> None:
    store = memory_store(100)
    store.put(chunk("a"))
    with pytest.raises(ZeroDivisionError), store.lease(["a"]):
        raise ZeroDivisionError
    store.put(chunk("b"))
    assert store.ids() == ["b"]


def test_a_lease_beyond_the_budget_waits_for_others() -> None:
    store = memory_store(200)
    store.put(chunk("a"))
    began = threading.Event()
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        stack.enter_context(store.lease(["a"]))
        store.put(chunk("b", 8))

        def other() -> bool:
            with store.lease(["b"], timeout=10):
                began.set()
                return "b" in store

        waiting = pool.submit(other)
        assert not began.wait(0.05)
        stack.close()
        assert waiting.result(10)
    assert store.ids() == ["b"]


def test_a_lease_that_waits_too_long_says_so() -> None:
    store = memory_store(200)
    store.put(chunk("a"))
    with store.lease(["a"]):
        store.put(chunk("b", 8))
        started = time.monotonic()
        with pytest.raises(CapacityError, match="came free"), store.lease(["b"], timeout=0.05):
            pass
        assert time.monotonic() - started < 5
    assert store.bytes <= 200
