"""A store over its tiers: restarts, demotion, closing, options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema.errors import CapacityError, StoreError
from emblema.store import ArtifactKey, Store
from emblema.store.arriving import ArrivingRows
from emblema.store.disk import DiskTier
from emblema.store.settings import StoreSettings, free_bytes
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.stores import ONE, opened
from tests.store.tiers import FaultyDisk, wait_until


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    key = ArtifactKey("m", name(2), (name(1),))
    with opened(tmp_path) as store:
        view = store.tenant(b"tenant")
        for number in (1, 2):
            view.put(numbered(number))
        assert view.put_artifact(key, patch(2))
        view.flush()
        assert store.statistics.saves == 3 and store.statistics.unsaved_bytes == 0
    with opened(tmp_path) as store:
        view = store.tenant(b"tenant")
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


def test_device_then_host_then_disk(tmp_path: Path) -> None:
    with opened(tmp_path, device_bytes=2 * ONE, settings=StoreSettings(host_bytes=2 * ONE)) as store:
        view = store.tenant()
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


@pytest.mark.parametrize("pinned", [False, True])
def test_rows_that_are_loaded_are_page_locked_where_that_is_wanted(
    tmp_path: Path, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        locked.append(tensor.clone())
        return locked[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    with opened(tmp_path) as store:
        store.tenant().put(numbered(1))
        store.flush()
    with opened(tmp_path, settings=StoreSettings(device="cpu", pinned=pinned)) as store:
        with store.tenant().lease([name(1)]) as lease:
            rows = lease.rows[name(1)]
            assert is_numbered(1, rows)
            kept = [part for layer in rows for part in (layer.keys, layer.values)]
        assert len(locked) == (len(kept) if pinned else 0)
        assert all(any(part is own for own in locked) for part in kept) == pinned


def test_a_chunk_of_another_store_is_taken_with_its_rows(tmp_path: Path) -> None:
    with Store() as first, opened(tmp_path) as second:
        given = first.tenant().put(numbered(1))
        kept = second.tenant(b"tenant").put(given)
        first.tenant().delete(name(1))
        assert is_numbered(1, kept.rows)


def test_a_closed_store_says_so_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", settings=StoreSettings(load_deadline=30.0))
    view = store.tenant()
    kept = view.put(numbered(1))
    store.close()
    store.close()
    for call in (
        lambda: view.find(name(1)), lambda: view.get(name(2)), lambda: view.put(numbered(3)), lambda: kept.rows[0],
        lambda: view.lease([name(1)]).__enter__(),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="closed"):
            call()


@pytest.mark.parametrize(
    "options",
    [
        {"write": "throgh"}, {"compression": "zip"}, {"load_deadline": -1}, {"load_deadline": 0}, {"prefix_bytes": -5},
        {"host_bytes": -3}, {"quotas": {b"a": 0}},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        StoreSettings(**options)


@pytest.mark.parametrize(
    "options",
    [{"device_bytes": "lots"}, {"device_bytes": float("nan")}, {"device_bytes": 0}, {"quota": True}, {"quota": -1}],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        Store(**options)


def test_an_open_disk_tier_has_its_own_budget(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="open already"):
        Store(FaultyDisk(tmp_path / "store"), disk_bytes=100)


def test_the_default_budget_is_a_part_of_what_is_free() -> None:
    with Store() as store:
        budget = store.cache.table.budgets["device"]
    assert budget is not None and 0 < budget <= free_bytes(torch.device("cpu"))


def test_budgets_and_folders_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Store(disk_bytes=100)
    with Store(device_bytes=100) as store, pytest.raises(CapacityError, match="260 bytes"):
        store.tenant().put(numbered(1))
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError):
        opened(tmp_path)


def test_a_disk_tier_of_ones_own(tmp_path: Path) -> None:
    with Store(DiskTier(tmp_path / "own", 10_000_000)) as store:
        store.tenant().put(replace(numbered(1), kind="page"))
    with Store(tmp_path / "own") as store:
        assert store.tenant().get(name(1)).kind == "page"
