"""What a server of any engine tells of its work beside the model."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from emblema.serve.held_bytes import HeldBytes
from emblema.serve.upkeep import Upkeep
from emblema.serve.work_pools import WorkPools


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
