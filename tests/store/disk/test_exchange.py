"""Files taken into a store: what is here and whole stays, with its pin and its owner."""

from pathlib import Path

import pytest

from emblema.errors import LoadError, StoreError
from emblema.store import format
from emblema.store.disk import DiskTier
from emblema.store.exchange import import_piece
from emblema.store.files import write_whole
from emblema.store.record import Record, Terms
from tests.store.disk.records import ALICE, BOB, check, id_of, piece_path, record


def written(path: Path, made: Record) -> Path:
    write_whole(path, format.buffers(made))
    return path


def test_a_piece_that_is_here_and_whole_stays_pinned(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "store", 10**9)
    tier.write(record("one"), Terms(pinned=True))
    other = written(tmp_path / "other", record("one", version=1))
    assert import_piece(tier, other)[1] is False
    check(tier.open(id_of("one"), ALICE), id_of("one"), 0)
    assert import_piece(tier, other, replace=True)[1] is True
    check(tier.open(id_of("one"), ALICE), id_of("one"), 1)
    found = tier.entry(id_of("one"))
    assert found is not None and found.terms.pinned
    tier.close()


def test_a_damaged_piece_is_replaced_and_keeps_its_pin(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "store", 10**9)
    tier.write(record("one"), Terms(pinned=True))
    path = piece_path(tmp_path / "store", id_of("one"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert import_piece(tier, written(tmp_path / "other", record("one", version=1)))[1] is True
    check(tier.open(id_of("one"), ALICE), id_of("one"), 1)
    found = tier.entry(id_of("one"))
    assert found is not None and found.terms.pinned
    tier.close()


@pytest.mark.parametrize("owner", [BOB, "shared"])
def test_another_owners_piece_is_never_replaced(tmp_path: Path, owner: str) -> None:
    tier = DiskTier(tmp_path / "store", 10**9)
    tier.write(record("one"), Terms())
    other = written(tmp_path / "other", record("one", version=1, owner=owner))
    for replace in (False, True):
        with pytest.raises(StoreError, match="another owner"):
            import_piece(tier, other, replace)
    check(tier.open(id_of("one"), ALICE), id_of("one"), 0)
    tier.close()


def test_a_file_that_does_not_verify_is_not_taken(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "store", 10**9)
    path = written(tmp_path / "file", record("one"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LoadError):
        import_piece(tier, path)
    assert tier.count() == 0
    tier.close()
