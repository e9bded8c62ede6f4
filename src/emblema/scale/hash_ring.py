"""Consistent hashing: a key's replica stays the same while other replicas come and go (Karger et al., 1997)."""

from bisect import bisect
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import xxhash

Replica = TypeVar("Replica", bound=Hashable)
_POINTS = 64
"""Places of a replica on the ring; the share of keys then varies by an eighth."""


def hash_of(*parts: object) -> int:
    """Return a 64-bit hash of some values, the same in every process."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode())


class HashRing(Generic[Replica]):
    """Replicas on a ring of 64-bit hashes; the first after a key is the key's."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        points = sorted((hash_of(replica, number), replica) for replica in replicas for number in range(_POINTS))
        self._hashes, self._replicas = [hash for hash, _ in points], [replica for _, replica in points]

    def after(self, key: int) -> Iterator[Replica]:
        """Yield every replica once, in the order of the ring from a 64-bit key on."""
        start, seen = bisect(self._hashes, key), set[Replica]()
        for index in range(len(self._replicas)):
            replica = self._replicas[(start + index) % len(self._replicas)]
            if replica not in seen:
                seen.add(replica)
                yield replica
