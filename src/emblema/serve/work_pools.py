"""The threads of a server that are not the model's, and what it tells of them.

There is one pool for each kind of work, none of which waits for another.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from emblema.media.decoder_pool import decoding_places
from emblema.serve.held_bytes import HeldBytes
from emblema.serve.upkeep import Upkeep
from emblema.work_pool import PoolSize, TenantTurns, WorkPool

NOBODY = ""
"""The tenant of work that is the server's own, or of a request whose key is not known yet."""


def _decoding(name: str) -> WorkPool:
    places = decoding_places()
    return WorkPool(name, PoolSize(places, places - 1))


@dataclass(frozen=True, slots=True)
class WorkPools:
    """What a server does beside its model.

    Attributes:
        keys: looks up keys.
        tables: reads and writes what is known of files, caches and collections, and files' bytes.
        downloads: fetches media.
        pictures: decodes pictures, data addresses, and what a file is.
        clips: decodes documents, videos and sound.
        inputs: scales what was decoded to what the encoder takes, a picture or page at a time.
        upkeep: deletes what has expired, and follows other servers.
        uploads: turns of uploads that are read behind their answers.
        caches: turns of caches that are made, each of which waits for its patches.
    """

    keys: WorkPool = field(default_factory=lambda: WorkPool("keys", PoolSize(4, 4)))
    tables: WorkPool = field(default_factory=lambda: WorkPool("tables", PoolSize(16, 8)))
    downloads: WorkPool = field(default_factory=lambda: WorkPool("downloads", PoolSize(16, 4)))
    pictures: WorkPool = field(default_factory=lambda: _decoding("pictures"))
    clips: WorkPool = field(default_factory=lambda: _decoding("clips"))
    inputs: WorkPool = field(default_factory=lambda: WorkPool("inputs", PoolSize(2, 1)))
    upkeep: WorkPool = field(default_factory=lambda: WorkPool("upkeep", PoolSize(2, 2)))
    uploads: TenantTurns = field(default_factory=lambda: TenantTurns("their reading", PoolSize(2, 1, 1_000_000)))
    caches: TenantTurns = field(default_factory=lambda: TenantTurns("their caches", PoolSize(2, 1)))

    @property
    def threads(self) -> tuple[WorkPool, ...]:
        """The pools of threads."""
        return (self.keys, self.tables, self.downloads, self.pictures, self.clips, self.inputs, self.upkeep)

    def close(self) -> None:
        """Begin nothing more."""
        for pool in self.threads:
            pool.close()


class PoolMetrics(Collector):
    """Gauges of a server's pools and of what requests hold, and counters of upkeep; read when they are asked for."""

    def __init__(self, pools: WorkPools, held: HeldBytes, upkeep: Upkeep) -> None:
        self._pools, self._held, self._upkeep = pools, held, upkeep

    def collect(self) -> Iterator[Metric]:
        taken = GaugeMetricFamily("emblema_pool_running", "Work beside the model, by pool.", labels=["pool"])
        waiting = GaugeMetricFamily("emblema_pool_waiting", "Work that waits, by pool.", labels=["pool"])
        for pool in self._pools.threads:
            taken.add_metric([pool.name], pool.turns.taken)
            waiting.add_metric([pool.name], pool.turns.waiting)
        yield from (taken, waiting)
        held = GaugeMetricFamily("emblema_held_bytes", "Bytes that requests hold, by what.", labels=["what"])
        held.add_metric(["decoded"], self._held.decoded.total)
        held.add_metric(["bodies"], self._held.bodies.total)
        yield held
        failures = CounterMetricFamily("emblema_upkeep_failures", "Upkeep that failed, by work.", labels=["work"])
        for work in sorted({"sweep", *self._upkeep.failures}):
            failures.add_metric([work], self._upkeep.failures[work])
        yield failures
