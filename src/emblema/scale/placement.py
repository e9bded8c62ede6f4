"""Which replica a request goes to: policies over what is known of media and load. Nothing here knows a network."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from emblema.scale.hash_ring import HashRing, hash_of
from emblema.scale.media_places import MediaPlaces

Replica = TypeVar("Replica", bound=Hashable)
Load = Callable[[Replica], float]
"""Requests that a replica has been sent and has not answered, or waiting time in answers of an average request."""

DIGESTS = 1_000_000
"""Media that are remembered by default."""
LOAD_WEIGHT = 0.5
"""Share of a request's media that one request which waits is worth: two that wait outweigh all media."""
DRAWN = 2
"""Replicas beside those that have a request's media."""
RANKED = 4
"""Replicas that are named for a request: where the first refuses, the next is asked."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router may know of a request.

    Attributes:
        digests: 64-bit digests of its media, each keyed by its tenant.
        session: of a conversation, where the client names it.
    """

    digests: tuple[int, ...] = ()
    session: str | None = None


class RoutingPolicy(Protocol[Replica]):
    """A policy, with what it remembers."""

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Take the replicas that there are now."""

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        """Return some replicas, the best first; none only where there are none."""

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Note that a request was sent to a replica."""


class TwoChoices(Generic[Replica]):
    """The less loaded of two replicas that are drawn (Mitzenmacher, 2001)."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._replicas: Sequence[Replica] = ()

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        self._replicas = tuple(replicas)

    def draw(self, most: int = 2) -> list[Replica]:
        """Return different replicas, two or as many as are asked for; fewer where there are fewer."""
        return self._random.sample(self._replicas, min(most, len(self._replicas)))

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        return sorted(self.draw(), key=load)

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Remember nothing."""


class HashedRequest(ABC, Generic[Replica]):
    """The replica of what `key` says of a request, by consistent hashing; two choices for requests that say nothing."""

    def __init__(self, seed: int | None = None) -> None:
        self.ring, self.others = HashRing[Replica](()), TwoChoices[Replica](seed)

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        self.ring = HashRing(replicas)
        self.others.set_replicas(replicas)

    @abstractmethod
    def key(self, request: RoutedRequest) -> str | int | None:
        """Return what a request is hashed by; None where two choices decide."""

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        key = self.key(request)
        if key is None:
            return self.others.rank(request, load)
        return list(islice(self.ring.after(hash_of(key)), RANKED))

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        """Remember nothing."""


class SessionHash(HashedRequest[Replica]):
    """The replica of a conversation, by consistent hashing; two choices for requests that name none."""

    def key(self, request: RoutedRequest) -> str | None:
        return request.session


class SetAffinity(Generic[Replica]):
    """The replica that has the most of a request's media, less its load; two choices stand beside those.

    A score is the share of the request's media that a replica was sent lately, minus `load_weight` for each request
    that it has not answered. So what many ask for comes to be on several replicas.

    Args:
        most: media that are remembered.
        load_weight: see above.
        seed: of the two choices.
        each: media that a replica holds, where `places.bound` has not said; None for no bound.
    """

    def __init__(
        self, most: int = DIGESTS, load_weight: float = LOAD_WEIGHT, seed: int | None = None, each: int | None = None
    ) -> None:
        self.places = MediaPlaces[Replica](most, each=each)
        self._load_weight, self._others = load_weight, TwoChoices[Replica](seed)
        self._here: frozenset[Replica] = frozenset()

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        here = frozenset(replicas)
        for gone in self._here - here:
            self.places.forget(gone)
        self._here = here
        self._others.set_replicas(replicas)

    def rank(self, request: RoutedRequest, load: Load[Replica]) -> list[Replica]:
        counts = dict.fromkeys(self._others.draw(DRAWN), 0)
        for digest in request.digests:
            for replica in self.places.find(digest):
                if replica in self._here:
                    counts[replica] = counts.get(replica, 0) + 1
        each, weight = max(1, len(request.digests)), self._load_weight
        scored = [(weight * load(replica) - count / each, replica) for replica, count in counts.items()]
        # The draw's order decides between equals.
        scored.sort(key=lambda pair: pair[0])
        return [replica for _, replica in scored[:RANKED]]

    def note(self, request: RoutedRequest, replica: Replica) -> None:
        self.places.note(request.digests, replica)


POLICIES: dict[str, Callable[[], RoutingPolicy[str]]] = {
    "set-affinity": SetAffinity,
    "session-hash": SessionHash,
    "two-choices": TwoChoices,
}
"""Policies that a server may be told to use, by name."""
