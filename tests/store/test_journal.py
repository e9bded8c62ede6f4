"""Which journal a sqlite file has, by where it is."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from emblema.errors import StoreError
from emblema.library.listings import Listings
from emblema.store import journal
from emblema.store.disk import DiskTier
from emblema.store.journal import is_shared, set_journal
from tests.store.disk.records import MEBIBYTE, put, there

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /data rw shared:2 - nfs4 server:/export rw
31 30 8:2 / /data/fast rw - xfs /dev/sdb rw
32 22 0:31 / /with\040space rw - cifs //server/share rw
33 22 0:32 / /bucket rw - fuse.s3fs s3fs rw
34 22 0:33 / /stick rw - fuseblk /dev/sdc1 rw
35 22 0:34 / /twice rw - ext4 /dev/sdd rw
36 22 0:35 / /twice rw - ceph mon:/ rw
"""


@pytest.mark.parametrize(
    ("place", "shared"),
    [
        ("/srv/x", False), ("/data", True), ("/data/store", True), ("/data/fast/store", False), ("/database", False),
        ("/with space/a", True), ("/bucket/a", True), ("/stick/a", False), ("/twice/a", True),
    ],
)  # fmt: skip
def test_a_place_is_shared_by_the_kind_of_its_file_system(tmp_path: Path, place: str, shared: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert is_shared(Path(place), mounts) is shared


def test_what_cannot_be_told_is_this_machine_s(tmp_path: Path) -> None:
    assert not is_shared(tmp_path, tmp_path / "none")


def mode_of(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


@pytest.mark.parametrize(("shared", "mode"), [(False, "wal"), (True, "delete")])
def test_folders_on_shared_places_have_a_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, mode: str
) -> None:
    monkeypatch.setattr(journal, "is_shared", lambda path: shared)
    first, second = (DiskTier(tmp_path / "tier", MEBIBYTE) for _ in range(2))
    put(first, "a")
    assert there(second) == {"a"}
    put(second, "b")
    assert there(first) == {"a", "b"} and mode_of(tmp_path / "tier" / "catalogue.sqlite") == mode
    Listings(tmp_path).catalogue.close()
    assert mode_of(tmp_path / "catalogue.sqlite") == mode


def test_an_older_file_is_changed_once_nobody_has_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sqlite"

    def opened() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0.1)
        try:
            set_journal(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection

    with closing(opened()) as older:
        older.execute("CREATE TABLE t (a)")
        monkeypatch.setattr(journal, "is_shared", lambda path: True)
        with pytest.raises((StoreError, sqlite3.OperationalError)):
            opened()
    with closing(opened()):
        assert mode_of(path) == "delete"
