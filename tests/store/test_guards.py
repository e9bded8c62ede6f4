"""What one tenant, one mistake or one hanging disk must not do to the others."""

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from emblema.errors import CapacityError, StoreError
from emblema.kv.layout import LayerRows
from emblema.store import ArtifactKey, ChunkSegment, Store, Terms
from emblema.store.pieces import Tombstones
from emblema.store.prefixes import PrefixRegistry
from emblema.store.settings import StoreSettings
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.tiers import Clock, FaultyDisk, RecordingTier, wait_until
from tests.threads import await_end, started_threads

ONE = 260
"""Bytes of a numbered chunk."""


def test_a_tenant_does_not_keep_the_shared_library_from_an_id(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.tenant(b"b").put(numbered(1))
        store.flush()
        store.shared.put(numbered(1))
        store.flush()
    with Store(tmp_path / "store") as store:
        assert name(1) in store.shared.ids() and is_numbered(1, store.tenant(b"a").get(name(1)).rows)


def test_a_lost_shared_chunk_is_not_stored_as_the_tenants(tmp_path: Path) -> None:
    with Store(tmp_path / "store", device_bytes=2 * ONE) as store:
        store.shared.put(numbered(1))
        store.flush()
        view = store.tenant(b"b")
        handle = view.get(name(1))
        for file in (tmp_path / "store").rglob("*.safetensors"):
            file.unlink()
        for number in (2, 3):
            view.put(numbered(number))
        view.flush()
        with view.lease([name(1)]) as lease:
            assert lease.missing == (name(1),)
            lease.fill(handle, numbered(1).rows)
            assert is_numbered(1, lease.rows[name(1)])
        assert name(1) not in view.ids() and name(1) not in store.shared.ids()


def test_pins_stay_within_the_quota(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        for number in range(3):
            store.tenant(b"b").put(numbered(number))
    size = max(file.stat().st_size for file in (tmp_path / "store").rglob("*.safetensors"))
    with Store(tmp_path / "store", quota=2 * size + ONE) as store:
        view = store.tenant(b"b")
        assert view.pin(name(0)) and view.pin(name(1))
        with pytest.raises(CapacityError, match="pinned"):
            view.pin(name(2))
        assert view.unpin(name(0)) and view.pin(name(2))
    with Store(device_bytes=3 * ONE) as store:
        view = store.tenant(b"b")
        for number in range(3):
            view.put(numbered(number), Terms(pinned=True))
        with pytest.raises(CapacityError, match="pinned"):
            view.put(numbered(3), Terms(pinned=True))
        assert view.unpin(name(0)) and view.put(numbered(3), Terms(pinned=True)).id == name(3)


def test_a_pin_saves_again_what_the_disk_has_evicted(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        view = store.tenant()
        view.put(numbered(1))
        view.flush()
        assert store.disk is not None and store.disk.evict(view.owner, 1) > 0
        assert view.pin(name(1))
        view.flush()
        assert store.disk.count() == 1


def test_tombstones_are_each_owners_own() -> None:
    stones = Tombstones(limit=3)
    stones.add(("a", "1"))
    for number in range(10):
        stones.add(("b", str(number)))
    assert ("a", "1") in stones and ("b", "9") in stones and ("b", "0") not in stones
    stones.discard(("a", "1"))
    assert ("a", "1") not in stones


def test_deleting_what_never_was_leaves_nothing_behind(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        view = store.tenant(b"b")
        assert not view.delete(name(7))
        assert (view.owner, name(7)) not in store.cache.table.tombstones
        kept = view.put(numbered(1))
        assert view.delete(name(1))
        with view.lease([name(1)]) as lease:
            lease.fill(kept, numbered(1).rows)
        assert view.ids() == [], "deletion wins over a handle that is still held"


def test_terms_come_with_what_a_remote_tier_has(tmp_path: Path) -> None:
    remote, clock = RecordingTier(), Clock()
    with Store(remote=remote, settings=StoreSettings(clock=clock)) as store:
        store.tenant().put(numbered(1), Terms(seconds=60, priority=3))
        store.flush()
    with Store(tmp_path / "store", remote=remote, settings=StoreSettings(clock=clock)) as store:
        view = store.tenant()
        assert is_numbered(1, view.get(name(1)).rows)
        view.flush()
        wait_until(lambda: store.disk is not None and store.disk.count() == 1)
        entry = store.disk.entry(name(1)) if store.disk is not None else None
        assert entry is not None and (entry.terms.seconds, entry.terms.priority) == (60, 3)
        clock.now += 61
        assert view.find(name(1)) is None


def test_a_hanging_disk_is_waited_for_once(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    hang, deadline = threading.Event(), 1.0
    with Store(disk, settings=StoreSettings(load_deadline=deadline)) as store:
        view = store.tenant(b"a")
        for number in range(1, 7):
            view.put(numbered(number))
        view.flush()
    disk = FaultyDisk(tmp_path / "store")
    opening = disk.open

    def hanging(id: str, owner: str):  # type: ignore[no-untyped-def]
        hang.wait(60)
        return opening(id, owner)

    disk.open = hanging  # type: ignore[method-assign]
    with Store(disk, settings=StoreSettings(load_deadline=deadline)) as store:
        view = store.tenant(b"a")
        began = time.monotonic()
        assert [view.find(name(number)) for number in range(1, 7)] == [None] * 6
        waited = time.monotonic() - began
        assert store.statistics.late_loads >= 6
        hang.set()
        wait_until(lambda: view.find(name(1)) is not None)
    assert waited < 2 * deadline, "two look-ups, each by itself, would have waited that long"


def test_a_prefetch_stays_within_the_budget(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        for number in range(8):
            store.tenant().put(numbered(number))
    disk = FaultyDisk(tmp_path / "store")
    with Store(disk, device_bytes=3 * ONE) as store:
        view = store.tenant()
        disk.faults.read = None
        view.prefetch([name(number) for number in range(8)])
        assert store.statistics.device_bytes <= 3 * ONE + 8 * 20
        with view.lease([name(number) for number in (5, 6, 7)]) as lease:
            assert all(is_numbered(number, lease.rows[name(number)]) for number in (5, 6, 7))


def rows(tokens: int) -> tuple[LayerRows, ...]:
    return (LayerRows(torch.zeros(1, tokens, 4), torch.zeros(1, tokens, 4)),)


def test_all_prefixes_share_one_budget() -> None:
    size = sum(layer.bytes for layer in rows(5))
    prefixes = PrefixRegistry(3 * size)
    for tenant in range(6):
        assert prefixes.of(f"tenant {tenant}", "model").put([ChunkSegment(name(tenant), 5)], rows(5))
    assert prefixes.bytes() == 3 * size
    assert prefixes.bytes("tenant 0") == 0 and prefixes.bytes("tenant 5") == size
    assert prefixes.forget("tenant 5", name(5)) and not prefixes.forget("tenant 4", name(5))


def test_what_has_expired_leaves_the_prefixes_too() -> None:
    clock = Clock()
    with Store(settings=StoreSettings(clock=clock)) as store:
        view = store.tenant()
        view.put(numbered(1), Terms(seconds=10))
        view.prefixes("model").put([ChunkSegment(name(1), 5)], rows(5))
        assert store.statistics.prefix_bytes > 0
        clock.now += 11
        store.expire()
        assert store.statistics.prefix_bytes == 0 and len(view.prefixes("model")) == 0


def test_a_store_that_is_dropped_is_written_and_let_go(tmp_path: Path) -> None:
    with started_threads() as started:
        store = Store(tmp_path / "store")
        store.tenant().put(numbered(1))
        cache, gone = store.cache, weakref.ref(store)
        del store
        gc.collect()
        assert gone() is None and cache.closed
    await_end(started, lambda name: name.startswith("emblema-saver"))
    with Store(tmp_path / "store") as store:
        assert is_numbered(1, store.tenant().get(name(1)).rows)


def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.tenant().put(numbered(1))
        store.flush()
        child = os.fork()
        if child == 0:
            try:
                store.tenant().find(name(1))
            except StoreError as error:
                os._exit(0 if "fork" in str(error) else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_numbered(1, store.tenant().get(name(1)).rows)


def test_a_tenant_may_not_lose_its_patch_to_anothers_flush(tmp_path: Path) -> None:
    key = ArtifactKey("m", name(1), ())
    with Store(tmp_path / "store") as store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        a.put(numbered(1))
        assert a.put_artifact(key, patch())
        b.flush()
        a.flush()
        assert store.disk is not None and store.disk.count() == 2
