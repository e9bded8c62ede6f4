"""A disk that is full, a folder that is read-only or gone, two processes: answered by an error, never by a loss."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emblema.errors import LoadError, StoreError
from emblema.store.disk import DiskTier
from emblema.store.disk.upkeep import collect, verify_pieces
from emblema.store.record import Terms
from tests.store.disk.crash import ROOT
from tests.store.disk.filelayer import FullDisk
from tests.store.disk.records import (
    ALICE,
    check,
    id_of,
    piece_files,
    piece_path,
    put,
    record,
    temporary_files,
)
from tests.store.tiers import wait_until

NOBODY = 65534


@pytest.fixture(params=["mounted", "permissions"])
def read_only_disk(request: pytest.FixtureRequest) -> Iterator["ReadOnlyDisk"]:
    """A disk that can be made read-only: a file system in memory, where mounting is permitted, or a folder's modes."""
    disk = MountedDisk() if request.param == "mounted" else ClosedFolder()
    with disk:
        yield disk


class ReadOnlyDisk(ABC):
    """A folder that the tests may make read-only.

    Attributes:
        path: of the folder, absolute.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="emblema-disk-"))

    @abstractmethod
    def close_all(self, *, while_open: bool = False) -> None:
        """Let nothing in the folder be written any more; `while_open`: there are files open for writing."""

    @abstractmethod
    def open_all(self) -> None:
        """Let everything be written again."""

    def __enter__(self) -> "ReadOnlyDisk":
        return self

    def __exit__(self, *error: object) -> None:
        self.open_all()
        shutil.rmtree(self.path)

    def refuses(self) -> None:
        """Fail the test where the folder can be written all the same: then it would show nothing."""
        try:
            (self.path / "probe").touch()
        except OSError:
            return
        pytest.fail(f"{self.path} was to be read-only and can be written: nothing was tested")


class MountedDisk(ReadOnlyDisk):
    """A file system in memory; skips where mounting is not permitted, as the other disk needs no rights."""

    def __init__(self) -> None:
        super().__init__()
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.path)]
        try:
            mounted = subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            mounted = False
        if not mounted:
            self.path.rmdir()
            pytest.skip("mounting is not permitted; folders without rights are tested instead")
        self._bound = False

    def close_all(self, *, while_open: bool = False) -> None:
        if while_open:
            # What is open for writing keeps a file system from becoming read-only: this binds another view over it.
            subprocess.run(["mount", "--bind", str(self.path), str(self.path)], check=True)
            self._bound = True
        options = "remount,ro,bind" if while_open else "remount,ro"
        subprocess.run(["mount", "-o", options, str(self.path)], check=True)
        self.refuses()

    def open_all(self) -> None:
        if self._bound:
            subprocess.run(["umount", "-l", str(self.path)], check=True)
            self._bound = False
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(self.path)], check=True)

    def __exit__(self, *error: object) -> None:
        self.open_all()
        subprocess.run(["umount", "-l", str(self.path)], check=True)
        self.path.rmdir()


class ClosedFolder(ReadOnlyDisk):
    """A folder whose modes refuse writing. Root, whom modes do not stop, is nobody meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._root = os.geteuid() == 0
        if self._root:
            os.chown(self.path, NOBODY, NOBODY)
            os.seteuid(NOBODY)

    def close_all(self, *, while_open: bool = False) -> None:
        self._set_modes(0o500, 0o400)
        self.refuses()

    def open_all(self) -> None:
        self._set_modes(0o700, 0o600)

    def _set_modes(self, folders: int, files: int) -> None:
        for path in [*self.path.rglob("*")]:
            if not path.is_dir():
                path.chmod(files)
        for path in sorted((self.path, *self.path.rglob("*")), reverse=folders == 0o500):
            if path.is_dir():
                path.chmod(folders)

    def __exit__(self, *error: object) -> None:
        self.open_all()
        if self._root:
            os.seteuid(0)
        shutil.rmtree(self.path)


def _intact(tier: DiskTier, folder: Path, names: list[str]) -> None:
    for name in names:
        check(tier.open(id_of(name), ALICE), id_of(name), 0)
    files = piece_files(folder)
    assert files.keys() == {id_of(name) for name in names} == {entry.id for entry in tier.entries()}
    assert tier.bytes == sum(files.values())
    assert temporary_files(folder) == []


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    folder, kept = tmp_path / "store", list[str]()
    tier = DiskTier(folder, 10**9)
    full = FullDisk(folder, 10**6)
    with full():
        with pytest.raises(StoreError, match="No space left"):
            for number in range(100):
                tier.write(record(number, 100_000), Terms())
                kept.append(str(number))
        assert len(kept) == 9 and full.failed
        _intact(tier, folder, kept)
        # There is room again once something goes.
        assert tier.delete(id_of(kept[0]), ALICE)
        tier.write(record("small", 50_000), Terms())
        _intact(tier, folder, [*kept[1:], "small"])
        tier.close()
    again = DiskTier(folder, 10**9)
    _intact(again, folder, [*kept[1:], "small"])
    again.close()


def test_a_disk_that_is_full_to_the_last_byte_when_the_store_opens(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "store", 10**9)
    tier.write(record("kept", 5000), Terms())
    tier.close()
    full = FullDisk(tmp_path / "store", 0)
    with full():
        tier = DiskTier(tmp_path / "store", 10**9)
        check(tier.open(id_of("kept"), ALICE), id_of("kept"), 0)
        with pytest.raises(StoreError):
            tier.write(record("more", 5000), Terms())
        tier.close()
    assert full.failed
    tier = DiskTier(tmp_path / "store", 10**9)
    tier.write(record("more", 5000), Terms())
    _intact(tier, tmp_path / "store", ["kept", "more"])
    tier.close()


@pytest.mark.parametrize("bytes", [512, 5000, 40_000])
def test_no_file_can_grow_beyond_a_limit(tmp_path: Path, bytes: int) -> None:
    """The system's own limit of a file's size, which holds for the catalogue's log too and needs no rights."""
    tier = DiskTier(tmp_path, 10**9)
    tier.write(record("kept", 200), Terms())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, hard))
    try:
        with pytest.raises(StoreError, match="File too large|full|disk I/O"):
            tier.write(record("large", 100_000), Terms())
        check(tier.open(id_of("kept"), ALICE), id_of("kept"), 0)
        for maintain in (lambda: collect(tier), tier.scan, tier.record_uses):
            with suppress(StoreError):
                maintain()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check(tier.open(id_of("kept"), ALICE), id_of("kept"), 0)
    tier.write(record("large", 100_000), Terms())
    _intact(tier, tmp_path, ["kept", "large"])
    tier.close()


def test_a_disk_that_is_full_keeps_nothing_from_being_deleted(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 10**9)
    tier.write(record("chunk"), Terms())
    tier.write(record("patch", chunks=[id_of("chunk")]), Terms(pinned=True))
    tier.write(record("other"), Terms())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file can grow beyond its first KiB: the catalogue's log takes nothing.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        assert tier.delete(id_of("chunk"), ALICE) and not tier.delete(id_of("none"), ALICE)
        assert tier.entry(id_of("chunk")) is None and tier.entry(id_of("patch")) is None
        assert tier.open(id_of("chunk"), ALICE) is None and piece_files(tmp_path).keys() == {id_of("other")}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # Another process finds the catalogue behind its files, and puts it right with its first change.
    other = DiskTier(tmp_path, 10**9)
    _intact(other, tmp_path, ["other"])
    other.close()
    tier.write(record("chunk", version=1), Terms())
    check(tier.open(id_of("chunk"), ALICE), id_of("chunk"), 1)
    assert {entry.id for entry in tier.entries()} == {id_of("chunk"), id_of("other")}
    tier.close()


@pytest.mark.parametrize("call", ["open", "fsync", "replace", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_call_that_fails_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    tier = DiskTier(tmp_path, 10**9)
    tier.write(record("kept"), Terms())
    real = getattr(os, call)

    def failing(*given: Any, **named: Any) -> Any:
        if call == "open" and not given[1] & os.O_CREAT:
            return real(*given, **named)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, failing)
    for version in (record("new"), record("kept", version=1)):
        if call == "mkdir" and version.header.id == id_of("kept"):
            continue
        with pytest.raises(StoreError, match=os.strerror(code)):
            tier.write(version, Terms())
    monkeypatch.undo()
    _intact(tier, tmp_path, ["kept"])
    tier.write(record("new"), Terms())
    _intact(tier, tmp_path, ["kept", "new"])
    tier.close()


def test_a_delete_that_fails_is_no_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(tmp_path, 10**9)
    tier.write(record("chunk"), Terms())
    tier.write(record("patch", chunks=[id_of("chunk")]), Terms())

    def failing(*given: Any, **named: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(StoreError, match="Permission denied"):
        tier.delete(id_of("chunk"), ALICE)
    monkeypatch.undo()
    _intact(tier, tmp_path, ["chunk", "patch"])
    assert tier.delete(id_of("chunk"), ALICE)
    _intact(tier, tmp_path, [])
    tier.close()


def test_a_read_only_folder_is_read(read_only_disk: ReadOnlyDisk) -> None:
    disk = read_only_disk.path
    tier = DiskTier(disk / "store", 10**9)
    tier.write(record("kept"), Terms(pinned=True))
    tier.write(record("damaged"), Terms())
    tier.close()
    path = piece_path(disk / "store", id_of("damaged"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    read_only_disk.close_all()
    tier = DiskTier(disk / "store", 10**9)
    assert "cannot be written" in str(tier.report)
    check(tier.open(id_of("kept"), ALICE), id_of("kept"), 0)
    entry = tier.entry(id_of("kept"))
    assert entry is not None and entry.terms.pinned
    reader = tier.open(id_of("damaged"), ALICE)
    assert reader is not None
    with pytest.raises(LoadError):
        reader.read("second")
    # It cannot be moved away, and is not served again.
    assert tier.open(id_of("damaged"), ALICE) is None
    for change in (
        lambda: tier.write(record("new"), Terms()),
        lambda: tier.delete(id_of("kept"), ALICE),
        lambda: tier.set_pin(id_of("kept"), False),
        tier.expire,
        lambda: collect(tier),
    ):
        with pytest.raises(StoreError, match="cannot be written"):
            change()
    tier.touch([id_of("kept")])
    tier.close()


def test_a_folder_that_becomes_read_only(read_only_disk: ReadOnlyDisk) -> None:
    disk = read_only_disk.path
    tier = DiskTier(disk / "store", 10**9)
    tier.write(record("kept"), Terms())
    read_only_disk.close_all(while_open=True)
    with pytest.raises(StoreError):
        tier.write(record("new"), Terms())
    check(tier.open(id_of("kept"), ALICE), id_of("kept"), 0)
    read_only_disk.open_all()
    tier.write(record("new"), Terms())
    _intact(tier, disk / "store", ["kept", "new"])
    tier.close()


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    tier = DiskTier(folder, 10**9)
    tier.write(record("kept"), Terms())
    folder.rename(tmp_path / "elsewhere")
    assert tier.entry(id_of("kept")) is None
    with pytest.raises(LoadError, match="vanished"):
        tier.open(id_of("kept"), ALICE)
    with pytest.raises(StoreError, match="vanished"):
        tier.write(record("new"), Terms())
    with pytest.raises(StoreError, match="vanished"):
        tier.delete(id_of("kept"), ALICE)
    assert not folder.exists()
    (tmp_path / "elsewhere").rename(folder)
    tier.write(record("new"), Terms())
    _intact(tier, folder, ["kept", "new"])
    tier.close()


def test_parts_of_the_folder_that_somebody_deletes(tmp_path: Path) -> None:
    for part in ("pieces", "temporary", "quarantine", "catalogue.sqlite", "FORMAT", "lock"):
        folder = tmp_path / part
        tier = DiskTier(folder, 10**9)
        tier.write(record("kept"), Terms())
        subprocess.run(["rm", "-r", str(folder / part)], check=True)
        if part == "pieces":
            assert tier.open(id_of("kept"), ALICE) is None
            tier.write(record("kept"), Terms())
        tier.write(record("new"), Terms(pinned=True))
        assert tier.quarantine(id_of("new"), "a test")
        _intact(tier, folder, ["kept"])
        tier.close()
        tier = DiskTier(folder, 10**9)
        _intact(tier, folder, ["kept"])
        tier.close()


def test_a_folder_that_is_a_file_or_holds_one_in_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match="not a folder"):
        DiskTier(tmp_path / "file")
    with pytest.raises(StoreError, match="not a folder"):
        DiskTier(tmp_path / "file" / "below")
    (tmp_path / "away").mkdir()
    for kind in ("file", "link"):
        folder = tmp_path / f"store with a {kind}"
        folder.mkdir()
        if kind == "file":
            (folder / "pieces").write_text("mine")
        else:
            (folder / "pieces").symlink_to(tmp_path / "away")
        with pytest.raises(StoreError, match="pieces is not a folder"):
            DiskTier(folder)
    assert list((tmp_path / "away").iterdir()) == []


@pytest.mark.parametrize("kind", ["other", "link", "pipe"])
@pytest.mark.parametrize("name", ["temporary", "quarantine", "lock"])
def test_what_can_be_done_without_is_made_again(tmp_path: Path, name: str, kind: str) -> None:
    folder, away = tmp_path / "store", tmp_path / "away"
    tier = DiskTier(folder, 10**9)
    tier.write(record("kept"), Terms(pinned=True))
    tier.close()
    away.mkdir()
    (away / "mine").touch()
    path = folder / name
    if name == "lock":
        path.unlink()
    else:
        shutil.rmtree(path)
    match kind:
        case "other":
            path.mkdir() if name == "lock" else path.touch()
        case "link":
            path.symlink_to(away)
        case "pipe":
            os.mkfifo(path)
    tier = DiskTier(folder, 10**9)
    assert any(note.startswith(name) for note in tier.report.notes)
    _intact(tier, folder, ["kept"])
    tier.write(record("more"), Terms(pinned=True))
    pinned = {entry.id for entry in tier.entries() if entry.terms.pinned}
    assert pinned == {id_of("more"), id_of("kept")}
    tier.close()
    assert [path.name for path in away.iterdir()] == ["mine"]


def test_links_are_not_followed_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    folder, secret = tmp_path / "store", tmp_path / "secret"
    tier = DiskTier(folder, 10**9)
    tier.write(record("kept"), Terms())
    tier.write(record("linked"), Terms())
    tier.close()
    path = piece_path(folder, id_of("linked"))
    path.rename(secret)
    before = secret.read_bytes()
    path.symlink_to(secret)
    (folder / "notes.txt").write_text("mine")
    (folder / "pieces" / "notes.txt").write_text("mine")
    shard = next(name for name in ("00", "01", "02") if not (folder / "pieces" / name).exists())
    (tmp_path / "away").mkdir()
    (folder / "pieces" / shard).symlink_to(tmp_path / "away")
    tier = DiskTier(folder, 10**9)
    assert dict(tier.report.skipped).keys() == {
        "notes.txt",
        "pieces/notes.txt",
        f"pieces/{shard}",
        str(path.relative_to(folder)),
    }
    assert tier.open(id_of("linked"), ALICE) is None
    assert tier.count() == 1
    # A piece that belongs behind the linked folder is refused; one in place of the linked file replaces the link.
    with pytest.raises(StoreError):
        tier.write(record(None, id=shard + "0" * 62), Terms())
    tier.write(record("linked", version=1), Terms())
    check(tier.open(id_of("linked"), ALICE), id_of("linked"), 1)
    assert secret.read_bytes() == before
    assert list((tmp_path / "away").iterdir()) == []
    collect(tier)
    assert (folder / "notes.txt").read_text() == (folder / "pieces" / "notes.txt").read_text() == "mine"
    tier.close()


def test_a_store_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    from emblema.store.disk.folder import _checksum

    tier = DiskTier(tmp_path, 10**9)
    tier.write(record("kept"), Terms())
    tier.close()
    (tmp_path / "FORMAT").write_bytes(b"emblema store, format 2, checksum %s\n" % _checksum(2))
    before = piece_files(tmp_path)
    with pytest.raises(StoreError, match="format 2"):
        DiskTier(tmp_path, 10)
    assert piece_files(tmp_path) == before


def test_modes_keep_others_out(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    tier = DiskTier(folder, 10**9)
    tier.write(record("kept"), Terms(pinned=True))
    for path in [folder, *folder.rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == expected, path
    tier.close()


def test_two_processes_on_one_store(tmp_path: Path) -> None:
    """Each sees what the other keeps; together they stay within the budget; both end by themselves."""
    capacity = 1_000_000
    command = [sys.executable, "-m", "tests.store.disk.writer", str(tmp_path / "store"), "--capacity", str(capacity)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    writers = [
        subprocess.Popen(
            [*command, "--name", name, "--seed", seed, "--operations", "60"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name, seed in (("left", "1"), ("right", "2"))
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    tier = DiskTier(tmp_path / "store", capacity)
    assert (tier.report.added, tier.report.lost, tier.report.skipped) == (0, 0, ())
    files = piece_files(tmp_path / "store")
    assert files and {entry.id: entry.bytes for entry in tier.entries()} == files
    assert tier.bytes == sum(files.values()) <= capacity
    assert verify_pieces(tier).damaged == ()
    tier.close()


def test_another_tier_on_the_folder_makes_the_catalogue_again(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, 10**9)
    first.write(record("before"), Terms())
    (tmp_path / "catalogue.sqlite").unlink()
    second = DiskTier(tmp_path, 10**9)
    assert second.report.added == 1
    second.write(record("second"), Terms())
    first.write(record("first"), Terms())
    for tier in (first, second):
        _intact(tier, tmp_path, ["before", "second", "first"])
        tier.close()


def test_readers_go_on_while_the_catalogue_is_made_again(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 10**6)
    put(tier, "a")
    held, found, done = tier.bytes, list[int](), threading.Event()

    def read() -> None:
        while not done.is_set():
            found.append(tier.bytes)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        before = len(found)
        for path in tmp_path.glob("catalogue.sqlite*"):
            path.unlink()
        wait_until(lambda before=before: len(found) > before + 20)  # type: ignore[misc]
    done.set()
    for reader in readers:
        reader.join(10)
    assert set(found) == {held}
    tier.close()
