"""What the remote tiers share: options, the keys of records, and until when a record is kept."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from emblema.errors import StoreError
from emblema.store.record import SHARED, Terms, check_id, is_id
from emblema.store.remote.calls import CallPolicy

_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}(/[A-Za-z0-9_.-]{1,128}){0,8}")
LAYOUT = "1"
FAR = 2.0**37
"""Unix time beyond the last date of calendars; later ends count as never."""


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """Keys of records, `<prefix>/1/<owner>/<id>`, and of the notes beside a chunk that name its patches.

    A patch over the shared library is its tenant's, and its writer cannot see whose each chunk is. So it is
    noted under its own owner, and its owner is noted with the shared chunk: a tenant's calls touch its own and the
    shared keys only, and deleting a shared chunk still finds the patches of all.
    """

    prefix: str

    def __post_init__(self) -> None:
        parts = self.prefix.split("/")
        if not _PREFIX.fullmatch(self.prefix) or "." in parts or ".." in parts:
            raise StoreError(
                f"{self.prefix!r} cannot be a prefix of keys: use letters, digits, '_', '-', '.', with '/' between."
            )

    def record(self, owner: str, id: str) -> str:
        """Return the key of a chunk or patch.

        Raises:
            StoreError: the owner or the id is not one.
        """
        check_id(id)
        if owner != SHARED and not is_id(owner):
            raise StoreError(f"{owner[:80]!r} is not an owner: give 64 lower-case hexadecimal digits, or 'shared'.")
        return f"{self.prefix}/{LAYOUT}/{owner}/{id}"

    def patches(self, owner: str, chunk: str) -> str:
        """Return the key under which an owner's patches of a chunk are noted."""
        return f"{self.record(owner, chunk)}/patches"

    def owners(self, chunk: str) -> str:
        """Return the key under which the owners of a shared chunk's patches are noted."""
        return f"{self.record(SHARED, chunk)}/owners"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Until when a record is kept.

    Attributes:
        expires: Unix time in seconds; None never.
        idle: seconds after its last use; None never.
    """

    expires: float | None = None
    idle: float | None = None

    @classmethod
    def of(cls, created: float, terms: Terms) -> "Expiry":
        expires = None if terms.seconds is None else created + terms.seconds
        idle = terms.idle_seconds
        return cls(
            expires if expires is not None and expires < FAR else None,
            idle if idle is not None and idle < FAR else None,
        )

    def within(self, ends: Sequence[float]) -> "Expiry":
        """Return the terms that end at the earliest of these Unix times at the latest."""
        return Expiry(min([*ends, *([] if self.expires is None else [self.expires])], default=None), self.idle)

    def until(self, used: float) -> float | None:
        """Return when a record last used at a time expires, Unix time; None never."""
        ends = [self.expires] if self.expires is not None else []
        ends += [used + self.idle] if self.idle is not None else []
        # Later ends count as never.
        return min((end for end in ends if end < FAR), default=None)

    def expired(self, now: float) -> bool:
        """Return whether its time is up, whenever it was last used."""
        return self.expires is not None and self.expires <= now


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options that the remote tiers share. Raises StoreError for an invalid prefix or length of parts.

    Attributes:
        prefix: of every key.
        part_bytes: Redis keeps a record in parts of so many bytes; S3 reads so many first, before it is known what
            will be read.
        group: how many parts are read or written at a time.
        largest_bytes: of a record; S3 takes no more than 5 GB at once.
        policy: time-outs, retries and breaker.
        clock: Unix time in seconds.
    """

    prefix: str = "emblema"
    part_bytes: int = 4 * 2**20
    group: int = 4
    largest_bytes: int = 4 * 2**30
    policy: CallPolicy = field(default_factory=CallPolicy)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        check_part_bytes(self.part_bytes)
        RemoteKeys(self.prefix)

    @property
    def keys(self) -> RemoteKeys:
        return RemoteKeys(self.prefix)


class RemoteKeywords(TypedDict, total=False):
    """The fields of RemoteOptions that a tier takes by keyword alone."""

    part_bytes: int
    group: int
    largest_bytes: int
    policy: CallPolicy
    clock: Callable[[], float]


def check_part_bytes(part_bytes: int) -> int:
    if not 4096 <= part_bytes <= 256 * 2**20:
        raise StoreError(f"Parts of {part_bytes} bytes are refused: give 4096 to 268435456, 4194304 is usual.")
    return part_bytes
