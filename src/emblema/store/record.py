"""A stored piece as plain bytes: what goes into a file or over a wire. Nothing here needs torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from emblema.errors import StoreError

RecordKind = Literal["chunk", "patch"]

Name = tuple[str, str]
"""Owner and id: two owners' pieces never meet, even under one id."""

LARGEST_PRIORITY = 2**31
LONGEST = 1e300
"""Seconds of a term, at most; no sum with a moment overflows."""
_ID = re.compile(r"[0-9a-f]{64}")

SHARED = "shared"
"""The owner of what every tenant may read and the administrator writes."""


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor as bytes.

    Attributes:
        dtype: as safetensors spells it: `F32`, `F16`, `BF16`, `F8_E4M3`, `I8`, `U8`, `I64`, `BOOL`.
        shape: of the tensor.
        data: its contents in C order, little endian.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """What is known of a record before its tensors are read.

    Attributes:
        id: 64 hexadecimal digits.
        kind: chunk or patch.
        owner: digest of the tenant, 64 hexadecimal digits, or `shared`.
        model: fingerprint of the model that made it.
        chunks: ids of every chunk a patch was made from; empty for a chunk.
        created: Unix time in seconds.
        meta: what the codec needs to make the piece again; JSON values.
        sizes: bytes of each tensor as stored, by name, in the file's order.
    """

    id: str
    kind: RecordKind
    owner: str
    model: str
    chunks: tuple[str, ...]
    created: float
    meta: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Return the bytes of all tensors as stored."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class Record:
    """A piece ready to be written: its header and its tensors in the order in which they are read."""

    header: RecordHeader
    arrays: Mapping[str, Array]


Departure = Literal["evicted", "expired", "deleted"]
"""How a piece left."""


@dataclass(frozen=True, slots=True)
class Absence:
    """What this process knows of a piece that is not here.

    Attributes:
        departure: how it left; None where it never was here, or where that is not known.
        models: fingerprints of models that made some of its owner's chunks on disk.
    """

    departure: Departure | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a piece is kept.

    Attributes:
        priority: pieces of a lower priority are evicted first; 0 is usual.
        pinned: never evicted for room, only deleted or expired.
        seconds: it expires so long after it was created; None never.
        idle_seconds: it expires so long after it was last used; None never.
    """

    priority: int = 0
    pinned: bool = False
    seconds: float | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise StoreError where a term is out of range."""
        if type(self.priority) is not int or abs(self.priority) >= LARGEST_PRIORITY:
            raise StoreError(f"priority {self.priority!r} is out of range: give a whole number below 2**31")
        if type(self.pinned) is not bool:
            raise StoreError(f"pinned is {self.pinned!r}: give True or False")
        for name, seconds in (("seconds", self.seconds), ("idle_seconds", self.idle_seconds)):
            known = type(seconds) in (int, float) and 0 <= seconds <= LONGEST  # type: ignore[operator]
            if seconds is not None and not known:
                raise StoreError(f"{name}={seconds!r} is out of range: give seconds, 0 or more, or None")


def is_id(value: object) -> bool:
    """Return whether a value is 64 lower-case hexadecimal digits, as ids and the digests of owners are."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check_id(id: str) -> str:
    """Return the id itself.

    Raises:
        StoreError: it is not 64 lower-case hexadecimal digits, so it may not become a file's name or a key.
    """
    if not is_id(id):
        raise StoreError(f"{str(id)[:80]!r} is no id: give 64 lower-case hexadecimal digits")
    return id


class RecordReader(Protocol):
    """An open record: its header is known and well formed, its tensors are read one at a time."""

    @property
    def header(self) -> RecordHeader: ...

    def read(self, name: str) -> Array:
        """Return one tensor, verified.

        Raises:
            LoadError: it is cut short or its checksum differs.
        """

    def close(self) -> None: ...


class RecordTier(Protocol):
    """A tier that keeps records outlasting the process: disk, or remote."""

    def open(self, id: str, owner: str) -> RecordReader | None:
        """Return the record of an id, if it is here and its owner's.

        Raises:
            LoadError: it is here and cannot be trusted, or the tier does not answer.
        """

    def write(self, record: Record, terms: Terms) -> None:
        """Keep a record, its terms in its header for its other readers; durable when this returns.

        Raises:
            CapacityError: it is larger than the tier's budget.
            StoreError: it could not be written; nothing of it is left.
        """

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record, and for a chunk every patch made from it; whether anything was here.

        Raises:
            StoreError: the tier could not be reached, so that it may still be here.
        """

    def close(self) -> None: ...


class RemoteTier(RecordTier, Protocol):
    """A tier beyond this machine, where nothing can be set aside for inspection."""

    def quarantine(self, id: str, owner: str, reason: str) -> bool:
        """Delete a record alone, its patches stay, if it does not verify when it is read again; whether it went.

        Raises:
            StoreError: the tier does not answer.
        """
