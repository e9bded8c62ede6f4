"""Slower tiers for tests: one that keeps files in a dictionary and notes every call, one that fails when told to."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from emblema.errors import LoadError, StoreError
from emblema.store import format
from emblema.store.disk import DiskTier
from emblema.store.disk.entry import with_terms
from emblema.store.record import SHARED, Array, Record, RecordHeader, RecordReader, Terms
from tests.store.corpus import open_bytes


class Clock:
    """Time as a test wants it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class RecordingTier:
    """A remote tier in this process. Files by owner and id; every call with the owner and id that it touched."""

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    headers: dict[tuple[str, str], RecordHeader] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    name: str = "recording"

    def open(self, id: str, owner: str) -> RecordReader | None:
        self.calls.append(("open", owner, id))
        data = self.files.get((owner, id))
        return None if data is None else open_bytes(data, id)

    def write(self, record: Record, terms: Terms) -> None:
        key = record.header.owner, record.header.id
        self.calls.append(("write", *key))
        record = replace(record, header=with_terms(record.header, terms, None, record.header.created))
        self.files[key] = b"".join(bytes(part) for part in format.buffers(record))
        self.headers[key] = record.header

    def quarantine(self, id: str, owner: str, reason: str) -> bool:
        return self.delete(id, owner)

    def delete(self, id: str, owner: str) -> bool:
        self.calls.append(("delete", owner, id))
        gone = [key for key, header in self.headers.items() if id in header.chunks and owner in (key[0], SHARED)] + [
            (owner, id)
        ]
        found = [self.files.pop(key, None) for key in gone]
        for key in gone:
            self.headers.pop(key, None)
        return any(data is not None for data in found)

    def close(self) -> None:
        self.calls.append(("close", "", ""))


@dataclass
class Faults:
    """What goes wrong: an error, a pause in seconds, or an event to wait for, for each kind of call."""

    open: Exception | threading.Event | float | None = None
    read: Exception | float | None = None
    write: Exception | float | None = None
    delete: Exception | float | None = None
    after: int = 0
    """Reads of a record that go well before `read` counts."""

    def meet(self, what: str) -> None:
        fault = getattr(self, what)
        if isinstance(fault, Exception):
            raise fault
        if isinstance(fault, threading.Event):
            assert fault.wait(60)
        elif fault is not None:
            time.sleep(fault)


class FaultyReader:
    """A reader whose reads fail when they are told to."""

    def __init__(self, reader: RecordReader, faults: Faults) -> None:
        self._reader, self._faults, self._reads = reader, faults, 0

    @property
    def header(self) -> RecordHeader:
        return self._reader.header

    def read(self, name: str) -> Array:
        self._reads += 1
        if self._reads > self._faults.after:
            self._faults.meet("read")
        return self._reader.read(name)

    def close(self) -> None:
        self._reader.close()


class FaultyDisk(DiskTier):
    """A real disk tier that fails when it is told to."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.faults = Faults()

    def open(self, id: str, owner: str) -> RecordReader | None:
        self.faults.meet("open")
        reader = super().open(id, owner)
        return None if reader is None else FaultyReader(reader, self.faults)

    def write(self, record: Record, terms: Terms) -> None:
        self.faults.meet("write")
        super().write(record, terms)

    def delete(self, id: str, owner: str) -> bool:
        self.faults.meet("delete")
        return super().delete(id, owner)


class FaultyTier(RecordingTier):
    """A recording tier that fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()

    def open(self, id: str, owner: str) -> RecordReader | None:
        self.faults.meet("open")
        reader = super().open(id, owner)
        return None if reader is None else FaultyReader(reader, self.faults)

    def write(self, record: Record, terms: Terms) -> None:
        self.faults.meet("write")
        super().write(record, terms)

    def delete(self, id: str, owner: str) -> bool:
        self.faults.meet("delete")
        return super().delete(id, owner)


class Gate:
    """Holds a call up until it is let through."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.open.wait(60)


FULL = StoreError("no space left on device")


def spoiled(id: str) -> LoadError:
    return LoadError(id, "its checksum differs")


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Fails where something does not come about in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)
