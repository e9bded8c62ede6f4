from pathlib import Path

import pytest

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store import SHARED, SHARED_SALT, ArtifactKey, ChunkSegment, Store, Terms, chunk_id, owner_digest
from emblema.store.settings import StoreSettings
from tests.store.pieces import is_numbered, name, numbered, patch, rows
from tests.store.tiers import RecordingTier, wait_until

ONE = 260


def identity(salt: bytes) -> str:
    return chunk_id((b"pixels",), options={}, model_fingerprint="f", dtype="float32", adapter_version="1", salt=salt)


def test_owners_are_digests_that_do_not_meet() -> None:
    owners = {owner_digest(salt) for salt in (b"", b"a", b"b", b"a\0")}
    assert len(owners) == 4 and all(len(owner) == 64 for owner in owners)
    assert owner_digest(SHARED_SALT) == SHARED
    with pytest.raises(StoreError, match="bytes"):
        owner_digest("a")  # type: ignore[arg-type]
    with Store() as store:
        assert store.tenant(b"a").lookup_salts == (b"a", SHARED_SALT) and store.shared.lookup_salts == (SHARED_SALT,)
        with pytest.raises(StoreError, match="shared library's"):
            store.tenant(SHARED_SALT)


def test_another_tenants_pieces_are_not_here_for_any_call(tmp_path: Path) -> None:
    key = ArtifactKey("m", name(1), ())
    with Store(tmp_path / "store", device_bytes=3 * ONE) as store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        a.put(numbered(1))
        a.put(numbered(2))
        assert a.put_artifact(key, patch())
        a.prefixes("model").put([ChunkSegment(name(1), 5)], rows(5))
        for flushed in (False, True):
            if flushed:
                a.flush()
            assert name(1) not in b and b.find(name(1)) is None and b.find_patch(key) is None
            assert b.ids() == [] and len(b) == 0 and b.bytes == 0 and b.statistics.disk_bytes == 0
            assert not b.delete(name(1)) and not b.pin(name(1)) and not b.put_artifact(key, patch())
            assert b.delete_artifacts(name(1)) == 0
            with b.lease([name(1)]) as lease:
                assert lease.missing == (name(1),) and not lease.rows
            with pytest.raises(StoreError, match="deleted or evicted"):
                b.get(name(1))
            with pytest.raises(StoreError, match="add its media again"):
                b.put(a.get(name(1)))
        assert len(b.prefixes("model")) == 0 and len(a.prefixes("model")) == 1
        assert (b.statistics.hits, a.statistics.misses) == (0, 0)
        # One id under two tenants: two pieces, in memory; the disk keeps the first one's file.
        b.put(numbered(1))
        assert b.delete(name(1)) and len(a.prefixes("model")) == 1
        assert is_numbered(1, a.get(name(1)).rows) and a.find_patch(key) is not None


def test_a_look_up_touches_only_own_and_shared_ids() -> None:
    remote = RecordingTier()
    key = ArtifactKey("m", name(1), (name(2),))
    with Store(remote=remote) as store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        for number in (1, 2):
            a.put(numbered(number))
        a.put_artifact(key, patch())
        store.flush()
        assert {call[1] for call in remote.calls} == {a.owner}
        remote.calls.clear()
        assert b.find(name(1)) is None and b.find_patch(key) is None and name(2) not in b
        with b.lease([name(1), name(2)]) as lease:
            assert len(lease.missing) == 2
        b.delete(name(1))
        assert remote.calls and {owner for _, owner, _ in remote.calls} == {b.owner, SHARED}
        assert not any(owner == SHARED for call, owner, _ in remote.calls if call != "open")
    assert len(remote.files) == 3
    remote.calls.clear()
    with Store(remote=remote) as store:
        assert is_numbered(1, store.tenant(b"a").get(name(1)).rows)
        assert {owner for _, owner, _ in remote.calls} == {a.owner}
    remote.calls.clear()
    with Store(remote=remote) as store:
        assert store.shared.find(name(1)) is None
        assert {owner for _, owner, _ in remote.calls} == {SHARED}


@pytest.mark.parametrize("restart", [False, True])
def test_the_shared_library_is_read_by_all_and_written_by_one(tmp_path: Path, restart: bool) -> None:
    store = Store(tmp_path / "store")
    store.shared.put(numbered(1))
    store.shared.put(numbered(2))
    if restart:
        store.close()
        store = Store(tmp_path / "store")
    with store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        assert is_numbered(1, a.get(name(1)).rows) and name(1) in b and a.ids() == []
        key = ArtifactKey("m", name(2), (name(1),))
        assert a.put_artifact(key, patch(1)), "a tenant's patch over shared chunks alone"
        assert b.find_patch(key) is None and store.shared.find_patch(key) is None, "is that tenant's"
        assert b.put_artifact(key, patch(2)) and a.find_patch(key).rank == 1  # type: ignore[union-attr]
        assert store.shared.put_artifact(ArtifactKey("m", name(1), ()), patch(1))
        assert a.find_patch(ArtifactKey("m", name(1), ())) is not None
        assert not a.delete(name(1)) and not a.pin(name(1)), "it is not the tenant's to delete"
        a.prefixes("model").put([ChunkSegment(name(1), 5)], rows(5))
        store.flush()
        assert store.shared.delete(name(1))
        assert name(1) not in a and a.find(name(1)) is None
        assert a.find_patch(key) is None and b.find_patch(key) is None, "everybody's patches go with it"
        assert len(a.prefixes("model")) == 0
        assert store.disk is not None and store.disk.count() == 1
        assert store.disk.count(kind="patch") == 0


def test_a_tenant_fills_a_lost_shared_chunk_for_itself_alone() -> None:
    with Store(device_bytes=ONE) as store:
        handle = store.shared.put(numbered(1))
        view = store.tenant(b"a")
        view.put(numbered(2))
        with view.lease([handle.id]) as lease:
            assert lease.missing == (handle.id,)
            lease.fill(numbered(1))
            assert is_numbered(1, lease.rows[handle.id])
        assert handle.id not in view and handle.id not in store.shared


def test_a_quota_lets_go_of_the_tenants_own_pieces(tmp_path: Path) -> None:
    with Store(tmp_path / "store", quota=3 * ONE, settings=StoreSettings(quotas={b"large": 10**9})) as store:
        small, large = store.tenant(b"small"), store.tenant(b"large")
        for number in range(5):
            large.put(numbered(number))
        for number in range(10, 15):
            small.put(numbered(number))
        store.flush()
        assert large.bytes == 5 * ONE and len(large) == 5
        wait_until(lambda: small.bytes <= 3 * ONE)
        assert small.statistics.evictions >= 2 and large.statistics.evictions == 0
        with pytest.raises(CapacityError, match="quota is 780"):
            small.put(numbered(20, tokens=100))
        assert not small.put_artifact(ArtifactKey("m", name(14), ()), patch(20))


def test_a_quota_on_disk(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.tenant().put(numbered(1))
        store.flush()
        file = store.statistics.disk_bytes
    with Store(tmp_path / "other", quota=3 * file) as store:
        small, other = store.tenant(b"small"), store.tenant(b"other")
        other.put(numbered(9))
        for number in range(5):
            small.put(numbered(number))
        store.flush()
        assert small.statistics.disk_bytes <= 3 * file and other.statistics.disk_bytes == file
        assert small.find(name(4)) is not None


def test_quota_in_memory_alone() -> None:
    with Store(quota=2 * ONE) as store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        for number in range(4):
            a.put(numbered(number))
            b.put(numbered(10 + number))
        assert a.ids() == [name(2), name(3)] and b.ids() == [name(12), name(13)]


def test_terms_and_leases_are_each_owners_own() -> None:
    with Store(device_bytes=2 * ONE) as store:
        a, b = store.tenant(b"a"), store.tenant(b"b")
        a.put(numbered(1), Terms(pinned=True))
        b.put(numbered(2))
        b.put(numbered(3))
        assert a.ids() == [name(1)] and b.ids() == [name(3)]
        with b.lease([name(3)]):
            assert (a.statistics.leased_bytes, b.statistics.leased_bytes) == (0, ONE)
            assert store.statistics.leased_bytes == ONE
        handle = b.get(name(3))
        assert b.delete(name(3))
        with pytest.raises(LoadError):
            handle.rows[0]
