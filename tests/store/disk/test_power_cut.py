"""A power cut after any change of a file: nothing acknowledged is lost, nothing that was deleted comes back, and what
is served is what was written, with the catalogue as it was last committed or with none."""

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emblema.store.catalogue import Connection
from emblema.store.disk import DiskTier
from emblema.store.record import Terms
from tests.store.disk import writer
from tests.store.disk.crash import LARGE, SMALL, Piece, Report, check_store, replay
from tests.store.disk.filelayer import PowerCut, Recorder
from tests.store.disk.records import ALICE, Clock, id_of, piece_path, put, record
from tests.store.disk.writer import Writer

LEFT = ("missing", "empty", "garbage", "committed", "committed", "committed")
"""What is left of the catalogue: sqlite promises the last commit, and a disk promises nothing."""


class Commits:
    """The catalogue as each commit left it, and after how many changes of files that was."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.states: list[tuple[int, bytes]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Record until the block ends."""
        execute = Connection.execute

        def noted(own: Connection, statement: str, *given: Any) -> sqlite3.Cursor:
            done = execute(own, statement, *given)
            if statement == "COMMIT":
                self.states.append((len(self.recorder.changes), own.serialize()))
            return done

        with pytest.MonkeyPatch.context() as patch, self.recorder():
            patch.setattr(Connection, "execute", noted)
            yield

    def leave(self, folder: Path, changes: int) -> None:
        """Write the catalogue into a folder as it was after so many changes."""
        before = [data for at, data in self.states if at <= changes]
        if before and folder.exists():
            (folder / "catalogue.sqlite").write_bytes(before[-1])


class Written:
    """What a writer did to a store, and each line that it said at the change that it followed."""

    def __init__(self, folder: Path, seed: int, operations: int, capacity: int) -> None:
        self.root = folder / "disk" / "store"
        (folder / "kept").mkdir()
        self.root.parent.mkdir()
        self.recorder = Recorder(self.root, folder / "kept")
        self.commits = Commits(self.recorder)
        self.lines: list[tuple[int, dict[str, Any]]] = []
        with pytest.MonkeyPatch.context() as patch, self.commits():
            patch.setattr(writer, "_say", self._say)
            self._say({"do": "open"})
            self.tier = DiskTier(self.root, capacity)
            self._say({"done": True, "evicted": []})
            Writer(self.tier, random.Random(seed), f"power {seed}").run(operations)
        self.tier.close()

    def _say(self, line: dict[str, Any]) -> None:
        self.lines.append((len(self.recorder.changes), line))

    def said(self, changes: int) -> list[dict[str, Any]]:
        """What had been said when so many changes were made."""
        return [line for at, line in self.lines if at <= changes]


def _cut_everywhere(folder: Path, seed: int, operations: int, capacity: int, most: int) -> Counter[str]:
    """Cut the power after every change, or after `most` of them; return how often what was left of the catalogue."""
    written, chance = Written(folder, seed, operations, capacity), random.Random(seed)
    cuts, found = PowerCut(written.recorder), Counter[str]()
    numbers = range(1, len(written.recorder.changes) + 1)
    for number in numbers if len(numbers) <= most else sorted(chance.sample(numbers, most)):
        left, kind = folder / "left", chance.choice(LEFT)
        lost = chance.choice([0.0, 0.3, 0.7, 1.0])
        cuts.leave(left, number, chance, lost)
        if not left.exists():
            left.mkdir()
        match kind:
            case "empty":
                (left / "catalogue.sqlite").touch()
            case "garbage":
                (left / "catalogue.sqlite").write_bytes(chance.randbytes(9000))
            case "committed":
                written.commits.leave(left, number)
        said = written.said(number)
        known: dict[str, Piece] = {}
        evicted: dict[str, list[Piece]] = {}
        pending = replay(said, known, Report(seed), evicted)
        for piece in [*known.values(), *(each for several in evicted.values() for each in several)]:
            # The files do not say what is pinned.
            piece.pinned &= kind == "committed"
        try:
            check_store(left, known, [pending], Report(seed), evicted)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, cut after change {number}, {lost} lost, catalogue {kind}: {error}"
            ) from error
        found[kind] += 1
    assert set(found) == set(LEFT)
    return found


@pytest.mark.parametrize(
    "capacity", [pytest.param(LARGE, marks=pytest.mark.slow), SMALL // 6], ids=["room", "evicting"]
)
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, capacity: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    _cut_everywhere(tmp_path, seed, 20, capacity, 150)


@pytest.mark.nightly
def test_a_power_cut_after_each_of_many_changes(tmp_path: Path) -> None:
    for round in range(4):
        folder = tmp_path / str(round)
        folder.mkdir()
        seed = random.SystemRandom().randrange(2**32)
        _cut_everywhere(folder, seed, 80, LARGE if round % 2 else SMALL // 6, 1500)


@pytest.mark.slow
def test_a_pinned_patch_whose_deletion_was_not_durable_is_still_pinned(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    recorder = Recorder(tmp_path / "disk" / "store", tmp_path / "kept")
    recorder.root.parent.mkdir()
    commits = Commits(recorder)
    with commits():
        tier = DiskTier(recorder.root, LARGE)
        put(tier, "a")
        tier.write(record("patch", chunks=[id_of("a")]), Terms(pinned=True))
        begun = len(recorder.changes)
        tier.delete(id_of("a"), ALICE)
        tier.close()
    cuts, back = PowerCut(recorder), 0
    for number in range(begun, len(recorder.changes) + 1):
        for seed in range(20):
            cuts.leave(tmp_path / "left", number, random.Random(seed), 0.5)
            commits.leave(tmp_path / "left", number)
            again = DiskTier(tmp_path / "left", LARGE)
            entry = again.entry(id_of("patch"))
            assert entry is None or entry.terms.pinned, f"after change {number}, seed {seed}"
            back += entry is not None
            again.close()
    assert back > 20


@pytest.mark.parametrize("evicted", [True, False])
def test_no_patch_comes_back_whose_chunk_was_deleted(tmp_path: Path, evicted: bool) -> None:
    """Neither one that was evicted before, by this process or another, nor one that is deleted with its chunk."""
    (tmp_path / "kept").mkdir()
    recorder = Recorder(tmp_path / "disk" / "store", tmp_path / "kept")
    recorder.root.parent.mkdir()
    with recorder():
        tier, other = DiskTier(recorder.root, LARGE), DiskTier(recorder.root, LARGE)
        put(tier, "a", Terms(priority=9))
        tier.write(record("patch", chunks=[id_of("a")]), Terms())
        if evicted:
            other.evict(ALICE, 1)
            assert tier.entry(id_of("patch")) is None
        tier.delete(id_of("a"), ALICE)
        deleted = len(recorder.changes)
        other.close()
        tier.close()
    cuts, partly = PowerCut(recorder), 0
    for number in range(deleted - 8, deleted + 1):
        for seed in range(12):
            cuts.leave(tmp_path / "left", number, random.Random(seed), (0.5, 1.0)[seed % 2])
            left = {path.stem for path in (tmp_path / "left" / "pieces").glob("*/*.safetensors")}
            assert id_of("a") in left or id_of("patch") not in left, f"after change {number}, seed {seed}"
            assert number < deleted or not left
            partly += len(left) == 1
    assert partly > 5


def test_a_row_of_an_earlier_file_is_not_believed_where_inode_and_size_recur(tmp_path: Path) -> None:
    """A power cut takes the end of the index's log: the deletion, and the writing of another file in its inode."""
    for name, now, priority in (("store", 2000.0, 2), ("other", 3000.0, 1)):
        tier = DiskTier(tmp_path / name, LARGE, clock=Clock(now))
        put(tier, "a", Terms(priority=priority))
        tier.close()
    earlier, later = (piece_path(tmp_path / name, id_of("a")) for name in ("store", "other"))
    before, times = earlier.stat(), later.stat()
    with open(earlier, "r+b") as file:
        file.write(later.read_bytes())
    os.utime(earlier, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = earlier.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
    for added in (1, 0):
        again = DiskTier(tmp_path / "store", LARGE, clock=Clock(3000.0))
        entry = again.entry(id_of("a"))
        again.close()
        assert entry is not None and entry.terms.priority == 1
        assert again.report.added == added


def test_a_folder_that_was_just_made_is_there_after_a_power_cut(tmp_path: Path) -> None:
    """Its own name and the names of its folders are synced, not only what comes to lie in them."""
    written = Written(tmp_path, 1, 3, LARGE)
    acknowledged = next(at for at, line in written.lines if "done" in line and at)
    PowerCut(written.recorder).leave(tmp_path / "left", acknowledged, random.Random(1), lost=1.0)
    assert {"pieces", "temporary", "quarantine", "FORMAT"} <= set(os.listdir(tmp_path / "left"))
