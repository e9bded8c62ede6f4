"""Policies by one medium of a request: compared, and not offered to servers."""

from itertools import islice

from emblema.scale.hash_ring import hash_of
from emblema.scale.placement import (
    HashedRequest,
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


class FirstPicture(HashedRequest[Replica]):
    """The replica of the first picture, by consistent hashing."""

    def key(self, request: RoutedRequest) -> int | None:
        return request.digests[0] if request.digests else None


class MinHash(HashedRequest[Replica]):
    """The replica of the set's smallest hash (Broder, 1997), the next one where that is busy, then two choices."""

    def key(self, request: RoutedRequest) -> int | None:
        return min(map(hash_of, request.digests), default=None)

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        key = self.key(request)
        if key is None:
            return self.others.rank(request, load)
        homes = list(islice(self.ring.after(key), 2))
        calm = [replica for replica in homes if load(replica) <= BUSY]
        return calm or sorted([*homes[:1], *self.others.draw()], key=load)


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
