"""What the remote tiers share: options and the keys of records."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

from emblema.errors import StoreError
from emblema.store.record import SHARED, check_id, is_id
from emblema.store.remote.calls import CallPolicy

_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}(/[A-Za-z0-9_.-]{1,128}){0,8}")
LAYOUT = "2"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options that the remote tiers share. Raises StoreError for an invalid prefix or length of parts.

    Attributes:
        prefix: of every key.
        part_bytes: that are read first, before it is known what will be read; reading forward, up to four times as
            many are asked for at once.
        largest_bytes: of a record; Redis takes half a GiB, S3 5 GB at once.
        policy: time-outs, retries and breaker.
        clock: Unix time in seconds.
    """

    prefix: str = "emblema"
    part_bytes: int = 4 * 2**20
    largest_bytes: int = 4 * 2**30
    policy: CallPolicy = field(default_factory=CallPolicy)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        if not 4096 <= self.part_bytes <= 256 * 2**20:
            raise StoreError(f"Parts of {self.part_bytes} bytes are refused: give 4096 to 268435456, 4194304 is usual.")
        if not _PREFIX.fullmatch(self.prefix) or {".", ".."} & set(self.prefix.split("/")):
            raise StoreError(
                f"{self.prefix!r} cannot be a prefix of keys: use letters, digits, '_', '-', '.', with '/' between."
            )


class RemoteKeywords(TypedDict, total=False):
    """The fields of RemoteOptions that a tier takes by keyword alone."""

    part_bytes: int
    largest_bytes: int
    policy: CallPolicy
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class RemoteKeys:
    """Keys of records, `<prefix>/2/<owner>/<id>`, and of the notes beside a chunk that name its patches.

    A patch over the shared library is its tenant's, and its writer cannot see whose each chunk is. So it is
    noted under its own owner, and its owner is noted with the shared chunk: a tenant's calls touch its own and the
    shared keys only, and deleting a shared chunk still finds the patches of all.
    """

    prefix: str

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
        return f"{self.record(owner, chunk)}.patches"

    def owners(self, chunk: str) -> str:
        """Return the key under which the owners of a shared chunk's patches are noted."""
        return f"{self.record(SHARED, chunk)}.owners"
