"""Policies by one medium of a request: compared, and not offered to servers."""

from collections.abc import Sequence
from itertools import islice
from typing import Generic

from emblema.scale.hash_ring import HashRing, hash_of
from emblema.scale.placement import (
    RANKED,
    Load,
    Replica,
    RoutedRequest,
    RoutingPolicy,
    SessionHash,
    SetAffinity,
    TwoChoices,
)

BUSY = 4.0
"""Answers that wait at a replica until `MinHash` goes on to the next."""


class FirstPicture(Generic[Replica]):
    """The replica of the first picture, by consistent hashing."""

    def __init__(self, seed: int | None = None) -> None:
        self._ring, self._others = HashRing[Replica](()), TwoChoices[Replica](seed)

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        self._ring = HashRing(replicas)
        self._others.set_replicas(replicas)

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        if not request.digests:
            return self._others.rank(request, load)
        return list(islice(self._ring.after(hash_of(request.digests[0])), RANKED))

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Remember nothing."""


class MinHash(Generic[Replica]):
    """The replica of the set's smallest hash (Broder, 1997), the next one where that is busy, then two choices."""

    def __init__(self, seed: int | None = None) -> None:
        self._ring, self._others = HashRing[Replica](()), TwoChoices[Replica](seed)

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        self._ring = HashRing(replicas)
        self._others.set_replicas(replicas)

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        if not request.digests:
            return self._others.rank(request, load)
        homes = list(islice(self._ring.after(min(map(hash_of, request.digests))), 2))
        calm = [replica for replica in homes if load(replica) <= BUSY]
        return calm or sorted([*homes[:1], *self._others.draw()], key=load)

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Remember nothing."""


def make_policies(seed: int, digests: int, each: int | None = None) -> dict[str, RoutingPolicy[int]]:
    """Return every policy that is compared, fresh, by name.

    Args:
        seed: of all that is drawn.
        digests: that set affinity remembers.
        each: pictures that a replica keeps, as replicas say it themselves.
    """
    return {
        "two choices": TwoChoices(seed),
        "session hash": SessionHash(seed),
        "first picture": FirstPicture(seed),
        "min-hash, bounded": MinHash(seed),
        "set affinity": SetAffinity(digests, seed=seed, each=each),
    }
