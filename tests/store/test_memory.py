import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emblema.errors import CapacityError, StoreError
from emblema.store import ChunkSegment, MemoryStore, PatchKey, TextSegment
from tests.store.pieces import chunk, patch, rows


def test_chunks_come_back_as_they_were_put() -> None:
    store = MemoryStore()
    first = chunk("a")
    store.put(first)
    assert "a" in store and "b" not in store and 7 not in store
    assert store.get("a") is store.find("a") is first
    assert store.find("b") is None
    with pytest.raises(StoreError, match="add it again"):
        store.get("b")
    assert (len(store), store.bytes, store.ids()) == (1, 100, ["a"])
    assert (store.statistics.hits, store.statistics.misses) == (2, 2)
    store.put(chunk("a", 10))
    assert (len(store), store.bytes) == (1, 200)
    store.flush()


def test_the_least_recently_used_go_first() -> None:
    store = MemoryStore(300)
    for name in "abc":
        store.put(chunk(name))
    store.find("a")
    store.put(chunk("d"))
    assert store.ids() == ["c", "a", "d"]
    assert store.statistics.evictions == 1
    store.put(chunk("e", 15))
    assert store.ids() == ["e"]


def test_sizes_that_cannot_fit() -> None:
    store = MemoryStore(100)
    with pytest.raises(CapacityError, match="120 bytes"):
        store.put(chunk("a", 6))
    with pytest.raises(StoreError, match="positive"):
        MemoryStore(0)
    store.put(chunk("a", 2))
    assert not store.put_patch(PatchKey("m", "a", ()), patch(3)), "no answer fails for a patch that does not fit"
    assert store.ids() == ["a"]


def test_deleting_takes_every_patch_and_prefix_along() -> None:
    store = MemoryStore()
    for name in "abc":
        store.put(chunk(name))
    keys = [PatchKey("m", "b", ("a",)), PatchKey("m", "c", ("a", "b")), PatchKey("m", "c", ("b",), orbit=True)]
    for key in keys:
        assert store.put_patch(key, patch())
    prefixes = store.prefixes("owner")
    prefixes.put([ChunkSegment("a", 5), TextSegment((1,))], rows(6))
    assert store.delete("a")
    assert [store.find_patch(key) is None for key in keys] == [True, True, False]
    assert (len(store), store.statistics.patches, store.bytes, len(prefixes)) == (2, 1, 240, 0)
    assert not store.delete("a")
    assert store.delete("b")
    assert store.statistics.patches == 0


def test_deleting_reaches_patches_of_a_chunk_that_was_evicted() -> None:
    store = MemoryStore(300)
    key = PatchKey("m", "b", ("a",))
    store.put(chunk("a"))
    store.put(chunk("b"))
    store.put_patch(key, patch())
    store.put(chunk("c"))
    assert store.ids() == ["b", "c"] and store.find_patch(key) is not None
    assert store.delete("a")
    assert store.find_patch(key) is None


def test_a_patch_does_not_bring_back_what_was_deleted() -> None:
    store = MemoryStore()
    for name in "ab":
        store.put(chunk(name))
    with store.lease(["a", "b"]):
        store.delete("a")
        assert not store.put_patch(PatchKey("m", "b", ("a",)), patch())
    assert store.statistics.patches == 0


def test_patches_are_found_by_key_and_counted() -> None:
    store = MemoryStore()
    for name in "ab":
        store.put(chunk(name))
    key = PatchKey("m", "b", ("a",))
    assert store.find_patch(key) is None
    small, large = patch(1), patch(2)
    store.put_patch(key, small)
    assert store.find_patch(PatchKey("m", "b", ("a",))) is small
    store.put_patch(key, large)
    assert store.find_patch(key) is large
    assert store.bytes == 280
    assert store.find_patch(PatchKey("other", "b", ("a",))) is None
    assert (store.statistics.patch_hits, store.statistics.patch_misses) == (2, 2)


def test_leased_chunks_stay() -> None:
    store = MemoryStore(300)
    for name in "abc":
        store.put(chunk(name))
    with store.lease(["b", "a", "b"]) as held:
        assert [piece.id for piece in held] == ["b", "a", "b"]
        assert store.statistics.leased_bytes == 200
        store.put(chunk("d"))
        assert sorted(store.ids()) == ["a", "b", "d"]
        store.put(chunk("e", 10))
        assert sorted(store.ids()) == ["a", "b", "e"]
        assert store.bytes == 400
    assert store.bytes <= 300
    assert store.statistics.leased_bytes == 0


def test_leases_of_the_same_chunk_add_up() -> None:
    store = MemoryStore(200)
    store.put(chunk("a"))
    with store.lease(["a"]):
        with store.lease(["a"]):
            pass
        store.put(chunk("b", 10))
        assert "a" in store
    assert store.ids() == ["b"]


def test_what_cannot_be_leased() -> None:
    store = MemoryStore(300)
    for name in "ab":
        store.put(chunk(name))
    with pytest.raises(StoreError, match="not in the store"), store.lease(["a", "z"]):
        pass
    with store.lease(["a", "z"], skip_absent=True) as held:
        assert [piece.id for piece in held] == ["a"]
    with store.lease(["a", "b"]):
        store.put(chunk("c", 10))
        with pytest.raises(CapacityError, match="3 chunks need 400"), store.lease(["a", "b", "c"]):
            pass
    assert store.statistics.leased_bytes == 0


def test_a_lease_ends_when_its_block_fails() -> None:
    store = MemoryStore(100)
    store.put(chunk("a"))
    with pytest.raises(ZeroDivisionError), store.lease(["a"]):
        raise ZeroDivisionError
    store.put(chunk("b"))
    assert store.ids() == ["b"]


def test_a_lease_beyond_the_budget_waits_for_others() -> None:
    store = MemoryStore(200)
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
    store = MemoryStore(200)
    store.put(chunk("a"))
    with store.lease(["a"]):
        store.put(chunk("b", 8))
        started = time.monotonic()
        with pytest.raises(CapacityError, match="came free"), store.lease(["b"], timeout=0.05):
            pass
        assert time.monotonic() - started < 5
    assert store.bytes <= 200


def test_many_threads() -> None:
    store = MemoryStore(1000)
    failures: list[str] = []

    def work(seed: int) -> None:
        for step in range(150):
            name = str((seed * 7 + step * 3) % 20)
            store.put(chunk(name, 1 + step % 4))
            with store.lease([name], skip_absent=True) as held:
                if held and name not in store and step % 5:
                    failures.append(name)
            if step % 5 == 0:
                store.find(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not failures
    assert store.bytes == sum(store.get(name).bytes + store.get(name).encoded.bytes for name in store.ids()) <= 1000
    assert store.statistics.leased_bytes == 0


class StoreMachine(RuleBasedStateMachine):
    """Random use of a small store, beside a plain model of what must and must not be there."""

    names = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(400)
        self.versions: dict[str, Any] = {}
        self.patches: dict[PatchKey, Any] = {}
        self.leases: list[tuple[ExitStack, set[str]]] = []
        self.newest: object = None

    @property
    def leased(self) -> set[str]:
        return set().union(*(ids for _, ids in self.leases)) if self.leases else set()

    @rule(name=names, tokens=st.integers(1, 12))
    def put(self, name: str, tokens: int) -> None:
        piece = chunk(name, tokens)
        self.store.put(piece)
        self.versions[name] = piece
        self.newest = name

    @rule(name=names, before=st.lists(names, max_size=2, unique=True), orbit=st.booleans(), rank=st.integers(1, 3))
    def put_patch(self, name: str, before: list[str], orbit: bool, rank: int) -> None:
        key, piece = PatchKey("m", name, tuple(before), orbit), patch(rank)
        here = all(part in self.store for part in key.chunks)
        assert self.store.put_patch(key, piece) is here
        if here:
            self.patches[key] = piece
            self.newest = key

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.store.delete(name)
        self.versions.pop(name, None)
        for key in [key for key in self.patches if name in key.chunks]:
            del self.patches[key]

    @rule(name=names)
    def find(self, name: str) -> None:
        assert self.store.find(name) in (None, self.versions.get(name))

    @rule(wanted=st.lists(names, min_size=1, max_size=3))
    def lease(self, wanted: list[str]) -> None:
        absent = [name for name in wanted if name not in self.store]
        stack = ExitStack()
        try:
            held = stack.enter_context(self.store.lease(wanted, timeout=0.001))
        except StoreError:
            assert absent
        except CapacityError:
            together = set(wanted) | self.leased
            assert sum(self.size(name) for name in together) > 400
        else:
            assert not absent
            assert [piece.id for piece in held] == wanted
            self.leases.append((stack, set(wanted)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        stack, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        stack.close()

    def size(self, name: str) -> int:
        return 20 * self.versions[name].tokens if name in self.versions else 0

    @invariant()
    def bytes_add_up(self) -> None:
        held = sum(self.size(name) for name in self.store.ids())
        patches = sum(piece.bytes for key, piece in self.patches.items() if self.store.find_patch(key) is not None)
        assert self.store.bytes == held + patches

    @invariant()
    def over_budget_only_while_leased(self) -> None:
        if self.store.bytes <= 400:
            return
        assert self.leased
        loose = [name for name in self.store.ids() if name not in self.leased]
        loose += [key for key in self.patches if self.store.find_patch(key) is not None]
        assert loose in ([], [self.newest])

    @invariant()
    def leased_are_held_and_deleted_are_not(self) -> None:
        # A lease is on the id: a chunk deleted and put again under it is held as well.
        assert all(name in self.store for name in self.leased & self.versions.keys())
        assert set(self.store.ids()) <= self.versions.keys()
        assert all(self.store.find_patch(key) in (None, piece) for key, piece in self.patches.items())
        known = sum(self.store.find_patch(key) is not None for key in self.patches)
        assert self.store.statistics.patches == known

    def teardown(self) -> None:
        for stack, _ in self.leases:
            stack.close()
        assert self.store.bytes <= 400
        assert self.store.statistics.leased_bytes == 0


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(stateful_step_count=40)
