"""Which replicas have lately been sent which media: a bounded table, the least recently used out first."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Replica = TypeVar("Replica", bound=Hashable)


class MediaPlaces(Generic[Replica]):
    """Replicas by media digest. What it says is a guess: replicas evict without telling.

    Args:
        most: digests that are remembered.
        copies: replicas that are remembered for a digest, the latest.
    """

    def __init__(self, most: int, copies: int = 4) -> None:
        if most < 1 or copies < 1:
            raise ValueError(f"most={most} and copies={copies}: give 1 or more")
        self._most, self._copies = most, copies
        self._places: OrderedDict[int, tuple[Replica, ...]] = OrderedDict()
        # Most media are on one replica: those share one tuple.
        self._single: dict[Replica, tuple[Replica]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def find(self, digest: int) -> tuple[Replica, ...]:
        """Return the replicas that were sent a digest, the latest last; those that are gone too."""
        return self._places.get(digest, ())

    def note(self, digests: Iterable[int], replica: Replica) -> None:
        """Note that a replica was sent media."""
        single, places = self._single.setdefault(replica, (replica,)), self._places
        for digest in digests:
            known = places.get(digest)
            if known is None or known == single:
                places[digest] = single
            elif known[-1] != replica:
                others = tuple(other for other in known if other != replica)
                places[digest] = (*others, replica)[-self._copies :]
            places.move_to_end(digest)
        while len(places) > self._most:
            places.popitem(last=False)

    def forget(self, replica: Replica) -> None:
        """Forget the shared tuple of a replica that is gone; its places go as their digests do."""
        self._single.pop(replica, None)
