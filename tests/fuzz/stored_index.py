"""The catalogue of a folder, with any bytes and any values in it: every piece is served, and to its owner alone."""

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from emblema.store.disk import DiskTier
from emblema.store.record import Record, Terms
from tests.fuzz.targets import FuzzTarget
from tests.store.disk.records import ALICE, BOB, check, id_of, record

TABLES = ("pieces", "sources")
PLACE = struct.Struct("<HB")
# A fuzzer does not end by itself: what starts it gives a folder, and removes it.
MEMORY = None if "TMPDIR" in os.environ or not os.access("/dev/shm", os.W_OK) else "/dev/shm"


@cache
def home() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder that goes when the process ends; in memory where there is such a place."""
    return tempfile.TemporaryDirectory(prefix="emblema-fuzz-", dir=MEMORY)


@cache
def template() -> Path:
    """Return a folder with two chunks and a patch."""
    folder = Path(home().name) / "template"
    with closing(DiskTier(folder, 10**6)) as tier:
        for each in records().values():
            tier.write(each, Terms(priority=1, idle_seconds=1e9))
    return folder


@cache
def records() -> dict[str, Record]:
    made = [record("first", 300), record("second", 400, BOB), record("patch", 200, chunks=[id_of("first")])]
    return {each.header.id: each for each in made}


def open_index(data: bytes) -> None:
    """Open a folder whose index was changed: by bytes at places (first byte even), or by values in its tables."""
    folder = template().with_name("case")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template(), folder, copy_function=shutil.copy2)
    index = folder / "catalogue.sqlite"
    if data[:1] and data[0] % 2:
        with suppress(sqlite3.Error, UnicodeDecodeError):
            _change_values(index, data[1:])
    else:
        changed = bytearray(index.read_bytes())
        for start in range(1, len(data) - PLACE.size + 1, PLACE.size):
            place, value = PLACE.unpack_from(data, start)
            changed[place % len(changed)] = value
        index.write_bytes(changed)
    with closing(DiskTier(folder, 10**6)) as tier:
        for id, each in records().items():
            owner = each.header.owner
            check(tier.open(id, owner), id)
            assert tier.open(id, BOB if owner == ALICE else ALICE) is None
        assert {entry.id for entry in tier.entries()} == records().keys()
        assert (tier.count(), tier.count(BOB)) == (3, 1)
        tier.write(record("third", 100), Terms())
        tier.touch([id_of("second")])
        tier.record_uses()
        tier.expire()
        tier.delete(id_of("first"), ALICE)
        assert {entry.id for entry in tier.entries()} <= {id_of("second"), id_of("third")}


def _change_values(index: Path, data: bytes) -> None:
    """Set cells: a byte each for table, column, row and kind of value, then the value."""
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        while len(data) > 4:
            table = TABLES[data[0] % len(TABLES)]
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
            rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
            column, kind = columns[data[1] % len(columns)], data[3] % 5
            value: object = None
            size = 4
            if kind in (1, 2):
                size = 12
                (value,) = struct.unpack("<q" if kind == 1 else "<d", data[4:12].ljust(8, b"\0"))
            elif kind in (3, 4):
                size = 5 + data[4]
                text = data[5:size]
                value = text if kind == 3 else text.decode()
            if rows:
                where = " AND ".join(f"{key} IS ?" for key in keys)
                with suppress(sqlite3.IntegrityError):
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *rows[data[2] % len(rows)])
                    )
            data = data[size:]


def changes() -> Iterator[bytes]:
    yield b"\0"
    yield b"\0" + PLACE.pack(18, 9)
    yield b"\0" + b"".join(PLACE.pack(place, 255) for place in range(100, 120))
    for column in range(15):
        yield bytes([1, 0, column, column, 2]) + struct.pack("<d", 1e300)
        yield bytes([1, 0, column, column, 1]) + struct.pack("<q", -1)
        yield bytes([1, 0, column, 0, 3, 32]) + bytes(32)
    for column in range(2):
        yield bytes([1, 1, column, 0, 4, 3]) + b"abc"


TARGETS = {"index": FuzzTarget(open_index, changes, 512)}
