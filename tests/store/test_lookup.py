"""Questions about many pieces at once: one question to the disk's index, no file touched, and nobody else's pieces."""

from pathlib import Path
from typing import Any

import pytest

from emblema.errors import StoreError
from emblema.store import ArtifactKey, ArtifactKind, Store
from emblema.store.catalogue import Catalogue
from emblema.store.disk.tier import DiskTier
from emblema.store.identity import artifact_id, canonical
from tests.store.pieces import name, numbered, patch

AFTER = ArtifactKey("model", name(2), (name(1),))


def fill(store: Store) -> None:
    """Keep chunks 1 and 2 with a patch of the second, and a chunk of another tenant and of the shared library."""
    own = store.tenant(b"own")
    for number in (1, 2):
        own.put(numbered(number))
    assert own.put_artifact(AFTER, patch())
    store.tenant(b"other").put(numbered(3))
    store.shared.put(numbered(4))
    store.flush()


@pytest.mark.parametrize("again", [False, True], ids=["in memory", "on disk"])
def test_held_are_the_own_and_the_shared_chunks(tmp_path: Path, again: bool) -> None:
    with Store(tmp_path) as store:
        fill(store)
        if not again:
            check(store)
    if again:
        with Store(tmp_path) as store:
            check(store)


def check(store: Store) -> None:
    asked = [name(number) for number in (1, 2, 3, 4, 5)]
    assert store.tenant(b"own").held([*asked, "no id"]) == {name(1): True, name(2): True, name(4): False}
    assert store.tenant(b"other").held(asked) == {name(3): False, name(4): False}
    assert store.tenant(b"own").held([]) == {}
    keys = [AFTER, ArtifactKey("model", name(2)), ArtifactKey("model", name(2), (name(1),), ArtifactKind.ORBIT)]
    assert store.tenant(b"own").held_artifacts(keys) == {AFTER}
    assert store.tenant(b"other").held_artifacts(keys) == frozenset()


def test_what_is_deleted_is_not_held(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        fill(store)
        assert store.tenant(b"own").delete(name(1))
        assert store.tenant(b"own").held([name(1), name(2)]) == {name(2): False}
        assert store.tenant(b"own").held_artifacts([AFTER]) == frozenset()


def test_the_index_is_asked_once_and_no_file_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        fill(store)
    with Store(tmp_path) as store:
        asked: list[int] = []
        read = Catalogue.read

        def noted(catalogue: Catalogue, ask: Any) -> Any:
            asked.append(1)
            return read(catalogue, ask)

        def opened(*args: Any) -> Any:
            raise AssertionError("a file was opened")

        monkeypatch.setattr(Catalogue, "read", noted)
        monkeypatch.setattr(DiskTier, "open", opened)
        many = [name(number) for number in range(1, 2000)]
        assert store.tenant(b"own").held(many) == {name(1): True, name(2): True, name(4): False}
        assert len(asked) == 2, "the chunks, and which of those here artifacts were made of"
        assert store.tenant(b"own").held_artifacts([AFTER]) == {AFTER} and len(asked) == 3


def test_an_index_that_fails_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        fill(store)
    with Store(tmp_path) as store:

        def fail(*args: Any) -> Any:
            raise StoreError("away")

        monkeypatch.setattr(Catalogue, "read", fail)
        assert store.tenant(b"own").held([name(1)]) == {} and not store.tenant(b"own").held_artifacts([AFTER])


@pytest.mark.parametrize("key", [AFTER, ArtifactKey("m", "c"), ArtifactKey("m", "c", ("b", "a"), ArtifactKind.ORBIT),
                                 ArtifactKey("m\ud800", "ü", ("", "x" * 300))])  # fmt: skip
def test_ids_are_made_of_the_canonical_form(key: ArtifactKey) -> None:
    """The id is put together by hand, as it is asked for often."""
    from blake3 import blake3

    digest = blake3(derive_key_context="emblema 2026-11 patch identity 2")
    digest.update(canonical(["owner", key.model, key.chunk, list(key.antecedents), key.orbit]))
    assert artifact_id(key, "owner") == digest.hexdigest()
