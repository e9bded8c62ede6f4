"""What is put is written in the background; what cannot be written is counted, and answers go on."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from emblema.errors import StoreError
from emblema.store import ArtifactKey, Store
from emblema.store.settings import StoreSettings
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.stores import ONE, opened
from tests.store.tiers import FULL, FaultyDisk, Gate, wait_until


def test_saving_holds_nobody_up_and_flush_waits_for_it(disk: FaultyDisk) -> None:
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk) as store, ThreadPoolExecutor(1) as pool:
        view = store.tenant()
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
    with Store(disk, device_bytes=2 * ONE, settings=StoreSettings(write=write)) as store:
        view = store.tenant()
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


def test_a_full_disk_is_counted_answers_go_on_and_flush_says_so(
    disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(disk) as store:
        view = store.tenant()
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
        view = store.tenant()
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
    monkeypatch.setattr("emblema.store.cache.UNSAVED_BYTES", 0)
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk, device_bytes=3 * ONE) as store:
        view = store.tenant()
        for number in range(12):
            view.put(numbered(number))
            assert store.statistics.bytes <= 6 * ONE
        assert is_numbered(11, view.get(name(11)).rows)
        gate.open.set()
        with pytest.raises(StoreError, match="6 pieces"):
            view.flush()
        assert disk.count() == 6


def test_a_patch_formed_again_replaces_its_file(tmp_path: Path) -> None:
    key = ArtifactKey("m", name(1), ())
    with opened(tmp_path) as store:
        view = store.tenant()
        view.put(numbered(1))
        for rank in (1, 3):
            assert view.put_artifact(key, patch(rank))
            view.flush()
    with opened(tmp_path) as store:
        found = store.tenant().find_patch(key)
        assert found is not None and found.rank == 3


def test_a_flush_is_the_tenants_own(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    with contextlib.suppress(StoreError), Store(disk) as store:
        alice, bob = store.tenant(b"alice"), store.tenant(b"bob")
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
