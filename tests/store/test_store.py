import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.kv.arriving import ArrivingRows
from emblema.store import PatchKey, Store, Terms
from emblema.store.disk import DiskTier
from emblema.store.store import free_bytes
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.tiers import FULL, Clock, FaultyDisk, FaultyTier, Gate, RecordingTier, spoiled, wait_until

ONE = 260
"""Bytes of a numbered chunk: 3 layers of 80 bytes, 20 of embeddings."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    yield FaultyDisk(tmp_path / "store")


def opened(folder: Path, **options: Any) -> Store:
    return Store(folder / "store", **options)


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    key = PatchKey("m", name(2), (name(1),))
    with opened(tmp_path) as store:
        view = store.view(b"tenant")
        for number in (1, 2):
            view.put(numbered(number))
        assert view.put_patch(key, patch(2))
        view.flush()
        assert store.statistics.saves == 3 and store.statistics.unsaved_bytes == 0
    with opened(tmp_path) as store:
        view = store.view(b"tenant")
        assert store.disk is not None and store.disk.report.restored == 3
        assert sorted(view.ids()) == [name(1), name(2)] and len(view) == 2 and name(1) in view
        assert store.statistics.bytes == 0, "nothing is in memory before it is asked for"
        found = view.get(name(1))
        assert (found.tokens, found.bytes, found.model, found.kind) == (5, 240, "model", "image")
        assert store.statistics.bytes == 20, "its encoding alone"
        assert is_numbered(1, found.rows) and is_numbered(1, found.rows)
        wait_until(lambda: store.statistics.loads == 1)
        assert store.statistics.bytes == ONE
        held = view.find_patch(key)
        assert held is not None and held.rank == 2
        with view.lease([name(1), name(2)]) as lease:
            assert isinstance(lease.rows[name(1)], tuple) and isinstance(lease.rows[name(2)], ArrivingRows)
            assert is_numbered(1, lease.rows[name(1)]) and is_numbered(2, lease.rows[name(2)])
            assert lease.missing == () and store.statistics.leased_bytes == 2 * ONE


def test_saving_holds_nobody_up_and_flush_waits_for_it(disk: FaultyDisk) -> None:
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk) as store, ThreadPoolExecutor(1) as pool:
        view = store.view()
        view.put(numbered(1))
        assert gate.reached.wait(10)
        assert is_numbered(1, view.get(name(1)).rows), "found while it is being written"
        view.put(numbered(2))
        flushed = pool.submit(view.flush)
        time.sleep(0.05)
        assert not flushed.done() and store.statistics.unsaved_bytes == 2 * ONE
        gate.open.set()
        flushed.result(10)
        assert store.statistics.unsaved_bytes == 0 and disk.count() == 2


@pytest.mark.parametrize("write", ["through", "back"])
def test_through_writes_at_once_and_back_when_it_leaves_memory(
    disk: FaultyDisk, write: Literal["through", "back"]
) -> None:
    with Store(disk, write=write, device_bytes=2 * ONE) as store:
        view = store.view()
        for number in (1, 2):
            view.put(numbered(number))
        if write == "through":
            wait_until(lambda: disk.count() == 2)
        else:
            time.sleep(0.1)
            assert disk.count() == 0
        view.put(numbered(3))
        wait_until(lambda: store.statistics.bytes <= 2 * ONE)
        wait_until(lambda: disk.count() == (3 if write == "through" else 1))
        assert is_numbered(1, view.get(name(1)).rows), "it left memory for the disk"
        view.flush()
        assert disk.count() == 3 and store.statistics.save_failures == 0


def test_device_then_host_then_disk(tmp_path: Path) -> None:
    with opened(tmp_path, device_bytes=2 * ONE, host_bytes=2 * ONE) as store:
        view = store.view()
        for number in range(1, 6):
            view.put(numbered(number))
        view.flush()
        seen = store.statistics
        assert (seen.device_bytes, seen.host_bytes, seen.chunks) == (2 * ONE, 2 * ONE, 4)
        assert seen.demotions == 3 and seen.evictions == 1
        with view.lease([name(2)]) as lease:
            assert is_numbered(2, lease.rows[name(2)])
            assert store.statistics.promotions == 1 and store.statistics.loads == 0
        with view.lease([name(1)]) as lease:
            assert is_numbered(1, lease.rows[name(1)])
            wait_until(lambda: store.statistics.loads == 1)
        assert store.statistics.device_bytes <= 2 * ONE and store.statistics.host_bytes <= 2 * ONE


def test_a_full_disk_is_counted_answers_go_on_and_flush_says_so(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(disk) as store:
        view = store.view()
        disk.faults.write = FULL
        for number in range(3):
            view.put(numbered(number))
        with pytest.raises(StoreError, match="3 pieces are on no slower tier"):
            view.flush()
        assert store.statistics.save_failures >= 3
        assert caplog.text.count("no space left") == 1, "logged once, not for every piece"
        assert all(is_numbered(number, view.get(name(number)).rows) for number in range(3))
        disk.faults.write = None
        view.flush()
        assert disk.count() == 3


def test_what_a_full_disk_did_not_take_may_leave_memory_but_not_in_silence(disk: FaultyDisk) -> None:
    with Store(disk, device_bytes=2 * ONE) as store:
        view = store.view()
        disk.faults.write = FULL
        for number in range(4):
            view.put(numbered(number))
        wait_until(lambda: store.statistics.bytes <= 2 * ONE)
        assert view.find(name(0)) is None
        disk.faults.write = None
        with pytest.raises(StoreError, match="2 pieces"):
            view.flush()
        view.flush()
        assert disk.count() == 2


def test_memory_is_bounded_where_saving_falls_behind(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.store.traffic.UNSAVED_BYTES", 0)
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk, device_bytes=3 * ONE) as store:
        view = store.view()
        for number in range(12):
            view.put(numbered(number))
            assert store.statistics.bytes <= 6 * ONE
        assert is_numbered(11, view.get(name(11)).rows)
        gate.open.set()
        with pytest.raises(StoreError, match="6 pieces"):
            view.flush()
        assert disk.count() == 6


def test_a_patch_formed_again_replaces_its_file(tmp_path: Path) -> None:
    key = PatchKey("m", name(1), ())
    with opened(tmp_path) as store:
        view = store.view()
        view.put(numbered(1))
        for rank in (1, 3):
            assert view.put_patch(key, patch(rank))
            view.flush()
    with opened(tmp_path) as store:
        found = store.view().find_patch(key)
        assert found is not None and found.rank == 3


def test_a_chunk_of_another_store_is_taken_with_its_rows(tmp_path: Path) -> None:
    with Store() as first, opened(tmp_path) as second:
        given = first.view().put(numbered(1))
        kept = second.view(b"tenant").put(given)
        first.view().delete(name(1))
        assert is_numbered(1, kept.rows)


@pytest.mark.parametrize(("found", "after"), [(False, 0), (False, 4), (False, 5), (True, 0), (True, 3), (True, 5)])
def test_a_file_that_does_not_verify_is_set_aside_and_made_again(disk: FaultyDisk, found: bool, after: int) -> None:
    """From the encoding to the last layer: the reader gets an error, never rows; filled again, it is stored again."""
    with Store(disk, device_bytes=2 * ONE) as store:
        view = store.view()
        for number in (1, 2, 3):
            view.put(numbered(number))
        view.flush()
        assert name(1) not in {piece.id for piece in store.keeper.memory}
        reads: list[bool] = []
        handle = view.find(name(1)) if found else None
        disk.faults.after, disk.faults.read = after, spoiled(name(1))
        with view.lease([name(1), name(3)]) as lease:
            try:
                reads = [is_numbered(1, lease.rows[name(1)])] if name(1) in lease.rows else []
            except LoadError as error:
                lease.drop(error)
            assert reads == [] and lease.missing == (name(1),) and list(lease.rows) == [name(3)]
            disk.faults.read = None
            lease.fill(numbered(1))
            assert lease.missing == () and is_numbered(1, lease.rows[name(1)])
            assert store.statistics.leased_bytes == 2 * ONE
        assert (store.statistics.load_failures, store.statistics.quarantined) == (1, 1)
        view.flush()
        assert disk.entry(name(1)) is not None and store.statistics.leased_bytes == 0
        assert handle is None or is_numbered(1, handle.rows)
        with pytest.raises(LoadError), view.lease([name(1)]) as lease:
            lease.drop(LoadError(name(9), "of another prompt"))


def test_a_slow_load_is_given_up_at_the_deadline(disk: FaultyDisk) -> None:
    with Store(disk, device_bytes=ONE, load_deadline=0.2) as store:
        view = store.view()
        for number in (1, 2):
            view.put(numbered(number))
        view.flush()
        found = view.get(name(1))
        disk.faults.read = 0.15
        with view.lease([name(1)]) as lease:
            with pytest.raises(LoadError, match="0.2 s") as caught:
                is_numbered(1, lease.rows[name(1)])
            lease.drop(caught.value)
            assert lease.missing == (name(1),)
            lease.fill(numbered(1))
            assert is_numbered(1, lease.rows[name(1)])
        disk.faults.read = None
        assert (store.statistics.late_loads, store.statistics.quarantined) == (1, 0)
        assert is_numbered(1, found.rows)
        wait_until(lambda: store.statistics.bytes <= ONE)
        disk.faults.open = 0.5
        began = time.monotonic()
        assert view.find(name(2)) is None and time.monotonic() - began < 0.45
        assert store.statistics.late_loads == 2


def test_a_remote_hit_is_written_to_the_disk(tmp_path: Path) -> None:
    remote = RecordingTier()
    with Store(remote=remote) as store:
        store.view().put(numbered(1))
        store.flush()
    assert len(remote.files) == 1
    with opened(tmp_path, remote=remote) as store:
        view = store.view()
        assert store.disk is not None and store.disk.count() == 0
        found = view.get(name(1))
        assert is_numbered(1, found.rows)
        view.flush()
        wait_until(lambda: store.disk.count() == 1)  # type: ignore[union-attr]
    with opened(tmp_path) as store:
        assert is_numbered(1, store.view().get(name(1)).rows)


def test_a_spoiled_file_is_replaced_by_the_remote_copy(tmp_path: Path) -> None:
    remote, disk = RecordingTier(), FaultyDisk(tmp_path / "store")
    with Store(disk, remote=remote, device_bytes=ONE) as store:
        view = store.view()
        for number in (1, 2):
            view.put(numbered(number))
        view.flush()
        assert view.find(name(1)) is not None
        disk.faults.read = spoiled(name(1))
        with view.lease([name(1)]) as lease:
            assert is_numbered(1, lease.rows[name(1)])
        assert store.statistics.quarantined == 1
        disk.faults.read = None
        wait_until(lambda: disk.entry(name(1)) is not None)


def test_a_remote_that_fails_costs_a_miss_and_nothing_more(tmp_path: Path) -> None:
    remote = FaultyTier()
    with opened(tmp_path, remote=remote) as store:
        view = store.view()
        remote.faults.open = remote.faults.write = StoreError("the connection was refused")
        assert view.find(name(1)) is None
        view.put(numbered(1))
        view.flush()
        assert is_numbered(1, view.get(name(1)).rows), "it is on disk, so it is durable"
        assert store.statistics.remote_failures >= 2 and store.statistics.save_failures >= 1
        remote.faults.delete = StoreError("the connection was refused")
        with pytest.raises(StoreError, match="delete it again"):
            view.delete(name(1))
        assert view.find(name(1)) is None
        remote.faults = type(remote.faults)()
        assert not view.delete(name(1))


def test_another_pieces_bytes_are_refused(tmp_path: Path) -> None:
    remote = RecordingTier()
    with Store(remote=remote) as store:
        view = store.view()
        for number in (1, 2):
            view.put(numbered(number))
        view.flush()
    owner = view.owner
    remote.files[owner, name(1)], remote.files["0" * 64, name(3)] = remote.files[owner, name(2)], b"of nobody"
    with Store(remote=remote) as store:
        view = store.view()
        assert view.find(name(1)) is None and is_numbered(2, view.get(name(2)).rows)
        assert store.statistics.load_failures == 1


def test_deletion_wins_over_a_save_under_way(disk: FaultyDisk) -> None:
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk) as store, ThreadPoolExecutor(1) as pool:
        view = store.view()
        view.put(numbered(1))
        view.put(numbered(2))
        assert gate.reached.wait(10)
        deleted = pool.submit(lambda: (view.delete(name(1)), view.delete(name(2))))
        wait_until(lambda: name(1) not in {piece.id for piece in store.keeper.memory})
        assert view.find(name(1)) is None
        gate.open.set()
        assert deleted.result(10) == (True, True)
        assert view.find(name(1)) is None and disk.count() == 0
        store.flush()
        assert disk.count() == 0
        view.put(numbered(1))
        view.flush()
        assert disk.count() == 1 and is_numbered(1, view.get(name(1)).rows), "put again, it is back"


def test_deletion_wins_over_a_load_and_a_look_up_under_way(disk: FaultyDisk) -> None:
    with Store(disk, device_bytes=ONE) as store, ThreadPoolExecutor(1) as pool:
        view = store.view()
        for number in (1, 2):
            view.put(numbered(number))
        view.flush()
        gate = Gate()
        open_ = disk.open

        def slow_open(id: str, owner: str) -> Any:
            reader = open_(id, owner)
            gate.pass_through()
            return reader

        disk.open = slow_open  # type: ignore[method-assign]
        looking = pool.submit(view.find, name(1))
        assert gate.reached.wait(10)
        assert view.delete(name(1))
        gate.open.set()
        assert looking.result(10) is None and view.find(name(1)) is None

        disk.open = open_  # type: ignore[method-assign]
        view.put(numbered(3))
        view.flush()
        assert view.find(name(2)) is not None
        disk.faults.read = 0.05
        with view.lease([name(2)]) as lease:
            assert lease.rows[name(2)][0].tokens == 5, "its file is open"
            assert view.delete(name(2))
            assert is_numbered(2, lease.rows[name(2)]), "whoever holds it reads on"
            assert store.statistics.bytes >= ONE, "and what it holds is counted"
        assert view.find(name(2)) is None
        wait_until(lambda: store.statistics.bytes <= ONE)
        assert disk.count() == 1


def test_a_handle_knows_when_its_rows_are_lost() -> None:
    with Store(device_bytes=ONE) as store:
        view = store.view()
        first = view.put(numbered(1))
        assert is_numbered(1, first.rows) and is_numbered(1, first.rows[:])
        view.put(numbered(2))
        with pytest.raises(LoadError, match="could not be loaded"):
            first.rows[0]
        with pytest.raises(StoreError, match="add its media again"):
            view.put(first)
        with view.lease([first.id]) as lease:
            assert lease.missing == (first.id,)
            lease.fill(numbered(1))
        assert is_numbered(1, first.rows), "evicted, made again, kept again"
        view.delete(first.id)
        with view.lease([first.id]) as lease:
            lease.fill(numbered(1))
            assert is_numbered(1, lease.rows[first.id])
            assert store.statistics.leased_bytes == ONE == store.statistics.bytes
        assert first.id not in view and store.statistics.bytes == 0, "deleted, made again, not kept"


def test_patches_go_with_any_of_their_chunks_in_every_tier_and_across_restarts(tmp_path: Path) -> None:
    remote = RecordingTier()
    keys = [PatchKey("m", name(2), (name(1),)), PatchKey("m", name(3), (name(2),)), PatchKey("m", name(3), ())]
    with opened(tmp_path, remote=remote) as store:
        view = store.view()
        for number in (1, 2, 3):
            view.put(numbered(number))
        assert all(view.put_patch(key, patch()) for key in keys)
        assert not view.put_patch(PatchKey("m", name(1), (name(9),)), patch())
        view.flush()
    with opened(tmp_path, remote=remote) as store:
        view = store.view()
        assert view.find_patch(keys[0]) is not None
        assert view.delete(name(2))
        assert [view.find_patch(key) is None for key in keys] == [True, True, False]
        assert store.disk is not None and store.disk.count(kind="patch") == 1
        assert sum(bool(header.chunks) for header in remote.headers.values()) == 1
        assert view.forget_patches(name(3)) == 1 and name(3) in view
    for options in ({}, {"remote": remote}):
        with opened(tmp_path, **options) as store:
            view = store.view()
            assert all(view.find_patch(key) is None for key in keys)
            assert view.find(name(2)) is None and sorted(view.ids()) == [name(1), name(3)]


def test_terms_by_age_and_by_use(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        view = store.view()
        view.put(numbered(1), Terms(seconds=100))
        view.put(numbered(2), Terms(idle_seconds=100))
        view.put(numbered(3))
        view.flush()
        clock.now += 60
        assert all(view.find(name(number)) is not None for number in (1, 2, 3))
        clock.now += 60
        assert view.find(name(1)) is None and name(1) not in view
        assert view.find(name(2)) is not None
        clock.now -= 10_000
        assert view.find(name(1)) is None, "a clock that jumps back brings nothing back"
        assert view.find(name(2)) is not None, "and ends nothing"
        clock.now += 101
        assert store.expire() == 1 and store.statistics.expired == 2
        assert store.disk is not None
        assert view.ids() == [name(3)] and store.disk.count() == 1
        with view.lease([name(1), name(3)]) as lease:
            assert lease.missing == (name(1),)
            lease.fill(numbered(1))
        assert name(1) not in view, "expired: used, not kept"


def test_terms_outlast_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        store.view().put(numbered(1), Terms(seconds=50))
        store.view().put(numbered(2), Terms(seconds=500))
    clock.now += 60
    with opened(tmp_path, clock=clock) as store:
        view = store.view()
        assert view.ids() == [name(2)] and view.find(name(1)) is None
        assert view.find(name(2)) is not None
        clock.now += 450
        assert view.find(name(2)) is None
        view.put(numbered(2), Terms(seconds=500))
        view.flush()
        clock.now += 100
        assert view.find(name(2)) is not None
    with opened(tmp_path, clock=clock) as store:
        assert store.view().ids() == [name(2)], "the file is that of the second time"


def test_pins_and_priorities() -> None:
    with Store(device_bytes=3 * ONE) as store:
        view = store.view()
        view.put(numbered(1), Terms(pinned=True))
        view.put(numbered(2), Terms(priority=1))
        for number in range(3, 8):
            view.put(numbered(number))
        assert sorted(view.ids()) == [name(1), name(2), name(7)]
        assert view.unpin(name(1)) and view.pin(name(7)) and not view.pin(name(9))
        view.put(numbered(8))
        view.put(numbered(9))
        assert sorted(view.ids()) == [name(2), name(7), name(9)]
        assert view.delete(name(7))


def test_a_pin_is_kept_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        view = store.view()
        view.put(numbered(1))
        view.pin(name(1))
        view.flush()
    with opened(tmp_path) as store:
        assert store.disk is not None
        entry = store.disk.entry(name(1))
        assert entry is not None and entry.terms.pinned
        assert store.view().unpin(name(1))
        entry = store.disk.entry(name(1))
        assert entry is not None and not entry.terms.pinned


def test_a_hundred_prompts_over_twenty_chunks_with_room_for_five(tmp_path: Path) -> None:
    """The rows are right, nothing in use is evicted, nobody waits for ever."""
    wrong: list[int] = []
    most = threading.Lock(), [0]
    with opened(tmp_path, device_bytes=5 * ONE) as store:
        view = store.view()
        for number in range(20):
            view.put(numbered(number))
        view.flush()

        def prompt(seed: int) -> None:
            numbers = {(seed * 7 + step * 3) % 20 for step in range(1 + seed % 5)}
            with view.lease([name(number) for number in numbers], timeout=60) as lease:
                with most[0]:
                    most[1][0] = max(most[1][0], store.statistics.leased_bytes)
                for number in numbers:
                    if not is_numbered(number, lease.rows[name(number)]):
                        wrong.append(number)
                    if name(number) not in {piece.id for piece in store.keeper.memory if piece.leases}:
                        wrong.append(number)
                if seed % 10 == 0:
                    time.sleep(0.01)

        with ThreadPoolExecutor(100) as pool:
            list(pool.map(prompt, range(100)))
        assert not wrong
        assert 0 < most[1][0] <= 5 * ONE
        wait_until(lambda: store.statistics.bytes <= 5 * ONE)
        assert store.statistics.leased_bytes == 0 and store.statistics.load_failures == 0
        with pytest.raises(CapacityError, match="6 chunks need"), view.lease([name(number) for number in range(6)]):
            pass


def test_a_small_lease_does_not_overtake_a_large_one_that_waits(tmp_path: Path) -> None:
    with Store(tmp_path / "store", device_bytes=3 * ONE) as store, ThreadPoolExecutor(2) as pool:
        view = store.view()
        for number in range(5):
            view.put(numbered(number))
        view.flush()
        order: list[str] = []

        def take(what: str, numbers: list[int]) -> None:
            with view.lease([name(number) for number in numbers], timeout=10):
                order.append(what)

        with view.lease([name(0)]):
            large = pool.submit(take, "large", [1, 2, 3])
            wait_until(lambda: len(store.waiting) == 1)
            small = pool.submit(take, "small", [4])
            wait_until(lambda: len(store.waiting) == 2)
            with view.lease([name(0)]):
                assert order == [], "what needs nothing new passes"
        large.result(10)
        small.result(10)
        assert order == ["large", "small"]


def test_a_closed_store_says_so_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", load_deadline=30.0)
    view = store.view()
    kept = view.put(numbered(1))
    store.close()
    store.close()
    for call in (
        lambda: view.find(name(1)), lambda: view.get(name(2)), lambda: view.put(numbered(3)), lambda: kept.rows[0],
        lambda: view.lease([name(1)]).__enter__(),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="closed"):
            call()


def test_a_flush_is_the_tenants_own(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    with contextlib.suppress(StoreError), Store(disk) as store:
        alice, bob = store.view(b"alice"), store.view(b"bob")
        alice.put(numbered(1))
        alice.flush()
        disk.faults.write = OSError(28, "No space left on device")
        bob.put(numbered(2))
        with pytest.raises(StoreError, match="1 pieces"):
            bob.flush()
        alice.flush()
        with pytest.raises(StoreError, match="1 pieces"):
            bob.flush()
        disk.faults.write = None
        bob.flush()
        store.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"write": "throgh"}, {"compression": "zip"}, {"load_deadline": -1}, {"load_deadline": 0}, {"prefix_bytes": -5},
        {"host_bytes": -3}, {"device_bytes": "lots"}, {"device_bytes": float("nan")}, {"quota": True},
    ],
)  # fmt: skip
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Store(**options)


@pytest.mark.parametrize(
    "terms",
    [{"seconds": -1}, {"seconds": "7"}, {"idle_seconds": float("nan")}, {"priority": 2**31}, {"priority": 0.5},
     {"pinned": "yes"}],
)  # fmt: skip
def test_terms_that_cannot_be(terms: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Terms(**terms)


def test_an_open_disk_tier_has_its_own_budget(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="open already"):
        Store(FaultyDisk(tmp_path / "store"), disk_bytes=100)


def test_the_default_budget_is_a_part_of_what_is_free() -> None:
    with Store() as store:
        budget = store.view().capacity_bytes
    assert budget is not None and 0 < budget <= free_bytes(torch.device("cpu"))


def test_budgets_and_folders_that_cannot_be(tmp_path: Path) -> None:
    for options in ({"device_bytes": 0}, {"quota": -1}, {"quotas": {b"a": 0}}, {"disk_bytes": 100}):
        with pytest.raises(StoreError):
            Store(**options)
    with Store(device_bytes=100) as store, pytest.raises(CapacityError, match="260 bytes"):
        store.view().put(numbered(1))
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError):
        opened(tmp_path)


def test_compressed_rows_come_back_in_their_dtype(tmp_path: Path) -> None:
    with opened(tmp_path, compression="bf16") as store:
        store.view().put(numbered(1))
    with opened(tmp_path) as store:
        found = store.view().get(name(1))
        assert found.rows[0].keys.dtype == torch.float32 and is_numbered(1, found.rows)


def test_the_index_alone_answers_whether_something_is_here(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.view().put(numbered(1))
    with opened(tmp_path) as store:
        assert name(1) in store.view() and name(2) not in store.view() and "no id" not in store.view()
        assert store.view().find("no id") is None and not store.view().delete("no id")
        assert store.statistics.chunks == 0


def test_a_disk_tier_of_ones_own(tmp_path: Path) -> None:
    with Store(DiskTier(tmp_path / "own", 10_000_000)) as store:
        store.view().put(replace(numbered(1), kind="page"))
    with Store(tmp_path / "own") as store:
        assert store.view().get(name(1)).kind == "page"
