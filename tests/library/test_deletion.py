"""What is deleted goes for good: past a tier that fails, a process that is killed, and a disk that is full."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import emblema
from emblema.errors import StoreError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.libraries import Libraries
from emblema.library.static import StaticLibrary
from emblema.store.store import Store
from tests.library.shelves import Clock, Landmarks, administrator, photo, png, tenant
from tests.store.tiers import FULL, FaultyDisk


class Kept:
    """A tenant's files and a collection on one folder, whose disk tier fails when it is told to."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.disk = FaultyDisk(folder / "store")
        self.store = Store(self.disk)
        self.libraries = Libraries(folder / "libraries", **({} if clock is None else {"clock": clock}))
        self.bench, self.chief = tenant(self.store), administrator(self.store)
        self.files = StaticLibrary(self.libraries, self.bench.tenant, Landmarks())
        self.admin = DynamicLibrary(self.libraries, "hotels", self.chief.tenant, Landmarks())
        self.reader = DynamicLibrary(self.libraries, "hotels", self.bench.tenant, Landmarks())

    def close(self) -> None:
        self.libraries.close()
        self.store.close()


def sources(folder: Path) -> int:
    return sum(1 for path in folder.glob("libraries/sources/*/*") if path.is_file())


@contextmanager
def full() -> Iterator[None]:
    """No file can grow beyond its first KiB, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_deletion_that_a_tier_fails_is_tried_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    first, second = kept.files.add(png(1), "one"), kept.files.add(png(2), "two")
    kept.store.flush()
    kept.disk.faults.delete = FULL
    for _ in range(2):
        with pytest.raises(StoreError, match="not all of 'one' could be deleted"):
            kept.files.delete("one")
    assert list(kept.files) == ["two"] and sources(tmp_path) == 1
    assert kept.disk.entry(first.id) is not None and kept.libraries.statistics.uncollected == 2
    kept.disk.faults.delete = None
    kept.files.delete("one")
    assert kept.disk.entry(first.id) is None and kept.disk.entry(second.id) is not None
    with pytest.raises(StoreError, match="no file 'one'"):
        kept.files.delete("one")
    kept.close()


def test_one_chunk_that_cannot_be_deleted_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    entry = kept.files.add(png(1), "pages", pages=4)
    kept.store.flush()
    real = kept.disk.delete

    def failing(id: str, owner: str) -> bool:
        if id == entry.chunks[1]:
            raise StoreError("this one stays")
        return real(id, owner)

    monkeypatch.setattr(kept.disk, "delete", failing)
    with pytest.raises(StoreError, match="not all of 'pages'"):
        kept.files.delete("pages")
    assert [kept.disk.entry(chunk) is not None for chunk in entry.chunks] == [False, True, False, False]
    monkeypatch.undo()
    kept.files.add(png(2), "other")
    assert kept.disk.entry(entry.chunks[1]) is None
    kept.close()


def test_what_is_added_again_is_to_be_deleted_no_more(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    entry = kept.files.add(png(1), "one")
    kept.store.flush()
    kept.disk.faults.delete = FULL
    with pytest.raises(StoreError):
        kept.files.delete("one")
    kept.disk.faults.delete = None
    assert kept.files.add(png(1), "again").id == entry.id
    kept.files.add(png(2), "other")
    kept.files.delete("other")
    kept.store.flush()
    assert kept.disk.entry(entry.id) is not None and sources(tmp_path) == 1
    kept.close()


KILLED = """
import os, sys
from pathlib import Path
from emblema.store.store import TenantStore
from tests.library.test_deletion import Kept, png, sources
folder = Path(sys.argv[1])
kept = Kept(folder)
kept.files.add(png(1), "one")
kept.close()
assert sources(folder) == 1 and len(list(folder.rglob("pieces/*/*.safetensors"))) == 1
kept = Kept(folder)
TenantStore.delete = lambda self, chunk: os._exit(9)
kept.files.delete("one")
"""


@pytest.mark.slow
def test_a_process_killed_before_it_deletes_has_the_next_one_delete(tmp_path: Path) -> None:
    places = [str(Path(emblema.__file__).parents[1]), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment).returncode == 9
    assert sources(tmp_path) == 1 and len(list(tmp_path.rglob("pieces/*/*.safetensors"))) == 1
    again = Kept(tmp_path)
    assert list(again.files) == [], "it is listed again"
    again.close()
    assert sources(tmp_path) == 0 and list(tmp_path.rglob("pieces/*/*.safetensors")) == []


def test_a_full_disk_does_not_keep_a_file(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    one, two = kept.files.add(png(1), "one"), kept.files.add(png(2), "two")
    kept.store.flush()
    with full():
        with pytest.raises(StoreError):
            kept.files.delete("one")
        assert not kept.disk.piece_path(one.id).exists() and sources(tmp_path) == 1
    kept.files.delete("one")
    kept.files.add(png(3), "three")
    kept.close()
    again = Kept(tmp_path)
    assert list(again.files) == ["two", "three"]
    assert again.disk.entry(one.id) is None and again.disk.entry(two.id) is not None
    again.close()


def test_files_whose_time_is_over_are_not_given_from_a_full_disk(tmp_path: Path) -> None:
    clock = Clock()
    kept = Kept(tmp_path, clock)
    kept.files.add(png(1), "short", seconds=5)
    kept.files.add(png(2), "long")
    kept.store.flush()
    clock.time += 6
    with full():
        assert list(kept.files) == ["long"] and "short" not in kept.files
    kept.close()


def test_a_snapshot_is_taken_on_a_full_disk(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.admin.put("ritz", photo(1))
    kept.store.flush()
    with full(), kept.reader.snapshot() as request:
        assert list(request) == ["ritz"] and request["ritz"].tokens > 0
    kept.close()


def test_a_clean_up_that_fails_is_not_the_readers(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.admin.put("ritz", photo(1))
    kept.store.flush()
    (old,) = kept.chief.made
    request = kept.reader.snapshot()
    assert len(request) == 1
    kept.admin.put("ritz", photo(2))
    kept.disk.faults.delete = FULL
    request.close()
    assert kept.libraries.statistics.uncollected == 1 and kept.disk.entry(old) is not None
    kept.disk.faults.delete = None
    kept.reader.snapshot().close()
    assert kept.disk.entry(old) is None
    kept.close()


def test_a_hold_that_cannot_be_ended_is_ended_later(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.admin.put("ritz", photo(1))
    (old,) = kept.chief.made
    request = kept.reader.snapshot()
    kept.admin.put("ritz", photo(2))
    with full():
        request.close()
    assert old in kept.chief.view and kept.libraries.statistics.uncollected == 1
    kept.reader.snapshot().close()
    assert old not in kept.chief.view
    kept.close()
