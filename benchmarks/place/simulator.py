"""A cluster in simulated time: a queue and two tiers a replica, and one tier that all share."""

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.place.costs import TierCosts
from emblema.scale.placement import RoutedRequest, RoutingPolicy

DEVICE, HOST, SHARED, COMPUTED = "device", "host", "shared", "computed"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a cluster is like.

    Attributes:
        replicas: at the beginning.
        device, host: pictures that a replica's memory, and its own disk, hold.
        load: of the replicas, if pictures that nobody has shown before are computed, and of the others half are in
            memory and half come from the shared tier.
        link: bytes a second between a replica and the shared tier.
        shared: bytes a second of the shared tier for all replicas together.
        lost: share of replicas that are lost half way.
        added: share of replicas that are added half way.
        seconds_apart: of two requests; instead of `load`.
    """

    replicas: int
    device: int
    host: int
    load: float = 0.5
    link: float = 1.25e9
    shared: float = 25e9
    lost: float = 0.0
    added: float = 0.0
    seconds_apart: float | None = None


@dataclass(slots=True)
class Tier:
    """Pictures of one tier, the least recently used out first."""

    most: int
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def take(self, picture: int) -> bool:
        """Return whether a picture is here; it is, after this."""
        found = picture in self.held
        self.held[picture] = None
        self.held.move_to_end(picture)
        if len(self.held) > self.most:
            self.held.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the second half of the requests.

    Attributes:
        hits: share of pictures by the tier that had them.
        bytes: that the shared tier gave.
        p50, p99: seconds to the first token.
        mean: seconds of work a request.
        imbalance: work of the busiest replica over that of the average.
    """

    hits: dict[str, float]
    bytes: float
    p50: float
    p99: float
    mean: float
    imbalance: float


class SimulatedCluster:
    """Replicas that serve requests one after another, each in the order in which they came."""

    def __init__(self, options: ClusterOptions, costs: TierCosts, seed: int) -> None:
        self._options, self._costs, self._rng = options, costs, random.Random(seed)
        self._device = [Tier(options.device) for _ in range(options.replicas)]
        self._host = [Tier(options.host) for _ in range(options.replicas)]
        self._free = [0.0] * options.replicas
        self._work = [0.0] * options.replicas
        self._links = [0.0] * options.replicas
        self._known: set[int] = set()
        self._shared_free, self._now, self._answer = 0.0, 0.0, 1.0
        self._counts: dict[str, int] = dict.fromkeys((DEVICE, HOST, SHARED, COMPUTED), 0)
        # The shared tier's bytes have come over the link and are then read as from disk.
        self._seconds = {DEVICE: costs.device, HOST: costs.disk, SHARED: costs.disk, COMPUTED: costs.computed}

    def run(self, trace: Sequence[RoutedRequest], placement: RoutingPolicy[int], counted: int | None = None) -> Outcome:
        """Serve a trace; what comes before a request, half of it by default, fills the tiers and is not counted."""
        alive = list(range(self._options.replicas))
        placement.set_replicas(alive)
        half = len(trace) // 2 if counted is None else counted
        apart, times = self._seconds_apart(trace), []
        for number, request in enumerate(trace):
            self._now += self._rng.expovariate(1 / apart)
            if number == half:
                alive = self._change(alive)
                placement.set_replicas(alive)
                self._counts = dict.fromkeys(self._counts, 0)
                self._work = [0.0] * len(self._work)
            self._answer = apart * len(alive)
            replica = placement.rank(request, self._waiting)[0]
            placement.note(request, replica)
            times.append(self._serve(replica, request.digests))
        taken = np.array(times[half:])
        total = max(1, sum(self._counts.values()))
        work = np.array([self._work[replica] for replica in alive])
        return Outcome(
            hits={tier: count / total for tier, count in self._counts.items()},
            bytes=self._counts[SHARED] * float(self._costs.bytes),
            p50=float(np.percentile(taken, 50)),
            p99=float(np.percentile(taken, 99)),
            mean=float(work.sum() / max(1, len(taken))),
            imbalance=float(work.max() / work.mean()) if work.sum() else 1.0,
        )

    def _waiting(self, replica: int) -> float:
        """Return how many average requests a new one would wait for, if all replicas had the same to do."""
        return max(0.0, self._free[replica] - self._now) / self._answer

    def _seconds_apart(self, trace: Sequence[RoutedRequest]) -> float:
        options = self._options
        if options.seconds_apart is not None:
            return options.seconds_apart
        second = trace[len(trace) // 2 :]
        shown = {picture for request in trace[: len(trace) // 2] for picture in request.digests}
        fresh = {picture for request in second for picture in request.digests} - shown
        pictures = sum(len(request.digests) for request in second)
        again = (self._seconds[DEVICE] + self._seconds[SHARED]) / 2
        usual = (len(fresh) * self._seconds[COMPUTED] + (pictures - len(fresh)) * again) / max(1, len(second))
        return usual / (options.load * options.replicas)

    def _change(self, alive: list[int]) -> list[int]:
        """Lose and add replicas."""
        lost = round(self._options.lost * len(alive))
        added = round(self._options.added * len(alive))
        first = len(self._free)
        for _ in range(added):
            self._device.append(Tier(self._options.device))
            self._host.append(Tier(self._options.host))
            self._free.append(self._now)
            self._work.append(0.0)
            self._links.append(0.0)
        return [*alive[lost:], *range(first, first + added)]

    def _serve(self, replica: int, pictures: Sequence[int]) -> float:
        """Serve a request; return seconds to its first token. Bytes from the shared tier come while it waits."""
        arrived, work = self._now, 0.0
        there = arrived
        for picture in pictures:
            tier = self._find(replica, picture)
            self._counts[tier] += 1
            work += self._seconds[tier]
            if tier == SHARED:
                # All replicas stand in one line for the shared tier's bytes, each on a link of its own.
                self._shared_free = max(arrived, self._shared_free) + self._costs.bytes / self._options.shared
                self._links[replica] = max(arrived, self._links[replica]) + self._costs.bytes / self._options.link
                there = max(self._shared_free, self._links[replica])
        start = max(arrived, self._free[replica])
        self._free[replica] = max(start + work, there)
        self._work[replica] += work
        return self._free[replica] - arrived

    def _find(self, replica: int, picture: int) -> str:
        device, host = self._device[replica].take(picture), self._host[replica].take(picture)
        if device:
            return DEVICE
        if host:
            return HOST
        if picture in self._known:
            return SHARED
        self._known.add(picture)
        return COMPUTED
