"""Which replica a request goes to, by what is known of media and load. Nothing here knows a network."""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import xxhash

from emblema.serve.ray.media_places import MediaPlaces

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
