"""Which patches of a chunk there are, whatever is before it."""

from pathlib import Path

import pytest

from emblema.store import ArtifactKey, ArtifactKind, Store
from emblema.store.identity import artifact_id
from tests.store.pieces import name, numbered, patch

KEYS = [
    ArtifactKey("m", name(1), ()),
    ArtifactKey("m", name(1), (name(2),)),
    ArtifactKey("m", name(1), (name(2), name(3), name(2))),
    ArtifactKey("m", name(1), (name(3), name(2)), ArtifactKind.ORBIT),
]
OTHER = ArtifactKey("m", name(2), (name(1),))


def filled(store: Store, salt: bytes = b"a") -> None:
    view = store.tenant(salt)
    for number in (1, 2, 3):
        view.put(numbered(number))
    for key in (*KEYS, OTHER):
        assert view.put_artifact(key, patch())


@pytest.mark.parametrize("reopened", [False, True])
def test_each_order_of_the_antecedents_has_a_patch_of_its_own(tmp_path: Path, reopened: bool) -> None:
    """But for an orbit patch, which is one for all."""
    orders = [(2, 3), (3, 2), (2, 3, 2), (2,), (2, 2), ()]
    keys = [ArtifactKey("m", name(1), tuple(map(name, order))) for order in orders]
    assert len({artifact_id(key, "a") for key in keys}) == len(set(keys)) == len(keys)
    with Store(tmp_path) as store:
        view = store.tenant(b"a")
        for number in (1, 2, 3):
            view.put(numbered(number))
        for rank, key in enumerate(keys, 1):
            assert view.put_artifact(key, patch(rank))
        if not reopened:
            assert [view.find_patch(key).rank for key in keys] == [1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]
    with Store(tmp_path) as store:
        view = store.tenant(b"a")
        assert [view.find_patch(key).rank for key in keys] == [1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]
        assert view.find_patch(ArtifactKey("m", name(1), (name(3),))) is None
    orbits = {ArtifactKey("m", name(1), tuple(map(name, order)), ArtifactKind.ORBIT) for order in orders[:3]}
    assert len(orbits) == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_all_keys_of_a_chunk_are_told_in_memory_and_from_disk(tmp_path: Path, reopened: bool) -> None:
    store = Store(tmp_path / "store")
    filled(store)
    if reopened:
        store.close()
        store = Store(tmp_path / "store")
    with store:
        view = store.tenant(b"a")
        assert set(view.artifact_keys(name(1))) == set(KEYS) and view.artifact_keys(name(2)) == [OTHER]
        assert view.artifact_keys(name(3)) == view.artifact_keys(name(9)) == []
        assert view.find_patch(KEYS[2]) is not None, "one of them in memory, the others on disk"
        assert set(view.artifact_keys(name(1))) == set(KEYS)
        assert all(view.has_artifact(key) for key in KEYS) and not view.has_artifact(ArtifactKey("n", name(1), ()))
        assert store.tenant(b"b").artifact_keys(name(1)) == [] and not store.tenant(b"b").has_artifact(KEYS[0])
        assert view.statistics.patch_misses == 0, "looking is not using"


def test_deleted_antecedents_take_their_keys_along(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        filled(store)
        store.flush()
        view = store.tenant(b"a")
        assert view.delete(name(3))
        assert set(view.artifact_keys(name(1))) == {KEYS[0], KEYS[1]}
        assert not view.has_artifact(KEYS[2])


def test_shared_patches_are_told_to_every_tenant(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.shared.put(numbered(1))
    assert store.shared.put_artifact(KEYS[0], patch())
    store.close()
    with Store(tmp_path / "store") as again:
        assert again.tenant(b"b").artifact_keys(name(1)) == [KEYS[0]]
        assert not again.tenant(b"b").has_artifact(KEYS[0]), "it is not b's own"


def test_a_damaged_header_is_nobodys_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    filled(store)
    owner = store.tenant(b"a").owner
    store.close()
    with Store(tmp_path / "store") as again:
        for key, where in ((KEYS[1], 0), (KEYS[2], 60)):
            path = next((tmp_path / "store").rglob(f"{artifact_id(key, owner)}.safetensors"))
            data = bytearray(path.read_bytes())
            data[where] ^= 0x40
            path.write_bytes(data)
        assert set(again.tenant(b"a").artifact_keys(name(1))) == {KEYS[0], KEYS[3]}
