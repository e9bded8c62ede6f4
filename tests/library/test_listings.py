"""Versions of libraries, and files that are damaged, locked, in the way or not writable."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.library.items import Listing, SourceNote
from emblema.library.listings import EndedItems, Listings, VersionHold, is_running, this_process

SCOPE, LIBRARY = "scope", "files"


def entry(name: str, number: int = 0, expires: float | None = None) -> Listing:
    chunk = f"{number:064x}"
    return Listing(
        name,
        chunk,
        "image",
        (chunk,),
        False,
        3,
        100,
        1.5,
        expires,
        SourceNote(f"{number + 500:064x}", 5, "", {"fps": 1}),
    )


def test_an_entry_reads_what_it_wrote() -> None:
    for one in (entry("a"), entry("ü\U0001f3e8", 7, 2.5), Listing("b", "x", "video", ("y", "z"), True, 0, 0, 0.0)):
        assert Listing.read(one.json()) == one
    for text in ("", "[]", "{}", "null", '{"name": 1}', "[" * 100_000, '{"source": 3, "chunks": []}'):
        with pytest.raises(ValueError):
            Listing.read(text)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)), st.sets(st.sampled_from("abcd"))),
        max_size=12,
    ),
    st.data(),
)
def test_every_held_version_stays_and_every_other_goes(changes: list, data: st.DataObject) -> None:
    catalogue = Listings()
    versions: list[dict[str, Listing]] = [{}]
    held: dict[int, VersionHold] = {}
    for put, remove in changes:
        entries = {name: entry(name, number) for name, number in put.items()}
        gone = [name for name in sorted(remove) if name not in put]
        assert catalogue.change(SCOPE, LIBRARY, entries, gone) == len(versions)
        versions.append({name: one for name, one in {**versions[-1], **entries}.items() if name not in gone})
        if data.draw(st.booleans()):
            hold = catalogue.hold(SCOPE, LIBRARY)
            held[hold.version] = hold
        if held and data.draw(st.booleans()):
            catalogue.release(held.pop(data.draw(st.sampled_from(sorted(held)))))
        ended = catalogue.ended(SCOPE, LIBRARY)
        oldest = min(held, default=len(versions) - 1)
        needed = {chunk for version in versions[oldest:] for one in version.values() for chunk in one.chunks}
        assert not needed & set(ended.chunks)
        if data.draw(st.booleans()):
            catalogue.forget(SCOPE, ended, {*ended.chunks, *ended.sources})
        for version in {*held, len(versions) - 1}:
            assert catalogue.entries(SCOPE, LIBRARY, version) == versions[version]
    for hold in held.values():
        catalogue.release(hold)
    ended = catalogue.ended(SCOPE, LIBRARY)
    catalogue.forget(SCOPE, ended, {*ended.chunks, *ended.sources})
    named = {one.id for one in versions[-1].values()}
    assert catalogue.named(SCOPE, [f"{number:064x}" for number in range(6)]) == named
    assert set(catalogue.sources(SCOPE)) == {one.source.digest for one in versions[-1].values() if one.source}


def test_an_item_is_ending_until_all_of_it_is_deleted() -> None:
    catalogue = Listings()
    catalogue.change(SCOPE, LIBRARY, {"a": entry("a", 1)})
    catalogue.change(SCOPE, LIBRARY, {}, ["a"])
    ended = catalogue.ended(SCOPE, LIBRARY)
    catalogue.forget(SCOPE, ended, ended.sources)
    assert catalogue.is_ending(SCOPE, LIBRARY, "a") and catalogue.sources(SCOPE) == {}
    assert catalogue.ended(SCOPE, LIBRARY) == EndedItems(ended.numbers, ended.chunks)
    catalogue.change(SCOPE, LIBRARY, {"b": entry("b", 1)})
    kept = catalogue.ended(SCOPE, LIBRARY)
    assert kept.numbers and not kept.chunks and not kept.sources, "another item names it now"
    catalogue.forget(SCOPE, kept, ())
    assert not catalogue.is_ending(SCOPE, LIBRARY, "a") and catalogue.entry(SCOPE, LIBRARY, "b") == entry("b", 1)


def test_scopes_and_libraries_are_apart() -> None:
    catalogue = Listings()
    catalogue.change(SCOPE, LIBRARY, {"a": entry("a", 1)})
    for scope, library in (("other", LIBRARY), (SCOPE, "other")):
        assert catalogue.entries(scope, library) == {} and catalogue.version(scope, library) == 0
        assert catalogue.entry(scope, library, "a") is None
    catalogue.change("other", LIBRARY, {"a": entry("a", 1)})
    catalogue.change("other", LIBRARY, {}, ["a"])
    assert catalogue.ended("other", LIBRARY).chunks == (f"{1:064x}",) and catalogue.named(SCOPE, [f"{1:064x}"])


def test_a_fresh_name_is_only_put_once() -> None:
    catalogue = Listings()
    catalogue.change(SCOPE, LIBRARY, {"a": entry("a", 1)}, fresh=True)
    with pytest.raises(StoreError, match="'a' is in the library already"):
        catalogue.change(SCOPE, LIBRARY, {"b": entry("b"), "a": entry("a", 2)}, fresh=True)
    assert catalogue.entries(SCOPE, LIBRARY) == {"a": entry("a", 1)} and catalogue.version(SCOPE, LIBRARY) == 1


def test_two_catalogues_on_one_file(tmp_path: Path) -> None:
    both = [Listings(tmp_path) for _ in range(2)]

    def put(index: int) -> None:
        for number in range(25):
            both[index].change(SCOPE, LIBRARY, {f"{index} {number}": entry(f"{index} {number}", number)}, fresh=True)

    threads = [threading.Thread(target=put, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(both[0].entries(SCOPE, LIBRARY)) == 50 and both[1].version(SCOPE, LIBRARY) == 50
    assert (tmp_path / "catalogue.sqlite").stat().st_mode & 0o077 == 0


def closed(path: Path, count: int = 30) -> dict[str, Listing]:
    """A catalogue with entries, closed."""
    catalogue = Listings(path.parent)
    entries = {f"name {number}": entry(f"name {number}", number) for number in range(count)}
    catalogue.change(SCOPE, LIBRARY, entries)
    catalogue.catalogue.close()
    return entries


@pytest.mark.parametrize("cases", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_damage_never_gives_a_wrong_entry(tmp_path: Path, cases: int) -> None:
    path = tmp_path / "catalogue.sqlite"
    entries = closed(path)
    whole = path.read_bytes()
    random = numpy.random.default_rng(cases)
    kept = 0
    for case in range(cases):
        for left in tmp_path.iterdir():
            left.unlink()
        changed = bytearray(whole)
        start = int(random.integers(len(whole)))
        stop = min(len(whole), start + int(random.integers(1, 5000)))
        if case % 4 == 0:
            changed[start] ^= 1 << int(random.integers(8))
        elif case % 4 == 1:
            del changed[start:]
        elif case % 4 == 2:
            changed[start:stop] = random.bytes(stop - start)
        else:
            changed[start:stop] = bytes(stop - start)
        path.write_bytes(changed)
        catalogue = Listings(path.parent)
        try:
            found = catalogue.entries(SCOPE, LIBRARY)
        except StoreError:
            # A page that the check at opening passed; by now the file is another.
            found = catalogue.entries(SCOPE, LIBRARY)
        assert all(entries[name] == one for name, one in found.items())
        kept += len(found)
        catalogue.change(SCOPE, LIBRARY, {"new": entry("new", 99)})
        assert catalogue.entry(SCOPE, LIBRARY, "new") == entry("new", 99)
        catalogue.catalogue.close()
    assert kept > cases * 30 / 4


def test_a_row_that_was_changed_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.sqlite"
    closed(path, 3)
    with sqlite3.connect(path) as rows:
        rows.execute("UPDATE items SET name = 'stolen' WHERE name = 'name 1'")
        rows.execute("UPDATE items SET scope = 'mine' WHERE name = 'name 2'")
    catalogue = Listings(path.parent)
    assert list(catalogue.entries(SCOPE, LIBRARY)) == ["name 0"] and catalogue.entries("mine", LIBRARY) == {}
    assert catalogue.entry(SCOPE, LIBRARY, "stolen") is None and catalogue.damaged == 2


def test_a_damaged_version_is_told_by_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.sqlite"
    entries = closed(path, 3)
    for version in ("-4", "'x'", "9000000000000000000", "0"):
        with sqlite3.connect(path) as rows:
            rows.execute(f"UPDATE versions SET version = {version}")
        rows.close()
        catalogue = Listings(path.parent)
        assert catalogue.version(SCOPE, LIBRARY) == 1 and catalogue.entries(SCOPE, LIBRARY) == entries
        catalogue.catalogue.close()


def test_a_file_that_is_no_catalogue_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.sqlite"
    for content in (b"", b"something else" * 1000, os.urandom(5000)):
        path.write_bytes(content)
        catalogue = Listings(path.parent)
        assert catalogue.entries(SCOPE, LIBRARY) == {}
        catalogue.catalogue.close()
    path.unlink()
    with sqlite3.connect(path) as rows:
        rows.execute("CREATE TABLE items (a)")
    rows.close()
    Listings(path.parent).change(SCOPE, LIBRARY, {"a": entry("a")})


def damaged_beside_the_items(path: Path, count: int) -> dict[str, Listing]:
    """A catalogue whose items can all be read and one of whose indexes is damaged."""
    entries = closed(path, count)
    with sqlite3.connect(path) as rows:
        (page,) = rows.execute("SELECT rootpage FROM sqlite_master WHERE name = 'items_expire'").fetchone()
        (size,) = rows.execute("PRAGMA page_size").fetchone()
        rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rows.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(os.urandom(size))
    return entries


_MEND = """
import sys, time
from pathlib import Path
from emblema.library.listings import Listings
own, other, *paths = map(Path, sys.argv[1:])
damaged = 0
for number, path in enumerate(paths):
    own.joinpath(str(number)).touch()
    while not other.joinpath(str(number)).exists():
        pass
    catalogue = Listings(path.parent)
    damaged += catalogue.damaged
    catalogue.change("scope", "files", {}, [f"name {len(own.name)}"])
    print(len(catalogue.entries("scope", "files")), flush=True)
    catalogue.catalogue.close()
print(damaged)
"""


@pytest.mark.slow
def test_two_processes_that_mend_at_once_lose_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) / "catalogue.sqlite" for number in range(8)]
    for path in paths:
        path.parent.mkdir()
        expected = damaged_beside_the_items(path, 300)
    broken = [path.read_bytes() for path in paths]
    meeting = [tmp_path / "a", tmp_path / "bb"]
    for folder in meeting:
        folder.mkdir()
    started = [
        subprocess.Popen([sys.executable, "-c", _MEND, own, other, *paths], stdout=subprocess.PIPE, text=True)
        for own, other in (meeting, meeting[::-1])
    ]
    said = [process.communicate(timeout=120)[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert sum(int(one[-1]) for one in said) == len(paths), "each was mended once"
    for path, before in zip(paths, broken, strict=True):
        assert path.with_name("catalogue.sqlite.damaged").read_bytes() == before, (
            "what was set aside is the damaged one"
        )
        catalogue = Listings(path.parent)
        left = {name: one for name, one in expected.items() if name not in ("name 1", "name 2")}
        assert catalogue.entries(SCOPE, LIBRARY) == left and catalogue.damaged == 0
        catalogue.catalogue.close()


def test_who_has_it_open_follows_to_the_mended_file(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.sqlite"
    entries = closed(path, 3)
    first = Listings(path.parent)
    with path.open("r+b") as file:
        file.write(bytes(100))
    second = Listings(path.parent)
    assert second.damaged == 1
    second.change(SCOPE, LIBRARY, entries)
    first.change(SCOPE, LIBRARY, {"new": entry("new", 99)})
    assert set(second.entries(SCOPE, LIBRARY)) == {*entries, "new"} == set(first.entries(SCOPE, LIBRARY))
    first.catalogue.close()
    first.catalogue.close()
    second.catalogue.close()


@pytest.mark.parametrize("case", ["folder", "link"])
def test_what_is_no_plain_file_makes_way(tmp_path: Path, case: str) -> None:
    path, away = tmp_path / "catalogue.sqlite", tmp_path / "away"
    away.mkdir()
    (away / "mine").touch()
    away.rename(path) if case == "folder" else path.symlink_to(away / "mine")
    catalogue = Listings(tmp_path)
    catalogue.change(SCOPE, LIBRARY, {"a": entry("a")})
    assert path.is_file() and not path.is_symlink() and len(list(tmp_path.glob("*/mine"))) == 1
    catalogue.catalogue.close()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        Listings(tmp_path / "none")


def test_the_file_of_an_earlier_version_is_taken_over_once(tmp_path: Path) -> None:
    entries = closed(tmp_path / "catalogue.sqlite", 3)
    with contextlib.closing(sqlite3.connect(tmp_path / "catalogue.sqlite")) as rows:
        rows.execute("DROP TABLE rooms")
        rows.execute("PRAGMA application_id = 0")
    (tmp_path / "catalogue.sqlite").rename(tmp_path / "library.sqlite")
    for _ in range(2):
        catalogue = Listings(tmp_path)
        assert catalogue.entries(SCOPE, LIBRARY) == entries and catalogue.version(SCOPE, LIBRARY) == 1
        assert catalogue.damaged == 0 and not list(tmp_path.glob("library.sqlite*"))
        catalogue.catalogue.close()


def test_a_closed_catalogue_says_so(tmp_path: Path) -> None:
    catalogue = Listings(tmp_path)
    catalogue.catalogue.close()
    with pytest.raises(StoreError, match="closed"):
        catalogue.version(SCOPE, LIBRARY)


def test_processes_are_told_apart() -> None:
    assert is_running(this_process())
    assert not is_running("999999999 1") and not is_running("") and not is_running("x y")
    assert not is_running(f"{os.getpid()} 1")
