"""Which replica a request goes to, by what is known of media and load. Nothing here knows a network."""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import xxhash

Replica = TypeVar("Replica", bound=Hashable)
Load = Callable[[Replica], float]
"""Requests that a replica has been sent and has not answered, or waiting time in answers of an average request."""

DIGESTS = 1_000_000
"""Media that are remembered by default."""
LOAD_WEIGHT = 0.5
"""Share of a request's media that one request which waits is worth: two that wait outweigh all media."""
DRAWN = 2
"""Replicas that are drawn beside those that have a request's media."""
RANKED = 4
"""Replicas that are named for a request: where the first refuses, the next is asked."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router may know of a request.

    Attributes:
        digests: 64-bit digests of its media, each keyed by its tenant.
    """

    digests: tuple[int, ...] = ()


def hash_of(*parts: object) -> int:
    """Return a 64-bit hash of some values, the same in every process."""
    return xxhash.xxh3_64_intdigest(repr(parts).encode())


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


class SetAffinity(Generic[Replica]):
    """The replica that has the most of a request's media, less its load.

    A score is the share of the request's media that a replica was sent lately, minus `load_weight` for each request
    that it has not answered. So what many ask for comes to be on several replicas. Two replicas that are drawn compete
    too (Mitzenmacher, 2001): for a request without media the less loaded of them.

    Args:
        most: media that are remembered.
        load_weight: see above.
        seed: of the draws.
        each: media that a replica holds, where `places.bound` has not said; None for no bound.
    """

    def __init__(
        self, most: int = DIGESTS, load_weight: float = LOAD_WEIGHT, seed: int | None = None, each: int | None = None
    ) -> None:
        self.places = MediaPlaces[Replica](most, each=each)
        self._load_weight, self._random = load_weight, random.Random(seed)
        self._replicas: tuple[Replica, ...] = ()
        self._here: frozenset[Replica] = frozenset()

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Take the replicas that there are now."""
        here = frozenset(replicas)
        for gone in self._here - here:
            self.places.forget(gone)
        self._replicas, self._here = tuple(replicas), here

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        """Return some replicas, the best first; none only where there are none."""
        counts = dict.fromkeys(self._random.sample(self._replicas, min(DRAWN, len(self._replicas))), 0)
        for digest in request.digests:
            for replica in self.places.find(digest):
                counts[replica] = counts.get(replica, 0) + 1
        each, weight = max(1, len(request.digests)), self._load_weight
        # The draw's order decides between equals.
        return sorted(counts, key=lambda replica: weight * load(replica) - counts[replica] / each)[:RANKED]

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Note that a request was sent to a replica."""
        if replica in self._here:
            self.places.note(request.digests, replica)
