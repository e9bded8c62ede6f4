"""Kill a process that writes to a store, again and again, and look at what it left.

python -m tests.store.disk.crash --rounds 200 --json crash.json
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emblema.store.disk import DiskTier
from emblema.store.disk.upkeep import verify_pieces
from tests.store.disk.records import check, piece_files, remove_catalogue, temporary_files
from tests.store.disk.writer import LARGEST_PIECE

ROOT = Path(__file__).parents[3]
LARGE, SMALL = 2**40, 1_500_000


@dataclass
class Piece:
    """What the writer was told is there."""

    owner: str
    version: int
    chunks: tuple[str, ...]
    bytes: int
    priority: int
    pinned: bool = False


@dataclass
class Report:
    seed: int
    rounds: int = 0
    operations: int = 0
    pieces_checked: int = 0
    kills_by_phase: Counter[str] = field(default_factory=Counter)
    rebuilt_from_files: int = 0
    seconds: float = 0.0


class Line:
    """One writer: its process and everything it said."""

    def __init__(self, folder: Path, name: str, seed: int, capacity: int, die_at: int | None) -> None:
        command = [sys.executable, "-m", "tests.store.disk.writer", str(folder), "--name", name, "--seed", str(seed)]
        command += ["--capacity", str(capacity)] + ([] if die_at is None else ["--die-at", str(die_at)])
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, cwd=ROOT, env=environment)
        self.begun = threading.Event()
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # The last line may be cut.
            if line.endswith(b"\n"):
                self.said.append(json.loads(line))
            self.begun.set()

    def end(self, kill: bool) -> None:
        """Wait until it is dead, by its own hand or ours; it must not have died of anything else."""
        if kill:
            self.process.send_signal(signal.SIGKILL)
        code = self.process.wait(60)
        self._reader.join()
        self.errors.seek(0)
        assert code == -signal.SIGKILL, f"the writer ended by itself with {code}: {self.errors.read().decode()}"
        self.errors.close()


def run(folder: Path, rounds: int, seed: int) -> Report:
    """So many rounds on one folder.

    Raises:
        AssertionError: a promise was broken; it names the seed and the round.
    """
    chance = random.Random(seed)
    report = Report(seed)
    known: dict[str, Piece] = {}
    started = time.perf_counter()
    for number in range(rounds):
        try:
            _round(folder, number, chance, known, report)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, round {number}: {error}") from error
    report.seconds = round(time.perf_counter() - started, 1)
    return report


def _round(folder: Path, number: int, chance: random.Random, known: dict[str, Piece], report: Report) -> None:
    capacity = chance.choice([LARGE, SMALL])
    alone = capacity == SMALL or chance.random() < 0.7
    by_itself = alone and chance.random() < 0.5
    die_at = chance.randint(1, 600) if by_itself else None
    if alone:
        writers = [Line(folder, "one", chance.randrange(2**32), capacity, die_at)]
        writers[0].begun.wait(60)
        if not by_itself:
            time.sleep(chance.random() ** 2 * 0.8)
        writers[0].end(kill=not by_itself)
    else:
        writers = [Line(folder, name, chance.randrange(2**32), capacity, None) for name in ("left", "right")]
        for writer in writers:
            writer.begun.wait(60)
            time.sleep(chance.random() * 0.4)
        for writer in writers:
            # The second goes on for a while after the first was killed.
            writer.end(kill=True)
            time.sleep(chance.random() * 0.2)
    pending = [replay(writer.said, known, report) for writer in writers]
    if chance.random() < 0.3:
        remove_catalogue(folder)
        report.rebuilt_from_files += 1
        # The files do not say what is pinned.
        for piece in known.values():
            piece.pinned = False
    if alone:
        check_store(folder, known, pending, report)
    else:
        # What the two did to each other's pieces has no order in what they said.
        known.clear()
        check_store(folder, None, pending, report)
        with_new_eyes = DiskTier(folder, LARGE)
        known.update(_observed(with_new_eyes))
        with_new_eyes.close()
    report.rounds += 1


def replay(
    said: list[dict[str, Any]], known: dict[str, Piece], report: Report, evicted: dict[str, list[Piece]] | None = None
) -> dict[str, Any]:
    """Bring `known` up to what was acknowledged; the operation that was under way, `{"do": "nothing"}` if none.

    Args:
        evicted: takes the pieces that were evicted since their id was last written or deleted.
    """
    intent: dict[str, Any] = {"do": "nothing"}
    dying = None
    for line in said:
        if "dying" in line:
            dying = line["dying"]
        elif "do" in line:
            intent = line
        else:
            report.operations += 1
            for id in line["evicted"]:
                if evicted is not None and id in known:
                    evicted.setdefault(id, []).append(known[id])
            _apply(intent, line["evicted"], known)
            if evicted is not None and intent["do"] in ("put", "delete"):
                evicted.pop(intent["id"], None)
            if evicted is not None and intent["do"] == "delete":
                # A deletion makes every eviction before it durable, a patch's above all.
                evicted.clear()
            intent = {"do": "nothing"}
    phase = intent["do"] if said else "start"
    if intent["do"] == "put" and intent["id"] in known:
        phase = "overwrite"
    report.kills_by_phase[phase + (f", before {dying}" if dying else "")] += 1
    return intent


def _apply(intent: dict[str, Any], evicted: list[str], known: dict[str, Piece]) -> None:
    for id in evicted:
        known.pop(id, None)
    match intent["do"]:
        case "put":
            known[intent["id"]] = _piece(intent)
        case "delete":
            known.pop(intent["id"], None)
            for id in [id for id, piece in known.items() if intent["id"] in piece.chunks]:
                del known[id]
        case "pin" if intent["id"] in known:
            known[intent["id"]].pinned = intent["pinned"]


def _piece(intent: dict[str, Any]) -> Piece:
    return Piece(intent["owner"], intent["version"], tuple(intent["chunks"]), intent["bytes"], intent["priority"])


def _observed(tier: DiskTier) -> dict[str, Piece]:
    found = {}
    for entry in tier.entries():
        version = check(tier.open(entry.id, entry.owner), entry.id)
        terms = entry.terms
        found[entry.id] = Piece(entry.owner, version, entry.chunks, entry.bytes, terms.priority, terms.pinned)
    return found


def check_store(
    folder: Path,
    known: dict[str, Piece] | None,
    pending: list[dict[str, Any]],
    report: Report,
    evicted: dict[str, list[Piece]] | None = None,
) -> None:
    """Open the store again: everything promised holds; then `known` is what is there.

    Args:
        evicted: pieces that may be back, as an eviction need not be durable.
    """
    tier = DiskTier(folder, LARGE)
    try:
        assert tier.report.skipped == (), f"skipped {tier.report.skipped}"
        assert temporary_files(folder) == [], "temporary files are left"
        files = piece_files(folder)
        entries = {entry.id: entry for entry in tier.entries()}
        assert {id: entry.bytes for id, entry in entries.items()} == files, "the catalogue and the files disagree"
        assert tier.bytes == sum(files.values()), f"{tier.bytes} bytes counted, {sum(files.values())} on disk"
        assert tier.report.restored == tier.count() == len(files)
        patches = {(chunk, id) for id, entry in entries.items() for chunk in entry.chunks}
        assert {(chunk, patch) for chunk, _ in patches for patch in tier.patches_of(chunk)} == patches
        assert verify_pieces(tier).damaged == ()
        there = _observed(tier)
        report.pieces_checked += len(there)
    finally:
        tier.close()
    with sqlite3.connect(folder / "catalogue.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    if known is not None:
        for id, pieces in (evicted or {}).items():
            if id not in known and id in there:
                known[id] = next((piece for piece in pieces if piece.version == there[id].version), pieces[-1])
        _compare(known, there, pending[0])
        known.clear()
        known.update(there)


def _compare(known: dict[str, Piece], there: dict[str, Piece], intent: dict[str, Any]) -> None:
    """What is there is what was acknowledged, but for what the operation under way may have done by then."""
    subject, kind = intent.get("id"), intent["do"]
    missing = known.keys() - there.keys()
    extra = there.keys() - known.keys()
    if kind == "delete":
        dependents = {id for id, piece in known.items() if subject in piece.chunks}
        assert missing <= dependents | {subject}, "a piece is gone that nobody deleted"
        assert subject not in missing or dependents <= missing, "a chunk was deleted before its patches"
    elif kind in ("put", "evict", "open"):
        assert subject not in missing, "a piece was lost while it was written again"
        gone = sum(known[id].bytes for id in missing)
        asked = intent.get("bytes", sum(piece.bytes for piece in known.values()) - SMALL)
        assert not missing or gone < asked + 2 * LARGEST_PIECE, "more was evicted than was asked"
        assert not any(known[id].pinned for id in missing), "a pinned piece was evicted"
    else:
        assert not missing, f"{len(missing)} acknowledged pieces are gone"
    assert extra <= ({subject} if kind == "put" else set()), "a piece is back, or half of one was served"
    for id, piece in there.items():
        expected = [known[id]] if id in known else []
        if id == subject and kind == "put":
            expected.append(_piece(intent))
        assert piece.version in {e.version for e in expected}, "not the version that was acknowledged"
        assert (piece.owner, piece.chunks) in {(e.owner, e.chunks) for e in expected}
        if id != subject:
            assert (piece.priority, piece.pinned) == (expected[0].priority, expected[0].pinned), "other terms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    parser.add_argument("--json", type=Path, help="where the report goes")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="emblema-crash-"))
    try:
        report = run(folder / "store", options.rounds, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(report.__dict__ | {"kills_by_phase": dict(report.kills_by_phase.most_common())}, indent=2)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
