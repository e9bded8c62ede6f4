"""What every remote tier can be told."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

from emblema.store.remote.calls import CallPolicy
from emblema.store.remote.keys import Keys
from emblema.store.remote.parts import check_part_bytes


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """What the remote tiers share. Raises StoreError where the prefix or the part's length is none.

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
        Keys(self.prefix)

    @property
    def keys(self) -> Keys:
        return Keys(self.prefix)


class RemoteKeywords(TypedDict, total=False):
    """The fields of RemoteOptions that a tier takes by keyword alone."""

    part_bytes: int
    group: int
    largest_bytes: int
    policy: CallPolicy
    clock: Callable[[], float]
