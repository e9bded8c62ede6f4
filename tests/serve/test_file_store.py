"""Files of several servers in one folder: they keep to the same."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emblema.errors import StoreError
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant

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


@pytest.mark.slow
def test_a_time_to_live_is_honoured_by_all(opened: Open) -> None:
    gone = list[tuple[str, str, list[str]]]()
    first, second = opened(100), opened(100, forget=lambda *given: gone.append((given[0], given[1], list(given[2]))))
    short, long = (first.add(ONE, data * 50, "a", "user_data", 0.5).id for data in (b"s", b"l"))
    first.note(ONE, short, "processed", None, "image", ["chunk"])
    second.keep_until(ONE, [long, "file-none"], time.time() + 60)
    second.keep_until(OTHER, [short], time.time() + 60)
    second.keep_until(ONE, [long], time.time() + 1)
    with pytest.raises(ServeError, match="quota"):
        second.add(ONE, b"x", "a", "user_data", None)
    time.sleep(0.6)
    for call in (first.entry, second.read):
        with pytest.raises(ServeError):
            call(ONE, short)
    assert [entry.id for entry in second.entries(ONE)] == [long]
    assert gone == [(ONE.owner, "one", ["chunk"])]
    assert second.add(ONE, b"y" * 50, "a", "user_data", None)


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
    with files._table.transaction() as connection:
        connection.execute("UPDATE files SET chunks = ? WHERE id = ?", (damage, broken.id))
    time.sleep(0.1)
    assert [entry.id for entry in files.entries(ONE)] == [lasting.id]
    assert files.add(ONE, b"more", "d", "user_data", None).id != files.add(OTHER, b"more", "d", "user_data", None).id
    files.expire()
    assert gone.count("chunk of b") == 1 and "chunk of a" not in gone
    assert [entry.name for entry in files.entries(OTHER)] == ["d"]
    assert broken.id in caplog.text, "it is told of"
