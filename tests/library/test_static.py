"""A tenant's files: found by name, gone when deleted or over, made again where lost, and nobody else's."""

import math
from pathlib import Path

import pytest

from emblema.errors import MediaError, StoreError
from emblema.kv.chunk import Chunk, Clip
from emblema.library import sources as module
from emblema.library.libraries import Libraries
from emblema.library.static import StaticLibrary
from emblema.store.store import Store
from tests.library.shelves import Clock, Landmarks, photo, png, tenant


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_file_is_found_by_its_name(store: Store) -> None:
    bench = tenant(store)
    files = StaticLibrary(Libraries(), bench.tenant)
    entry = files.add(photo(1), name="EIFEL2025")
    piece = files["EIFEL2025"]
    assert isinstance(piece, Chunk)
    assert (piece.id, piece.kind, piece.tokens) == (entry.id, entry.kind, entry.tokens) and entry.id in bench.made
    assert [each.name for each in files.list()] == list(files) == ["EIFEL2025"] and len(files) == 1
    assert "EIFEL2025" in files and "other" not in files and 3 not in files


def test_a_file_without_a_name_gets_one_from_its_content(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant)
    first = files.add(photo(1))
    assert first.name == f"file-{first.id[:12]}"
    again = files.add(photo(1))
    assert again.name == first.name and len(files) == 1
    assert files.add(photo(2)).name != first.name and len(files) == 2


def test_a_clip_comes_back_as_a_clip(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant)
    made = files.add(png(1), name="report", pages=3)
    piece = files["report"]
    assert isinstance(piece, Clip) and piece.kind == "document" and len(piece) == 3
    assert tuple(chunk.id for chunk in piece) == made.chunks
    single = files.add(png(2), name="leaf", pages=1)
    assert isinstance(files["leaf"], Clip) and len(single.chunks) == 1


def test_a_taken_name_is_refused_before_anything_is_made(store: Store) -> None:
    bench = tenant(store)
    files = StaticLibrary(Libraries(), bench.tenant)
    files.add(photo(1), name="one")
    made = list(bench.made)
    with pytest.raises(StoreError, match="'one' is in the library already"):
        files.add(photo(2), name="one")
    assert bench.made == made
    files.delete("one")
    files.add(photo(2), name="one")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 201, "\x00", 7])
def test_a_name_must_be_readable(store: Store, name: object) -> None:
    with pytest.raises(StoreError, match="no name"):
        StaticLibrary(Libraries(), tenant(store).tenant).add(photo(1), name=name)


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, True, "10"])
def test_a_time_must_be_positive(store: Store, seconds: object) -> None:
    with pytest.raises(StoreError, match="no time to keep"):
        StaticLibrary(Libraries(), tenant(store).tenant).add(photo(1), name="one", seconds=seconds)


def test_an_unknown_name_is_an_error(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant)
    for act in (files.get, files.delete, files.entry, files.__getitem__):
        with pytest.raises(StoreError, match="no file 'nothing'"):
            act("nothing")


def test_a_source_that_cannot_be_read_leaves_nothing(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant)
    with pytest.raises(MediaError):
        files.add(b"broken", name="one")
    assert files.list() == () and "one" not in files


def test_deleting_takes_the_chunk_where_no_other_file_has_it(store: Store) -> None:
    bench = tenant(store)
    files = StaticLibrary(Libraries(), bench.tenant)
    first, second = files.add(photo(1), name="one"), files.add(photo(1), name="two")
    assert first.id == second.id
    files.delete("one")
    assert first.id in bench.view and files["two"].id == first.id
    files.delete("two")
    assert first.id not in bench.view


def test_time_runs_out(store: Store) -> None:
    clock, bench = Clock(), tenant(store)
    files = StaticLibrary(Libraries(clock=clock), bench.tenant)
    entry = files.add(photo(1), name="one", seconds=60)
    files.add(photo(2), name="two")
    clock.time += 59
    assert "one" in files
    clock.time += 1
    with pytest.raises(StoreError, match="has expired"):
        files["one"]
    assert [each.name for each in files.list()] == ["two"] and entry.id not in bench.view
    clock.time -= 1000
    assert "one" not in files
    files.add(photo(3), name="one")


def test_a_clock_that_jumps_back_revives_nothing(store: Store) -> None:
    clock = Clock()
    files = StaticLibrary(Libraries(clock=clock), tenant(store).tenant)
    files.add(photo(1), name="one", seconds=60)
    clock.time += 100
    files.add(photo(2), name="two", seconds=60)
    clock.time -= 100
    assert [entry.name for entry in files.list()] == ["two"]


def test_another_tenants_files_are_not_here(store: Store) -> None:
    libraries = Libraries()
    one, other = tenant(store, b"one"), tenant(store, b"other")
    mine, theirs = StaticLibrary(libraries, one.tenant), StaticLibrary(libraries, other.tenant)
    entry = mine.add(photo(1), name="secret")
    assert "secret" not in theirs and theirs.list() == () and theirs.search("word1", 3) == ()
    for act in (theirs.get, theirs.delete):
        with pytest.raises(StoreError, match="no file 'secret'"):
            act("secret")
    own = theirs.add(photo(1), name="secret")
    assert own.id != entry.id
    theirs.delete("secret")
    assert mine["secret"].id == entry.id


def test_another_model_does_not_see_the_chunks(store: Store) -> None:
    libraries = Libraries()
    StaticLibrary(libraries, tenant(store).tenant).add(photo(1), name="one")
    assert "one" not in StaticLibrary(libraries, tenant(store, name="internvl").tenant)


@pytest.mark.parametrize("form", ["bytes", "path", "picture"])
def test_a_lost_chunk_is_made_again_from_its_media(store: Store, tmp_path: Path, form: str) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(png(1))
    source = {"bytes": png(1), "path": path, "picture": photo(1)}[form]
    bench, libraries = tenant(store), Libraries(tmp_path / "libraries")
    files = StaticLibrary(libraries, bench.tenant)
    entry = files.add(source, name="one")
    path.unlink()
    bench.view.delete(entry.id)
    assert files["one"].id == entry.id and bench.made == [entry.id] * 2
    assert libraries.statistics.remade == 1


def test_a_lost_text_and_a_lost_clip_are_made_again_with_their_options(store: Store) -> None:
    bench = tenant(store)
    files = StaticLibrary(Libraries(), bench.tenant)
    text, clip = files.add(name="text", text="word1 word2"), files.add(png(1), name="clip", pages=2)
    for chunk in (*text.chunks, clip.chunks[1]):
        bench.view.delete(chunk)
    assert files["text"].id == text.id and files["clip"].id == clip.id
    assert len(bench.made) == 5


def test_media_beyond_the_budget_are_not_kept_and_a_loss_says_so(store: Store) -> None:
    bench, libraries = tenant(store), Libraries(source_bytes=len(png(1)) + 10)
    files = StaticLibrary(libraries, bench.tenant)
    files.add(png(1), name="one")
    second = files.add(png(2), name="two")
    assert second.source is None
    bench.view.delete(second.id)
    with pytest.raises(StoreError, match="its media were not kept: add it again"):
        files["two"]
    files.delete("one")
    assert files.add(png(3), name="three").source is not None


def test_damaged_media_are_never_used(store: Store, tmp_path: Path) -> None:
    bench, libraries = tenant(store), Libraries(tmp_path)
    files = StaticLibrary(libraries, bench.tenant)
    entry = files.add(png(1), name="one")
    (kept,) = (path for path in (tmp_path / "sources").rglob("*") if path.is_file())
    kept.write_bytes(png(2))
    assert files["one"].id == entry.id
    bench.view.delete(entry.id)
    with pytest.raises(StoreError, match="are damaged: add it again"):
        files["one"]


def test_files_outlive_the_process_and_their_media_go_with_them(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, Libraries(tmp_path / "libraries") as libraries:
        entry = StaticLibrary(libraries, tenant(store).tenant).add(png(1), name="EIFEL2025", seconds=1e6)
        store.flush()
    with Store(tmp_path / "store") as store, Libraries(tmp_path / "libraries") as libraries:
        bench = tenant(store)
        files = StaticLibrary(libraries, bench.tenant)
        assert files.list() == (entry,) and files["EIFEL2025"].id == entry.id and bench.made == []
        media = [path for path in (tmp_path / "libraries" / "sources").rglob("*") if path.is_file()]
        assert len(media) == 1 and media[0].stat().st_mode & 0o077 == 0
        files.delete("EIFEL2025")
        assert not media[0].exists()


def test_stray_media_are_swept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = tenant(store)
    files = StaticLibrary(Libraries(tmp_path), bench.tenant)
    files.add(png(1), name="one")
    (folder,) = (tmp_path / "sources").iterdir()
    (folder / ("0" * 64)).write_bytes(b"left behind")
    (folder / ".x.temporary").write_bytes(b"left behind")
    monkeypatch.setattr(module, "STRAY_SECONDS", -1.0)
    StaticLibrary(Libraries(tmp_path), bench.tenant)
    assert len(list(folder.iterdir())) == 1


def test_search_finds_among_all_files(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant, Landmarks())
    for seed in range(5):
        files.add(photo(seed), name=f"photo {seed}")
    hits = files.search("word3", 2)
    assert hits[0].name == "photo 3" and hits[0].chunk.id == files["photo 3"].id and len(hits) == 2
    assert hits[0].score > hits[1].score
    files.delete("photo 3")
    assert all(hit.name != "photo 3" for hit in files.search("word3", 10))


def test_search_names_the_page_of_a_clip(store: Store) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant, Landmarks())
    files.add(png(1), name="report", pages=3)
    (hit,) = files.search("word2", 1)
    assert (hit.name, hit.index) == ("report", 2) and hit.chunk.id == files.entry("report").chunks[2]


@pytest.mark.parametrize(
    ("query", "count"), [("", 3), ("  ", 3), (None, 3), ("word1", 0), ("word1", -2), ("word1", 1.5)]
)
def test_bad_searches_are_refused(store: Store, query: str, count: int) -> None:
    files = StaticLibrary(Libraries(), tenant(store).tenant)
    with pytest.raises(StoreError, match="query is empty|give a number from 1"):
        files.search(query, count)
