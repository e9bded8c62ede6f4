"""What a decision of the router takes, in time and memory, at many digests."""

import random
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from emblema.scale.placement import RoutedRequest, SetAffinity

PICTURES = 10
"""Pictures of a request."""


@dataclass(frozen=True, slots=True)
class RoutingTimes:
    """Decisions with a full table.

    Attributes:
        digests: that may be remembered.
        replicas: that are chosen among.
        kept: digests that are remembered after twice as many were shown.
        bytes: of memory for each of those, the digests included.
        rank, note: median microseconds to choose, and to note what was chosen.
        rank_p99, note_p99: of one request in a hundred.
    """

    digests: int
    replicas: int
    kept: int
    bytes: float
    rank: float
    rank_p99: float
    note: float
    note_p99: float


def time_routing(digests: int, replicas: int, seed: int, requests: int = 20_000) -> RoutingTimes:
    """Show a table twice as many digests as it holds, then time requests of pictures of which it holds half."""
    rng = random.Random(seed)
    placement: SetAffinity[int] = SetAffinity(digests, seed=seed)
    placement.set_replicas(range(replicas))
    recent: list[int] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2 * digests // PICTURES):
        shown = tuple(rng.getrandbits(64) for _ in range(PICTURES))
        placement.note(RoutedRequest(shown), rng.randrange(replicas))
        if number >= digests // PICTURES and len(recent) < 4 * requests:
            # Shared with the table: the list alone is beside it.
            recent.append(shown[number % PICTURES])
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    kept, loads = len(placement.places), [rng.uniform(0, 3) for _ in range(replicas)]
    times: list[tuple[float, float]] = []
    for _ in range(requests):
        pictures = [rng.choice(recent) if index % 2 else rng.getrandbits(64) for index in range(PICTURES)]
        request = RoutedRequest(tuple(pictures))
        began = time.perf_counter()
        chosen = placement.rank(request, loads.__getitem__)[0]
        middle = time.perf_counter()
        placement.note(request, chosen)
        times.append((middle - began, time.perf_counter() - middle))
    (rank, note), (rank_p99, note_p99) = np.percentile(np.array(times) * 1e6, [50, 99], axis=0).tolist()
    return RoutingTimes(digests, replicas, kept, held / max(1, kept), rank, rank_p99, note, note_p99)
