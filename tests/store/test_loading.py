"""What comes back from a slower tier is verified, in time, or made again."""

import threading
from pathlib import Path

import pytest
import torch

from emblema.errors import LoadError, StoreError
from emblema.store import Store
from emblema.store.settings import StoreSettings
from tests.store.pieces import is_numbered, name, numbered
from tests.store.stores import ONE, opened
from tests.store.tiers import FaultyDisk, FaultyTier, RecordingTier, spoiled, wait_until


@pytest.mark.parametrize(("found", "after"), [(False, 0), (False, 4), (False, 5), (True, 0), (True, 3), (True, 5)])
def test_a_file_that_does_not_verify_is_set_aside_and_made_again(disk: FaultyDisk, found: bool, after: int) -> None:
    """From the encoding to the last layer: the reader gets an error, never rows; filled again, it is stored again."""
    with Store(disk, device_bytes=2 * ONE) as store:
        view = store.tenant()
        for number in (1, 2, 3):
            view.put(numbered(number))
        view.flush()
        assert name(1) not in {piece.id for piece in store.cache.table}
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
    with Store(disk, device_bytes=ONE, settings=StoreSettings(load_deadline=0.2)) as store:
        view = store.tenant()
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
        disk.faults.open = held = threading.Event()
        assert view.find(name(2)) is None, "found missing while the disk still holds the call"
        assert not held.is_set()
        assert store.statistics.late_loads == 2
        held.set()


def test_a_remote_hit_is_written_to_the_disk(tmp_path: Path) -> None:
    remote = RecordingTier()
    with Store(remote=remote) as store:
        store.tenant().put(numbered(1))
        store.flush()
    assert len(remote.files) == 1
    with opened(tmp_path, remote=remote) as store:
        view = store.tenant()
        assert store.disk is not None and store.disk.count() == 0
        found = view.get(name(1))
        assert is_numbered(1, found.rows)
        view.flush()
        wait_until(lambda: store.disk.count() == 1)  # type: ignore[union-attr]
    with opened(tmp_path) as store:
        assert is_numbered(1, store.tenant().get(name(1)).rows)


def test_a_spoiled_file_is_replaced_by_the_remote_copy(tmp_path: Path) -> None:
    remote, disk = RecordingTier(), FaultyDisk(tmp_path / "store")
    with Store(disk, remote=remote, device_bytes=ONE) as store:
        view = store.tenant()
        # Both are here before the first is saved: what is on disk alone may leave memory before it is uploaded.
        with store.cache.changed:
            for number in (1, 2):
                view.put(numbered(number))
        view.flush()
        wait_until(lambda: len(remote.files) == 2 and store.statistics.bytes <= ONE)
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
        view = store.tenant()
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
        view = store.tenant()
        for number in (1, 2):
            view.put(numbered(number))
        view.flush()
    owner = view.owner
    remote.files[owner, name(1)], remote.files["0" * 64, name(3)] = remote.files[owner, name(2)], b"of nobody"
    with Store(remote=remote) as store:
        view = store.tenant()
        assert view.find(name(1)) is None and is_numbered(2, view.get(name(2)).rows)
        assert store.statistics.load_failures == 1


def test_a_handle_knows_when_its_rows_are_lost() -> None:
    with Store(device_bytes=ONE) as store:
        view = store.tenant()
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


def test_compressed_rows_come_back_in_their_dtype(tmp_path: Path) -> None:
    with opened(tmp_path, settings=StoreSettings(compression="bf16")) as store:
        store.tenant().put(numbered(1))
    with opened(tmp_path) as store:
        found = store.tenant().get(name(1))
        assert found.rows[0].keys.dtype == torch.float32 and is_numbered(1, found.rows)


def test_the_index_alone_answers_whether_something_is_here(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.tenant().put(numbered(1))
    with opened(tmp_path) as store:
        assert name(1) in store.tenant() and name(2) not in store.tenant() and "no id" not in store.tenant()
        assert store.tenant().find("no id") is None and not store.tenant().delete("no id")
        assert store.statistics.chunks == 0
