"""Which replicas have lately been sent which media: a bounded table, the least recently used out first."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Replica = TypeVar("Replica", bound=Hashable)


class MediaPlaces(Generic[Replica]):
    """Replicas by media digest, as far as each replica's memory goes. What it says is a guess.

    A replica that holds so many media keeps its latest; without that the table would come to believe that the replica
    which was asked most has everything.

    Args:
        most: digests that are remembered.
        copies: replicas that are remembered for a digest, the latest.
        each: media that a replica holds, where `bound` has not said; None for no bound.
    """

    def __init__(self, most: int, copies: int = 4, each: int | None = None) -> None:
        if most < 1 or copies < 1 or (each is not None and each < 1):
            raise ValueError(f"most={most}, copies={copies} and each={each}: give 1 or more")
        self._most, self._copies, self._each = most, copies, each
        self._places: OrderedDict[int, tuple[Replica, ...]] = OrderedDict()
        self._held: dict[Replica, OrderedDict[int, None]] = {}
        self._bounds: dict[Replica, int] = {}
        # Most media are on one replica: those share one tuple.
        self._single: dict[Replica, tuple[Replica]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def find(self, digest: int) -> tuple[Replica, ...]:
        """Return the replicas that hold a digest, the latest last."""
        return self._places.get(digest, ())

    def bound(self, replica: Replica, media: int) -> None:
        """Note how many media a replica holds."""
        self._bounds[replica] = max(1, media)

    def note(self, digests: Iterable[int], replica: Replica) -> None:
        """Note that a replica was sent media."""
        single, places = self._single.setdefault(replica, (replica,)), self._places
        held = self._held.setdefault(replica, OrderedDict())
        for digest in digests:
            known = places.get(digest)
            if known is None or known == single:
                places[digest] = single
            elif known[-1] != replica:
                kept = (*(other for other in known if other != replica), replica)
                for other in kept[: -self._copies]:
                    self._held[other].pop(digest, None)
                places[digest] = kept[-self._copies :]
            places.move_to_end(digest)
            held[digest] = None
            held.move_to_end(digest)
        bound = self._bounds.get(replica, self._each)
        while bound is not None and len(held) > bound:
            self._leave(held.popitem(last=False)[0], replica)
        while len(places) > self._most:
            digest, replicas = places.popitem(last=False)
            for other in replicas:
                self._held[other].pop(digest, None)

    def forget(self, replica: Replica) -> None:
        """Forget a replica that is gone."""
        for digest in self._held.pop(replica, ()):
            self._leave(digest, replica)
        self._single.pop(replica, None)
        self._bounds.pop(replica, None)

    def _leave(self, digest: int, replica: Replica) -> None:
        """Note that a replica does not hold a digest any more."""
        others = tuple(other for other in self._places[digest] if other != replica)
        if len(others) == 1:
            self._places[digest] = self._single.setdefault(others[0], (others[0],))
        elif others:
            self._places[digest] = others
        else:
            del self._places[digest]
