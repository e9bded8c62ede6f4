"""The files of tenants in a folder, which several servers share: whole or gone, whatever fails, and their owner's."""

import os
import random
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emblema.errors import StoreError
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant
from tests.store.disk.filelayer import FailingCalls, PowerCut, Recorder

ONE, OTHER = Tenant("one", b"one"), Tenant("other", b"other")
Open = Callable[..., FileStore]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Opens files as one more server of the same folder does."""
    return lambda quota=1_000, **options: FileStore(tmp_path, quota, **options)


def test_what_one_server_keeps_all_have(opened: Open) -> None:
    first, second = opened(10**6), opened(10**6)
    data = random.Random(1).randbytes(50_000)
    entry = first.add(ONE, data, "a.png", "vision", None)
    assert second.entry(ONE, entry.id) == entry
    assert (entry.name, entry.purpose, entry.bytes, entry.status, entry.chunks) == (
        "a.png",
        "vision",
        50_000,
        "uploaded",
        (),
    )
    assert second.read(ONE, entry.id) == data
    assert [found.id for found in second.entries(ONE)] == [entry.id] and second.entries(OTHER) == ()
    assert second.unprocessed() == [(ONE.owner, "one", entry.id)]
    assert second.note(ONE, entry.id, "processed", None, "image", ["chunk"])
    noted = first.entry(ONE, entry.id)
    assert (noted.status, noted.kind, noted.chunks, noted.detail) == ("processed", "image", ("chunk",), None)
    assert first.unprocessed() == []
    assert second.delete(ONE, noted)
    for call in (first.entry, first.read):
        with pytest.raises(ServeError) as refused:
            call(ONE, entry.id)
        assert refused.value.status == 404
    assert not first.delete(ONE, noted) and not first.note(ONE, entry.id, "processed", None, "image", ["chunk"])


def test_the_same_bytes_are_one_file_with_what_was_made_of_it(opened: Open) -> None:
    first, second = opened(100), opened(100)
    id = first.add(ONE, b"x" * 60, "a", "user_data", None).id
    first.note(ONE, id, "processed", None, "image", ["chunk"])
    again = second.add(ONE, b"x" * 60, "b", "vision", 50.0)
    assert (again.id, again.name, again.status, again.chunks) == (id, "b", "processed", ("chunk",))
    assert again.expires is not None and again.expires - again.created == pytest.approx(50.0, abs=1e-3)
    kept = second.add(ONE, b"x" * 60, "c", "vision", 1.0, renew=False)
    assert (kept.name, kept.expires) == ("b", again.expires)
    assert second.add(ONE, b"x" * 60, "d", "vision", None).expires is None
    assert second.add(OTHER, b"x" * 60, "e", "vision", None).id != id


def test_files_are_listed_with_the_newest_first(opened: Open) -> None:
    files = opened()
    for number in range(5):
        files.add(ONE, str(number).encode(), str(number), "user_data", None)
        time.sleep(0.01)
    assert [entry.name for entry in files.entries(ONE)] == ["4", "3", "2", "1", "0"]


def test_a_quota_holds_to_one_file_whoever_uploads_at_once(opened: Open) -> None:
    """Half of what is uploaded comes twice, to different servers; each file counts once."""
    servers = [opened(7 * 100 + 99) for _ in range(4)]

    def put(number: int) -> str | None:
        try:
            return servers[number % 4].add(ONE, b"%03d" % (number // 2) + b"x" * 97, "a", "user_data", None).id
        except ServeError as error:
            assert error.status == 413
            return None

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(put, range(60)))
    kept = {id for id in answers if id is not None}
    assert len(kept) == 7 == len(servers[0].entries(ONE))
    assert all(len(servers[1].read(ONE, id)) == 100 for id in kept)
    gone = servers[2].entries(ONE)[0]
    assert servers[2].delete(ONE, gone)
    assert [put(number) is not None for number in (1_000, 1_002)] == [True, False]
    own = Tenant("one", b"one", quota=10_000)
    assert servers[3].add(own, b"more", "a", "user_data", None), "a key's own quota counts before the server's"


@pytest.mark.slow
def test_uploads_and_deletions_at_once_leave_no_file_without_bytes(opened: Open) -> None:
    servers = [opened(10**6) for _ in range(4)]

    def turn(number: int) -> None:
        files, data = servers[number % 4], b"%d" % (number % 3)
        entry = None
        try:
            entry = files.add(ONE, data, "a", "user_data", None)
            assert files.read(ONE, entry.id) == data
        except ServeError as error:
            assert error.status == 404
        if entry is not None and number % 2:
            files.delete(ONE, entry)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(turn, range(90)))
    left = servers[0].entries(ONE)
    assert all(servers[1].read(ONE, entry.id) in (b"0", b"1", b"2") for entry in left)
    for entry in left:
        assert servers[2].delete(ONE, entry)
    # What is counted is what there is: a full quota fits again.
    assert opened(10).add(ONE, b"x" * 10, "a", "user_data", None)


def test_a_file_that_is_deleted_and_sent_again_while_it_is_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FileStore(tmp_path, 10**6)
    entry, read, turns = files.add(ONE, b"page", "a", "user_data", None), Path.read_bytes, 2

    def late(path: Path) -> bytes:
        nonlocal turns
        if turns:
            turns -= 1
            files.delete(ONE, entry)
            try:
                return read(path)
            finally:
                files.add(ONE, b"page", "a", "user_data", None)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", late)
    assert files.read(ONE, entry.id) == b"page" and turns == 0
    files.path(ONE, entry.id).unlink()
    with pytest.raises(ServeError, match="lost") as refused:
        files.read(ONE, entry.id)
    assert refused.value.status == 410
    files.delete(ONE, entry)
    with pytest.raises(ServeError) as refused:
        files.read(ONE, entry.id)
    assert refused.value.status == 404


def test_a_file_whose_chunks_cannot_be_forgotten_is_tried_again(opened: Open) -> None:
    def refuse(owner: str, tenant: str, chunks: object) -> None:
        raise StoreError("not now")

    files = opened(100, forget=refuse)
    id = files.add(ONE, b"a", "a", "user_data", 0.1).id
    time.sleep(0.2)
    files.expire()
    gone = list[str]()
    again = opened(100, forget=lambda owner, tenant, chunks: gone.append(tenant))
    with pytest.raises(ServeError):
        again.entry(ONE, id)
    again.expire()
    again.expire()
    assert gone == ["one"]


def test_chunks_that_were_begun_are_forgotten_unless_their_file_is_there(opened: Open) -> None:
    gone = list[tuple[str, list[str]]]()
    files = opened(forget=lambda owner, tenant, chunks: gone.append((tenant, list(chunks))))
    kept, lost, done = (files.add(ONE, data, "a", "user_data", None) for data in (b"kept", b"lost", b"done"))
    for entry in (kept, lost, done):
        files.begin(ONE, entry.id, [f"chunk of {entry.id}"])
    assert files.note(ONE, done.id, "processed", None, "image", [f"chunk of {done.id}"])
    assert not files.delete(ONE, done), "others were made of it meanwhile"
    assert files.delete(ONE, lost) and files.delete(ONE, files.entry(ONE, done.id))
    for _ in range(2):
        files.forget_begun()
    assert gone == [("one", [f"chunk of {lost.id}"])]


def test_ids_and_other_tenants_lead_nowhere(opened: Open) -> None:
    files = opened()
    mine = files.add(ONE, b"picture", "a", "user_data", None)
    for id in ("../../secret", "/etc/passwd", "", "\0", "file-" + "0" * 32, f"../{ONE.owner}/{mine.id}", mine.id):
        for call in (files.entry, files.read):
            with pytest.raises(ServeError) as refused:
                call(OTHER, id)
            assert refused.value.status == 404
    assert not files.delete(OTHER, mine) and files.read(ONE, mine.id) == b"picture"


DAMAGED = ["no json", "3", "[3]", "", "\x00"]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_entry_holds_up_nothing_but_itself(opened: Open, damage: str, caplog: Any) -> None:
    """Neither uploads, lists and times of others, nor those of the tenant whose it is."""
    gone: list[str] = []
    files = opened(forget=lambda owner, tenant, chunks: gone.extend(chunks))
    broken, ended = (
        files.add(ONE, b"broken", "a", "user_data", 0.05),
        files.add(OTHER, b"ended", "b", "user_data", 0.05),
    )
    lasting = files.add(ONE, b"lasting", "c", "user_data", None)
    for tenant, entry in ((ONE, broken), (OTHER, ended)):
        files.note(tenant, entry.id, "processed", None, "image", [f"chunk of {entry.name}"])
    files._table.change("UPDATE files SET chunks = ? WHERE id = ?", damage, broken.id)
    time.sleep(0.1)
    assert [entry.id for entry in files.entries(ONE)] == [lasting.id]
    assert files.add(ONE, b"more", "d", "user_data", None).id != files.add(OTHER, b"more", "d", "user_data", None).id
    files.expire()
    assert gone.count("chunk of b") == 1 and "chunk of a" not in gone
    assert [entry.name for entry in files.entries(OTHER)] == ["d"]
    assert broken.id in caplog.text, "it is told of"


def test_bytes_without_an_entry_are_removed_at_opening(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    kept = files.path(ONE, files.add(ONE, b"kept", "a", "user_data", None).id)
    left, arriving, late = (kept.with_name(name) for name in ("file-left", ".arriving.temporary", ".late.temporary"))
    for path in (left, arriving, late):
        path.write_bytes(b"x")
    os.utime(late, (1, 1))
    FileStore(tmp_path, 1_000)
    assert {path for path in kept.parent.iterdir()} == {kept, arriving}


def test_a_crash_while_a_file_is_added_leaves_nothing_after_the_next_opening(tmp_path: Path) -> None:
    """Whichever call is the last that reaches the disk; what was acknowledged is there."""
    for number in range(1, 40):
        folder = tmp_path / str(number)
        files = FileStore(folder, 1_000)
        first = files.add(ONE, b"first", "a", "user_data", None)
        with FailingCalls(number, lasting=True)() as failing, suppress(StoreError):
            files.add(ONE, b"second", "b", "user_data", None)
        files.close()
        for path in folder.rglob(".*.temporary"):
            os.utime(path, (1, 1))
        again = FileStore(folder, 1_000)
        there = {again.path(ONE, entry.id) for entry in again.entries(ONE)}
        assert there == {path for path in (folder / "files").rglob("*") if path.is_file()}
        assert again.read(ONE, first.id) == b"first"
        if not failing.failed:
            break
    else:
        pytest.fail("more calls than expected")
    assert number > 4


def test_files_expire_and_stay_within_a_quota(tmp_path: Path) -> None:
    now = [1_000.0]
    files = FileStore(tmp_path, 100, clock=lambda: now[0])
    first = files.add(ONE, b"a" * 60, "a", "user_data", 50.0)
    with pytest.raises(ServeError, match="quota"):
        files.add(ONE, b"b" * 60, "b", "user_data", None)
    assert files.add(OTHER, b"b" * 60, "b", "user_data", None).bytes == 60
    assert files.add(ONE, b"a" * 60, "again", "user_data", 50.0).id == first.id
    now[0] += 60
    with pytest.raises(ServeError):
        files.read(ONE, first.id)
    files.add(ONE, b"b" * 60, "b", "user_data", None)
    assert [entry.name for entry in files.entries(ONE)] == ["b"]
    assert sum(path.is_file() for path in (tmp_path / "files").rglob("*")) == 2


def test_a_file_outlasts_a_power_cut_once_it_is_acknowledged(tmp_path: Path) -> None:
    """Its bytes, its name and the names of all folders made for it, from the server's own on."""
    (tmp_path / "kept").mkdir()
    recorder = Recorder(tmp_path / "store", tmp_path / "kept")
    with recorder():
        files = FileStore(tmp_path / "store" / "serve", 1_000)
        made = [files.add(tenant, b"picture", "a", "user_data", None) for tenant in (ONE, OTHER)]
    PowerCut(recorder).leave(tmp_path / "left", len(recorder.changes), random.Random(1), lost=1.0)
    left = [path for path in (tmp_path / "left" / "serve" / "files").rglob("*") if path.is_file()]
    assert {path.name for path in left} == {entry.id for entry in made}
    assert [path.read_bytes() for path in left] == [b"picture"] * 2


def test_a_deleted_file_stays_deleted_after_a_power_cut(tmp_path: Path) -> None:
    """Whether its owner deleted it, its time was over or the quota refused it; until then it can be deleted again."""
    (tmp_path / "kept").mkdir()
    recorder, now = Recorder(tmp_path / "store", tmp_path / "kept"), [1_000.0]
    with recorder():
        files = FileStore(tmp_path / "store" / "serve", 10, clock=lambda: now[0])
        deleted = files.add(ONE, b"deleted", "a", "user_data", None)
        assert files.delete(ONE, deleted)
        files.add(OTHER, b"expired", "b", "user_data", 50.0)
        with pytest.raises(ServeError, match="quota"):
            files.add(ONE, b"beyond the quota", "c", "user_data", None)
        now[0] += 60
        files.expire()
    cuts = PowerCut(recorder)
    for seed in range(20):
        cuts.leave(tmp_path / "left", len(recorder.changes), random.Random(seed), lost=(1.0, 0.5)[seed % 2])
        assert [path for path in (tmp_path / "left" / "serve" / "files").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("number", [4, 5, 6], ids=["unlink", "open", "fsync"])
def test_a_deletion_that_fails_can_be_made_again(tmp_path: Path, number: int) -> None:
    now, gone = [1_000.0], list[str]()
    files = FileStore(tmp_path, 1_000, lambda: now[0], lambda owner, tenant, chunks: gone.append(tenant))
    mine = files.add(ONE, b"mine", "a", "user_data", None)
    files.add(OTHER, b"theirs", "b", "user_data", 50.0)
    now[0] += 60
    with FailingCalls(number)(), pytest.raises(StoreError, match="cannot be deleted"):
        files.delete(ONE, mine)
    assert files.entry(ONE, mine.id) == mine
    with FailingCalls(number)():
        assert files.entries(OTHER) == ()
    assert gone == ["other"]
    files.expire()
    assert files.delete(ONE, mine)
    assert (
        gone == ["other"] * 2
        and files.entries(ONE) == ()
        and not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    )


def test_a_file_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    (tmp_path / "files").write_bytes(b"in the way")
    with pytest.raises(StoreError, match="cannot be kept"):
        files.add(ONE, b"picture", "a", "user_data", None)
    assert files.entries(ONE) == ()


def test_what_was_made_of_a_file_goes_with_its_time(tmp_path: Path) -> None:
    now, gone = [1_000.0], []
    files = FileStore(
        tmp_path, 1_000, lambda: now[0], lambda owner, tenant, chunks: gone.append((tenant, list(chunks)))
    )
    ids = [files.add(ONE, data, "a", "user_data", 50.0).id for data in (b"a", b"b")]
    for id in ids:
        files.note(ONE, id, "processed", None, "image", [f"chunk of {id}"])
    files.keep_until(ONE, [ids[1], "file-none"], 1_100.0)
    files.keep_until(OTHER, [ids[0]], 9_000.0)
    assert files.add(ONE, b"b", "renamed", "user_data", 1.0, renew=False).expires == 1_100.0
    now[0] += 60
    files.expire()
    assert gone == [("one", [f"chunk of {ids[0]}"])] and [entry.id for entry in files.entries(ONE)] == [ids[1]]


def test_what_an_older_version_kept_in_files_of_their_own_is_taken_over(tmp_path: Path) -> None:
    before = FileStore(tmp_path / "new", 1_000)
    kept = before.add(ONE, b"kept", "a", "user_data", None)
    before.close()
    (tmp_path / "new").rename(tmp_path / "old")
    with sqlite3.connect(tmp_path / "old" / "catalogue.sqlite") as rows:
        rows.execute("VACUUM INTO ?", (str(tmp_path / "old" / "files.sqlite"),))
    rows.close()
    for path in (tmp_path / "old").glob("catalogue.sqlite*"):
        path.unlink()
    files = FileStore(tmp_path / "old", 1_000)
    assert files.entries(ONE) == (kept,) and files.read(ONE, kept.id) == b"kept"
    assert not (tmp_path / "old" / "files.sqlite").exists()


def test_files_stay_as_long_as_a_damaged_catalogue_lies_beside_them(tmp_path: Path) -> None:
    files = FileStore(tmp_path, 1_000)
    path = files.path(ONE, files.add(ONE, b"kept", "a", "user_data", None).id)
    files.close()
    (tmp_path / "catalogue.sqlite").write_bytes(b"no catalogue" * 1_000)
    assert FileStore(tmp_path, 1_000).entries(ONE) == () and path.read_bytes() == b"kept"
    (tmp_path / "catalogue.sqlite.damaged").unlink()
    FileStore(tmp_path, 1_000)
    assert not path.exists()
