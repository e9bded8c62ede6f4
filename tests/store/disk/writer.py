"""A process that writes to a store until it is killed, saying what it is about to do and what it has done.

Every operation is a line of JSON on standard output before it begins, and one more once the tier has returned. Without
`--die-at` somebody else kills it; with it, it kills itself right before its n-th change to a file or to the catalogue.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emblema.store import catalogue
from emblema.store.disk import DiskTier
from emblema.store.disk.upkeep import collect
from emblema.store.record import Terms
from tests.store.disk.records import ALICE, BOB, piece_files, record

LARGEST_PIECE = 210_000
CALLS = ("rename", "replace", "unlink", "fsync", "ftruncate", "utime", "pwrite", "mkdir")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="writer")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--operations", type=int, default=10**9)
    parser.add_argument("--die-at", type=int)
    options = parser.parse_args()
    if "torch" in sys.modules:
        sys.exit("the writer has imported torch")
    if options.die_at is not None:
        _die_at(options.die_at)
    _say({"do": "open"})
    before = piece_files(options.folder)
    tier = DiskTier(options.folder, options.capacity)
    # A budget that is smaller than last time's is kept from the start.
    evicted = before.keys() - {entry.id for entry in tier.entries()}
    _say({"done": True, "evicted": sorted(evicted)})
    Writer(tier, random.Random(options.seed), f"{options.name} {options.seed}").run(options.operations)
    tier.close()


class Writer:
    def __init__(self, tier: DiskTier, random: random.Random, name: str) -> None:
        self.tier, self.random, self.name = tier, random, name

        self.made = 0

    def run(self, operations: int) -> None:
        kinds: list[Callable[[], None]] = [self.put] * 5 + [self.patch] * 3 + [self.overwrite] * 4 + [self.delete] * 3
        kinds += [self.pin, self.touch, self.evict, self.collect]
        for _ in range(operations):
            self.random.choice(kinds)()

    def put(self) -> None:
        self._write(record(self._name(), self._size(), self.random.choice([ALICE, ALICE, BOB])))

    def patch(self) -> None:
        chunks = [entry.id for entry in self.tier.entries(ALICE, "chunk")]
        if chunks:
            some = self.random.sample(chunks, min(len(chunks), self.random.randint(1, 3)))
            self._write(record(self._name(), self._size(), chunks=some))

    def overwrite(self) -> None:
        if entry := self._some():
            version = self.random.randrange(1, 10**6)
            self._write(record(None, self._size(), entry.owner, chunks=entry.chunks, version=version, id=entry.id))

    def delete(self) -> None:
        if entry := self._some():
            self._do({"do": "delete", "id": entry.id}, lambda: self.tier.delete(entry.id, entry.owner))

    def pin(self) -> None:
        if entry := self._some():
            pinned = not entry.terms.pinned
            if pinned and self.tier.bytes > self.tier.capacity_bytes - LARGEST_PIECE:
                return
            self._do({"do": "pin", "id": entry.id, "pinned": pinned}, lambda: self.tier.set_pin(entry.id, pinned))

    def touch(self) -> None:
        ids = [entry.id for entry in (self._some() for _ in range(20)) if entry]

        def flush() -> None:
            self.tier.touch(ids)
            self.tier.record_uses()

        self._do({"do": "touch"}, flush)

    def evict(self) -> None:
        bytes = self.random.randint(1, 30_000)
        self._do({"do": "evict", "bytes": bytes}, lambda: self.tier.evict(ALICE, bytes))

    def collect(self) -> None:
        self._do({"do": "gc"}, lambda: collect(self.tier))

    def _write(self, record: Any) -> None:
        header = record.header
        intent = {"do": "put", "id": header.id, "version": header.meta["version"], "owner": header.owner}
        terms = Terms(priority=self.random.randint(0, 2))
        intent |= {"chunks": header.chunks, "bytes": header.meta["bytes"] + 4096, "priority": terms.priority}
        self._do(intent, lambda: self.tier.write(record, terms))

    def _do(self, intent: dict[str, Any], act: Callable[[], object]) -> None:
        _say(intent)
        ids = {entry.id for entry in self.tier.entries()}
        act()
        gone = ids - {entry.id for entry in self.tier.entries()} - {intent.get("id")}
        evicted = [] if intent["do"] == "delete" else sorted(gone)
        _say({"done": True, "evicted": evicted})

    def _some(self) -> Any:
        entries = [entry for entry in self.tier.entries() if entry.owner in (ALICE, BOB)]
        return self.random.choice(entries) if entries else None

    def _name(self) -> str:
        self.made += 1
        return f"{self.name} {self.made}"

    def _size(self) -> int:
        return self.random.choice([100, 3000, 20_000, self.random.randint(1, 200_000)])


def _say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def _die_at(calls: int) -> None:
    """Kill this process right before its n-th change to a file or a statement to the catalogue, saying which it is."""
    left = [calls]

    def tick(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            _say({"dying": name})
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            tick(name)
            return real(*given, **named)

        setattr(os, name, call)

    for name in CALLS:
        dying(name)

    class Connection(catalogue.Connection):
        def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if not statement.startswith(("SELECT", "PRAGMA")):
                tick(statement.split()[0].lower())
            return super().execute(statement, *given)

    catalogue.Connection = Connection  # type: ignore[misc]


if __name__ == "__main__":
    main()
