"""A deletion wins over whatever is under way, and takes patches with it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from emblema.store import ArtifactKey, Store
from tests.store.pieces import is_numbered, name, numbered, patch
from tests.store.stores import ONE, opened
from tests.store.tiers import FaultyDisk, Gate, RecordingTier, wait_until


def test_deletion_wins_over_a_save_under_way(disk: FaultyDisk) -> None:
    gate = Gate()
    write = disk.write
    disk.write = lambda record, terms: (gate.pass_through(), write(record, terms))[1]  # type: ignore[method-assign]
    with Store(disk) as store, ThreadPoolExecutor(1) as pool:
        view = store.tenant()
        view.put(numbered(1))
        view.put(numbered(2))
        assert gate.reached.wait(10)
        deleted = pool.submit(lambda: (view.delete(name(1)), view.delete(name(2))))
        wait_until(lambda: name(1) not in {piece.id for piece in store.cache.table})
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
        view = store.tenant()
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


def test_a_deletion_is_known_for_as_long_as_anybody_holds_the_chunk() -> None:
    store = Store(device_bytes=ONE)
    view = store.tenant()
    sizes = [layer.bytes for layer in numbered(1).rows]
    first, second = (view.handle(numbered(1), sizes) for _ in range(2))
    del first
    view.delete(name(1))
    with view.lease([name(1)]) as lease:
        assert lease.missing == (name(1),)
        lease.fill(second, numbered(1).rows)
    assert view.find(name(1)) is None, "a second handle does not bring it back"


def test_patches_go_with_any_of_their_chunks_in_every_tier_and_across_restarts(tmp_path: Path) -> None:
    remote = RecordingTier()
    keys = [ArtifactKey("m", name(2), (name(1),)), ArtifactKey("m", name(3), (name(2),)), ArtifactKey("m", name(3), ())]
    with opened(tmp_path, remote=remote) as store:
        view = store.tenant()
        for number in (1, 2, 3):
            view.put(numbered(number))
        assert all(view.put_artifact(key, patch()) for key in keys)
        assert not view.put_artifact(ArtifactKey("m", name(1), (name(9),)), patch())
        view.flush()
    with opened(tmp_path, remote=remote) as store:
        view = store.tenant()
        assert view.find_patch(keys[0]) is not None
        assert view.delete(name(2))
        assert [view.find_patch(key) is None for key in keys] == [True, True, False]
        assert store.disk is not None and store.disk.count(kind="patch") == 1
        assert sum(bool(header.chunks) for header in remote.headers.values()) == 1
        assert view.delete_artifacts(name(3)) == 1 and name(3) in view
    for options in ({}, {"remote": remote}):
        with opened(tmp_path, **options) as store:
            view = store.tenant()
            assert all(view.find_patch(key) is None for key in keys)
            assert view.find(name(2)) is None and sorted(view.ids()) == [name(1), name(3)]


def test_what_was_deleted_is_told_from_what_was_evicted_or_never_was() -> None:
    with Store(device_bytes=ONE) as store:
        view, other = store.tenant(), store.tenant(b"other")
        kept = view.put(numbered(1))
        view.put(numbered(2))
        assert kept.id not in view and view.deleted([name(1), name(2), name(3)]) == frozenset()
        assert view.delete(name(2)) and not view.delete(name(3))
        assert view.deleted([name(1), name(2), name(3)]) == {name(2)} and not other.deleted([name(2)])
        # One that is not kept yet, but whose handle somebody holds.
        handle = view.handle(numbered(3), [layer.bytes for layer in numbered(3).rows])
        view.delete(name(3))
        assert view.deleted([handle.id]) == {name(3)} and not view.put_unless_deleted(numbered(3))
        assert name(3) not in view and view.put_unless_deleted(numbered(1)) and is_numbered(1, kept.rows)
        view.put(numbered(3))
        assert not view.deleted([name(3)]) and is_numbered(3, handle.rows), "put again, it is wanted again"
