"""One sqlite file, made with its tables, shared, and made again where it is damaged."""

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from emblema.errors import StoreError
from emblema.store.catalogue import Catalogue, CatalogueError, DamagedCatalogueError, Tables

NOTES = ("CREATE TABLE notes (word TEXT PRIMARY KEY)",)
ADDED = (*NOTES, "ALTER TABLE notes ADD COLUMN times INTEGER NOT NULL DEFAULT 1")


def opened(folder: Path | None, statements: tuple[str, ...] = NOTES) -> Catalogue:
    return Catalogue(None if folder is None else folder / "catalogue.sqlite", Tables("notes", statements))


def write(catalogue: Catalogue, word: str) -> None:
    with catalogue.change() as rows:
        rows.execute("INSERT INTO notes (word) VALUES (?)", (word,))


def words(catalogue: Catalogue) -> set[str]:
    return catalogue.read(lambda rows: {word for (word,) in rows.execute("SELECT word FROM notes")})


@pytest.mark.parametrize("kept", [True, False])
def test_a_change_is_done_whole_or_not_at_all(tmp_path: Path, kept: bool) -> None:
    catalogue = opened(tmp_path if kept else None)
    write(catalogue, "one")
    with pytest.raises(ValueError), catalogue.change() as rows:
        rows.execute("INSERT INTO notes VALUES ('two')")
        assert words(catalogue) == {"one", "two"}, "its own thread sees it"
        raise ValueError
    assert words(catalogue) == {"one"}
    before = catalogue.version()
    assert before == catalogue.version()
    with catalogue.change() as outer, catalogue.change() as inner:
        assert outer is inner
        inner.execute("INSERT INTO notes VALUES ('three')")
    assert words(catalogue) == {"one", "three"} and catalogue.version() != before
    catalogue.close()
    with pytest.raises(CatalogueError, match="closed"):
        words(catalogue)


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    catalogue = opened(Path("."))
    monkeypatch.chdir(tmp_path)
    write(catalogue, "one")
    catalogue.close()
    assert words(opened(tmp_path / "here")) == {"one"} and not (tmp_path / "catalogue.sqlite").exists()


def test_tables_are_brought_up_to_date_once_and_a_later_version_is_refused(tmp_path: Path) -> None:
    old = opened(tmp_path)
    write(old, "one")
    old.close()
    for _ in range(2):
        new = opened(tmp_path, ADDED)
        assert new.read(lambda rows: rows.execute("SELECT * FROM notes").fetchall()) == [("one", 1)]
        new.close()
    with pytest.raises(StoreError, match="later version"):
        opened(tmp_path)
    assert not list(tmp_path.glob("*.damaged"))


def test_what_can_be_read_of_a_damaged_file_is_taken_over(tmp_path: Path) -> None:
    catalogue, other = opened(tmp_path), opened(tmp_path)
    many = [f"word {number}" for number in range(2000)]
    for word in many[:3]:
        write(catalogue, word)
    with catalogue.change() as rows:
        rows.executemany("INSERT INTO notes VALUES (?)", [(word,) for word in many[3:]])
    catalogue.close()
    other.close()
    path = tmp_path / "catalogue.sqlite"
    data = bytearray(path.read_bytes())
    assert len(data) > 20 * 4096
    # One page of the table or its index in the middle.
    data[10 * 4096 : 11 * 4096] = bytes(4096)
    path.write_bytes(data)
    again = opened(tmp_path)
    left = words(again)
    assert again.made_again == 1 and "made the catalogue again" in again.notes[0]
    assert set(many[:3]) <= left < set(many) or left == set(many)
    write(again, "new")
    assert (tmp_path / "catalogue.sqlite.damaged").read_bytes() == data
    again.close()


def test_damage_that_a_reader_finds_is_mended_for_all_who_have_it_open(tmp_path: Path) -> None:
    catalogue, other = opened(tmp_path), opened(tmp_path)
    write(catalogue, "one")
    asked: list[int] = []

    def ask(rows: sqlite3.Connection) -> set[str]:
        asked.append(1)
        if len(asked) == 1:
            raise DamagedCatalogueError("as a row's checksum tells")
        return {word for (word,) in rows.execute("SELECT word FROM notes")}

    assert catalogue.read(ask) == {"one"} and catalogue.made_again == 1
    write(other, "two")
    assert words(catalogue) == words(other) == {"one", "two"} and other.made_again == 0
    catalogue.close()
    other.close()


def test_a_change_that_finds_damage_is_done_again(tmp_path: Path) -> None:
    catalogue, tried = opened(tmp_path), list[int]()

    def act() -> None:
        with catalogue.change() as rows:
            rows.execute("INSERT INTO notes VALUES ('one')")
            tried.append(1)
            if len(tried) == 1:
                raise DamagedCatalogueError("as a row's checksum tells")

    catalogue.retried(act)
    assert words(catalogue) == {"one"} and len(tried) == 2
    catalogue.close()


def test_changes_of_several_threads_follow_each_other(tmp_path: Path) -> None:
    catalogues = [opened(tmp_path), opened(tmp_path)]

    def many(number: int) -> None:
        for index in range(20):
            write(catalogues[number % 2], f"{number} {index}")

    threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(len(words(catalogue)) == 80 for catalogue in catalogues)
    for catalogue in catalogues:
        catalogue.close()


@pytest.mark.parametrize("kept", [True, False])
def test_no_other_thread_sees_a_change_before_its_end(tmp_path: Path, kept: bool) -> None:
    catalogue, found = opened(tmp_path if kept else None), list[set[str]]()
    thread = threading.Thread(target=lambda: found.append(words(catalogue)))
    with catalogue.change() as rows:
        rows.execute("INSERT INTO notes VALUES ('one')")
        thread.start()
        # In memory the reader waits; on disk it need not.
        thread.join(60 if kept else 0.1)
        assert found == ([set()] if kept else [])
        rows.execute("DELETE FROM notes")
    thread.join(60)
    assert found == [set()]
    catalogue.close()


def test_a_file_that_is_kept_locked_is_not_taken_for_one_that_cannot_be_written(tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = tmp_path / "catalogue.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CatalogueError, match="locked"):
            Catalogue(path, Tables("notes", NOTES), wait=0.05)
        other.execute("ROLLBACK")
    catalogue = Catalogue(path, Tables("notes", NOTES), wait=0.05)
    write(catalogue, "one")
    assert catalogue.read_only is None and words(catalogue) == {"one"}
    catalogue.close()


def test_a_fork_opens_its_own(tmp_path: Path) -> None:
    catalogue = opened(tmp_path)
    write(catalogue, "one")
    child = os.fork()
    if child == 0:
        write(catalogue, "two")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    write(catalogue, "three")
    assert words(catalogue) == {"one", "two", "three"}
    catalogue.close()
