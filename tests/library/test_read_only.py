"""Libraries in a folder that cannot be written: read, and refused to be changed by one clear error."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from emblema.errors import StoreError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.libraries import Libraries
from emblema.library.static import StaticLibrary
from emblema.store.store import Store
from tests.library.shelves import Clock, Landmarks, administrator, photo, png, tenant


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory; skips where mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("crashed", [False, True])
def test_libraries_are_read_where_nothing_can_be_written(disk: Path, crashed: bool) -> None:
    clock, store = Clock(), Store()
    libraries = Libraries(disk, clock=clock)
    files = StaticLibrary(libraries, tenant(store).tenant, Landmarks())
    files.add(png(1), "one")
    files.add(png(2), "short", seconds=5)
    DynamicLibrary(libraries, "hotels", administrator(store).tenant, Landmarks()).put("ritz", photo(3))
    if crashed:
        # Its log stays beside the catalogue.
        for path in list(disk.glob("catalogue.sqlite*")):
            (disk / f"kept-{path.name}").write_bytes(path.read_bytes())
    libraries.close()
    if crashed:
        for path in list(disk.glob("kept-*")):
            path.replace(disk / path.name.removeprefix("kept-"))
        assert (disk / "catalogue.sqlite-wal").exists()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    clock.time += 6
    libraries = Libraries(disk, clock=clock)
    bench, chief = tenant(store), administrator(store)
    files = StaticLibrary(libraries, bench.tenant, Landmarks())
    admin = DynamicLibrary(libraries, "hotels", chief.tenant, Landmarks())
    reader = DynamicLibrary(libraries, "hotels", bench.tenant, Landmarks())
    assert list(files) == ["one"] and files["one"].tokens > 0 and "short" not in files
    with reader.snapshot() as request:
        assert list(request) == ["ritz"] and request["ritz"].tokens > 0
    assert [hit.name for hit in files.search("word0", 1)] == ["one"]
    for act in (lambda: files.delete("one"), lambda: admin.put("inn", photo(4)), lambda: files.add(png(1), "again")):
        with pytest.raises(StoreError, match="cannot be written"):
            act()
    assert list(files) == ["one"] and list(reader) == ["ritz"] and files["one"].id in bench.view
    libraries.close()
