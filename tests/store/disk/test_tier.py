"""What is kept, what goes first, whose it is, and what outlasts the index."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store import format
from emblema.store.catalogue import Connection
from emblema.store.disk import DiskTier
from emblema.store.disk.entry import find_entry
from emblema.store.disk.upkeep import collect, verify_pieces
from emblema.store.files import write_whole
from emblema.store.record import SHARED, Terms
from tests.store.disk.records import (
    ALICE,
    BOB,
    MEBIBYTE,
    Clock,
    check,
    id_of,
    piece_files,
    piece_path,
    put,
    record,
    remove_catalogue,
    temporary_files,
    there,
)


def test_a_record_comes_back_as_it_was_after_a_restart(tier: DiskTier, tmp_path: Path) -> None:
    written = record("a", 3000)
    tier.write(written, Terms(priority=2, pinned=True, seconds=50.0, idle_seconds=20.0))
    before = tier.entry(id_of("a"))
    tier.close()
    tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock())
    assert tier.report.restored == 1 and tier.report.added == 0
    assert tier.entry(id_of("a")) == before
    reader = tier.open(id_of("a"), ALICE)
    assert reader is not None
    header = reader.header
    assert (header.meta, header.owner, header.created) == (written.header.meta, ALICE, 1000.0)
    check(reader, id_of("a"), 0)
    assert before is not None
    assert before.bytes == piece_path(tmp_path, id_of("a")).stat().st_size
    tier.close()


def test_a_restart_reads_no_header_after_uses_and_that_of_a_file_with_another_time(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, MEBIBYTE)
    for name in "abcdef":
        put(tier, name)
        tier.touch([id_of(name), id_of("a")])
        tier.record_uses()
    tier.close()
    found = []
    for _ in range(3):
        tier = DiskTier(tmp_path, MEBIBYTE)
        found.append(tier.report.added)
        tier.close()
        if len(found) == 1:
            os.utime(piece_path(tmp_path, id_of("b")), (2e9, 9e9))
    assert found == [0, 1, 0]


def test_the_catalogue_is_made_again_from_the_files_alone(tier: DiskTier, tmp_path: Path, clock: Clock) -> None:
    put(tier, "a", Terms(priority=-3, seconds=50.0, idle_seconds=20.0))
    tier.write(record("patch", chunks=[id_of("a"), id_of("b")]), Terms())
    put(tier, "c")
    tier.set_pin(id_of("c"), True)
    clock.now = 1005.0
    tier.touch([id_of("a")])
    tier.close()
    before = {entry.id: entry for entry in DiskTier(tmp_path, MEBIBYTE, clock=clock).entries()}
    assert before[id_of("a")].accessed == 1005.0
    assert before[id_of("c")].terms.pinned
    remove_catalogue(tmp_path)
    tier = DiskTier(tmp_path, MEBIBYTE, clock=clock)
    assert (tier.report.restored, tier.report.added) == (3, 3)
    # All but the pin and the last use.
    again = {entry.id: replace(entry, accessed=before[entry.id].accessed) for entry in tier.entries()}
    before[id_of("c")] = replace(before[id_of("c")], terms=Terms())
    assert again == before
    assert tier.patches_of(id_of("b")) == [id_of("patch")]
    tier.close()


def test_a_folder_of_an_earlier_version_is_taken_over(tier: DiskTier, tmp_path: Path) -> None:
    for name in "ab":
        put(tier, name, Terms(priority=2))
    tier.close()
    remove_catalogue(tmp_path)
    (tmp_path / "pinned").mkdir()
    for name in (id_of("a"), id_of("gone"), "notes.txt"):
        (tmp_path / "pinned" / name).touch()
    (tmp_path / "index.sqlite").write_bytes(b"an index")
    for _ in range(2):
        tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock())
        assert tier.report.skipped == () and not {"pinned", "index.sqlite"} & set(os.listdir(tmp_path))
        assert {entry.id: entry.terms for entry in tier.entries()} == {
            id_of("a"): Terms(priority=2, pinned=True), id_of("b"): Terms(priority=2),
        }  # fmt: skip
        tier.close()


def test_a_safetensors_reader_can_read_a_piece(tier: DiskTier, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    put(tier, "a", bytes=10)
    assert load_file(piece_path(tmp_path, id_of("a"))).keys() == {"first", "second"}


def test_an_owner_has_only_its_own(tier: DiskTier) -> None:
    put(tier, "a")
    tier.write(record("b", owner=BOB), Terms())
    tier.write(record("shared", owner=SHARED), Terms())
    assert tier.open(id_of("a"), BOB) is None
    assert tier.open(id_of("shared"), BOB) is None
    assert not tier.delete(id_of("a"), BOB)
    with pytest.raises(StoreError, match="another owner"):
        tier.write(record("a", owner=BOB), Terms())
    assert there(tier) == {"a", "b", "shared"}
    assert [entry.id for entry in tier.entries(BOB, "chunk")] == [id_of("b")]
    assert [entry.id for entry in tier.entries(SHARED)] == [id_of("shared")]
    assert tier.count(ALICE) == tier.count(ALICE, "chunk") == 1 and tier.count() == 3
    assert tier.bytes_of(ALICE) + tier.bytes_of(BOB) + tier.bytes_of(SHARED) == tier.bytes


def test_patches_go_with_any_of_their_chunks(tier: DiskTier) -> None:
    for name in "ab":
        put(tier, name)
    tier.write(record("c", chunks=[id_of("a"), id_of("b")]), Terms(pinned=True))
    tier.write(record("d", chunks=[id_of("a")]), Terms())
    assert set(tier.patches_of(id_of("a"))) == {id_of("c"), id_of("d")}
    assert tier.delete(id_of("b"), ALICE)
    assert there(tier) == {"a", "d"}
    assert tier.patches_of(id_of("a")) == [id_of("d")]
    assert tier.delete(id_of("d"), ALICE)
    assert there(tier) == {"a"}
    assert not tier.delete(id_of("d"), ALICE)


def test_patches_are_deleted_before_their_chunk(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between must not leave a patch of a chunk that is gone."""
    put(tier, "a")
    for name in "bcd":
        tier.write(record(name, chunks=[id_of("a")]), Terms())
    order: list[str] = []
    real = os.unlink

    def recording(path: str, *, dir_fd: int | None = None) -> None:
        order.append(str(path))
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", recording)
    tier.delete(id_of("a"), ALICE)
    pieces = [name for name in order if name.endswith(".safetensors")]
    assert len(pieces) == 4 and pieces[-1].startswith(id_of("a"))


def test_a_chunk_that_was_evicted_still_takes_its_patches_when_it_is_deleted(tier: DiskTier) -> None:
    put(tier, "a")
    tier.write(record("c", chunks=[id_of("a")]), Terms(priority=1))
    tier.write(record("d", owner=BOB, chunks=[id_of("a")]), Terms(priority=1))
    assert tier.evict(ALICE, 1) > 0
    assert there(tier) == {"c", "d"}
    assert tier.delete(id_of("a"), ALICE)
    assert there(tier) == {"d"}
    assert tier.delete(id_of("a"), SHARED)
    assert there(tier) == set()


def test_the_lowest_priority_goes_first_and_then_what_was_used_longest_ago(tier: DiskTier, clock: Clock) -> None:
    for name, priority in (("a", 0), ("b", 0), ("c", -1), ("d", 1), ("e", 0)):
        clock.now += 1
        put(tier, name, Terms(priority=priority), 100_000)
    clock.now += 1
    check(tier.open(id_of("a"), ALICE), id_of("a"))
    order = []
    for _ in range(5):
        before = there(tier)
        assert tier.evict(ALICE, 1) > 0
        order += before - there(tier)
    assert order == ["c", "b", "e", "a", "d"]


def test_the_budget_holds_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 50_000
    tier = DiskTier(tmp_path, budget)
    largest = 0
    real = os.fsync

    def measuring(descriptor: int) -> None:
        nonlocal largest
        files = [path for place in ("pieces", "temporary", "quarantine") for path in (tmp_path / place).rglob("*")]
        largest = max(largest, sum(path.stat().st_size for path in files if path.is_file()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", measuring)
    for number in range(40):
        tier.write(record(number, 1000 + 300 * number), Terms())
    assert budget // 2 < largest <= budget
    assert id_of(39) in piece_files(tmp_path) and id_of(0) not in piece_files(tmp_path)
    with pytest.raises(CapacityError, match="budget"):
        tier.write(record("large", budget), Terms())
    assert temporary_files(tmp_path) == []
    tier.close()
    # A smaller budget holds from the start.
    tier = DiskTier(tmp_path, 20_000)
    assert 0 < tier.bytes <= 20_000
    there(tier)
    tier.close()


def test_what_is_pinned_or_in_use_is_not_evicted(tmp_path: Path) -> None:
    used: set[str] = {id_of("b")}
    tier = DiskTier(tmp_path, 10_000, in_use=lambda: used)
    for name in "abc":
        put(tier, name, Terms(pinned=name == "a"), 1000)
    tier.write(record("d", 4500), Terms())
    assert there(tier) == {"a", "b", "d"}
    used.add(id_of("d"))
    with pytest.raises(StoreError, match="pinned or in use"):
        tier.write(record("e", 4500), Terms())
    assert there(tier) == {"a", "b", "d"}
    assert tier.evict(ALICE, 10**9) == 0
    assert tier.set_pin(id_of("a"), False) and not tier.set_pin(id_of("e"), True)
    used.clear()
    tier.write(record("e", 4500), Terms())
    assert there(tier) == {"d", "e"} or there(tier) == {"b", "e"} or there(tier) == {"e"}
    tier.close()


def test_a_quota_evicts_only_that_owners(tier: DiskTier) -> None:
    put(tier, "a")
    put(tier, "b")
    tier.write(record("c", owner=BOB), Terms(priority=-1))
    assert tier.evict(ALICE, tier.bytes_of(ALICE) + 1) > 0
    assert there(tier) == {"c"}


def test_a_damaged_piece_goes_to_quarantine_and_can_be_written_again(tier: DiskTier, tmp_path: Path) -> None:
    put(tier, "a", Terms(pinned=True))
    path = piece_path(tmp_path, id_of("a"))
    damaged = path.read_bytes()[:-1] + b"\0"
    path.write_bytes(damaged)
    reader = tier.open(id_of("a"), ALICE)
    assert reader is not None
    reader.read("first")
    with pytest.raises(LoadError, match="checksum"):
        reader.read("second")
    assert there(tier) == set() and tier.open(id_of("a"), ALICE) is None
    assert [file.read_bytes() for file in (tmp_path / "quarantine").iterdir()] == [damaged]
    put(tier, "a")
    # What an old reader finds says nothing about the new file.
    with pytest.raises(LoadError):
        reader.read("second")
    assert there(tier) == {"a"}
    assert tier.quarantine(id_of("a"), "a test") and not tier.quarantine(id_of("a"), "a test")
    report = collect(tier)
    assert report.quarantined == 1 and report.bytes > 0
    assert os.listdir(tmp_path / "quarantine") == []


def test_a_use_just_before_a_write_keeps_a_piece(tmp_path: Path) -> None:
    clock = Clock()
    tier = DiskTier(tmp_path, 45_000, clock=clock)
    for name in ("a", "b"):
        clock.now += 1
        put(tier, name, Terms(), 20_000)
    clock.now += 1
    check(tier.open(id_of("a"), ALICE), id_of("a"))
    clock.now += 1
    put(tier, "c", Terms(), 20_000)
    assert there(tier) == {"a", "c"}


def test_uses_count_at_once_and_are_recorded_together(tier: DiskTier, clock: Clock) -> None:
    put(tier, "a")
    made = clock.now

    def recorded() -> float:
        return tier.catalogue.read(lambda rows: find_entry(rows, id_of("a"))).accessed  # type: ignore[union-attr]

    clock.now += 1
    tier.touch([id_of("a")])
    entry = tier.entry(id_of("a"))
    assert recorded() == made and entry is not None and entry.accessed == clock.now
    tier.record_uses()
    assert recorded() == clock.now


def test_a_reader_outlives_its_piece(tier: DiskTier) -> None:
    put(tier, "a")
    reader = tier.open(id_of("a"), ALICE)
    tier.delete(id_of("a"), ALICE)
    check(reader, id_of("a"), 0)


def test_verify_reads_everything(tier: DiskTier, tmp_path: Path) -> None:
    for name in "abc":
        put(tier, name)
    path = piece_path(tmp_path, id_of("b"))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    piece_path(tmp_path, id_of("c")).unlink()
    seen: list[tuple[int, int]] = []
    report = verify_pieces(tier, lambda done, total: seen.append((done, total)), repair=False)
    assert report.checked == 2
    assert dict(report.damaged).keys() == {id_of("b"), id_of("c")}
    assert len(piece_files(tmp_path)) == 2
    assert seen[-1][0] < seen[-1][1] == tier.bytes
    report = verify_pieces(tier)
    assert [id for id, _ in report.damaged] == [id_of("b")] and report.scan is not None and report.scan.lost == 1
    assert there(tier) == {"a"}
    assert verify_pieces(tier).damaged == ()


def test_a_file_copied_in_by_hand_is_found_by_a_scan(tier: DiskTier, tmp_path: Path) -> None:
    path = piece_path(tmp_path, id_of("a"))
    path.parent.mkdir()
    write_whole(path, format.buffers(record("a")))
    assert tier.entry(id_of("a")) is None
    assert collect(tier).scan.added == 1
    check(tier.open(id_of("a"), ALICE), id_of("a"), 0)
    entry = tier.entry(id_of("a"))
    assert entry is not None and entry.terms == Terms()


def test_bad_arguments_are_refused(tier: DiskTier, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        tier.entry, lambda id: tier.open(id, ALICE), lambda id: tier.delete(id, ALICE), tier.patches_of,
        lambda id: tier.set_pin(id, True), lambda id: tier.quarantine(id, "a test"),
        lambda id: tier.write(record(None, id=id), Terms()),
    ]  # fmt: skip
    for id in ("", "../../../etc/passwd", "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "é" * 64):
        for call in calls:
            with pytest.raises(StoreError):
                call(id)
    assert there(tier) == set()
    tier.close()
    tier.close()
    with pytest.raises(StoreError, match="closed"):
        put(tier, "a")


def test_the_default_budget_counts_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 0, 10**6))  # type: ignore[attr-defined]
    tier = DiskTier(tmp_path)
    assert tier.capacity_bytes == 500_000
    tier.write(record("a", 100_000), Terms())
    held = tier.bytes
    tier.close()
    tier = DiskTier(tmp_path)
    assert tier.capacity_bytes == (10**6 + held) // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 2**50))  # type: ignore[attr-defined]
    assert DiskTier(tmp_path).capacity_bytes == 64 * 2**30


def test_reading_does_not_wait_for_a_write_under_way(tier: DiskTier) -> None:
    put(tier, "a")
    with tier.catalogue.change():
        import threading

        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(check(tier.open(id_of("a"), ALICE), id_of("a"))))
        thread.start()
        thread.join(10)
        assert found == [0]


@pytest.mark.parametrize("pieces", [1, 40])
def test_a_scan_finds_every_row_whose_file_is_gone_with_its_folder(tier: DiskTier, pieces: int) -> None:
    for number in range(pieces):
        put(tier, f"piece {number}")
    shutil.rmtree(tier.path / "pieces")
    (tier.path / "pieces").mkdir()
    assert tier.scan().lost == pieces
    assert not list(tier.entries()) and tier.bytes == 0


def test_the_shared_library_takes_an_id_from_a_tenant_and_no_tenant_one_from_it(tier: DiskTier, tmp_path: Path) -> None:
    """Its ids are known to all: whoever writes something under one would block it."""
    tier.write(record("a", owner=ALICE), Terms())
    tier.write(record("a", owner=SHARED, version=1), Terms())
    for owner in (ALICE, BOB):
        with pytest.raises(StoreError, match="another owner"):
            tier.write(record("a", owner=owner, version=2), Terms())
    check(tier.open(id_of("a"), SHARED), id_of("a"), 1)
    assert tier.bytes_of(ALICE) == 0 and len(piece_files(tmp_path)) == 1
    with pytest.raises(StoreError, match="another owner"):
        tier.write(record("b"), Terms()) or tier.write(record("b", owner=BOB), Terms())


def test_a_write_that_failed_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where its file was in its place already: neither now nor after a restart."""
    tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock())
    put(tier, "kept")
    execute = Connection.execute

    def failing(own: Connection, statement: str, *given: object) -> sqlite3.Cursor:
        if statement == "COMMIT" and not temporary_files(tmp_path):
            monkeypatch.setattr(Connection, "execute", execute)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return execute(own, statement, *given)

    for version, kept in ((0, None), (1, 0)):
        name = "new" if kept is None else "kept"
        monkeypatch.setattr(Connection, "execute", failing)
        with pytest.raises(StoreError, match="could not be written"):
            tier.write(record(name, version=version), Terms())
        # In an acknowledged file's place it stays.
        assert piece_path(tmp_path, id_of(name)).exists() == (kept is not None)
    put(tier, "other")
    assert tier.entry(id_of("new")) is None and tier.entry(id_of("kept")) is not None
    tier.close()
    tier = DiskTier(tmp_path, MEBIBYTE, clock=Clock())
    assert tier.entry(id_of("new")) is None and tier.open(id_of("new"), ALICE) is None
    tier.write(record("new"), Terms())
    check(tier.open(id_of("new"), ALICE), id_of("new"), 0)
    tier.close()
