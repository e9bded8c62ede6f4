"""What is simulated: one setting at a time changed, under every policy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.place.costs import TierCosts
from benchmarks.place.policies import make_policies
from benchmarks.place.simulator import ClusterOptions, SimulatedCluster
from benchmarks.place.trace import TraceOptions, make_trace

DIGESTS = 1_000_000
"""Media that a simulated router remembers."""
MAIN = ("two choices", "session hash", "set affinity")


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and its traffic.

    Attributes:
        study: what is changed.
        value: what it is changed to; a number where lines are drawn over it.
    """

    study: str
    value: float
    cluster: ClusterOptions
    trace: TraceOptions
    policies: tuple[str, ...] = ()


BASE_CLUSTER = ClusterOptions(replicas=50, device=700, host=8_700)
BASE_TRACE = TraceOptions(chunks=100_000, requests=60_000)
SIZES = ((10_000, 2), (100_000, 10), (1_000_000, 100), (10_000_000, 1_000))
"""Chunks and replicas that grow together."""


def settings_of(studies: Sequence[str], scale: float = 1.0) -> Iterator[Setting]:
    """Yield settings of some studies; `scale` makes traces shorter."""
    trace = replace(BASE_TRACE, requests=max(400, round(BASE_TRACE.requests * scale)))
    base = Setting("", 0.0, BASE_CLUSTER, trace)

    def cluster(study: str, **changes: Any) -> Setting:
        (value,) = changes.values()
        return replace(base, study=study, value=float(value), cluster=replace(BASE_CLUSTER, **changes))

    made: dict[str, Callable[[], list[Setting]]] = {
        "load": lambda: [cluster("load", load=load) for load in (0.2, 0.5, 0.7, 0.8)],
        "skew": lambda: [
            replace(base, study="skew", value=skew, trace=replace(trace, skew=skew)) for skew in (0.0, 0.6, 0.9, 1.2)
        ],
        "churn": lambda: [
            replace(base, study="churn", value=churn, trace=replace(trace, churn=churn)) for churn in (0.0, 0.1, 0.3)
        ],
        "lost": lambda: [cluster("lost", lost=lost) for lost in (0.0, 0.1, 0.3)],
        "added": lambda: [cluster("added", added=added) for added in (0.0, 0.1, 0.5)],
        "shared-bandwidth": lambda: [cluster("shared-bandwidth", shared=shared) for shared in (0.5e9, 2e9, 5e9, 25e9)],
        "memory": lambda: [cluster("memory", device=device) for device in (100, 300, 700, 3_000)],
        # A trace has to show a cluster's pictures for its tiers to fill.
        "replicas": lambda: [
            Setting(
                "replicas",
                replicas,
                replace(BASE_CLUSTER, replicas=replicas),
                replace(trace, chunks=chunks, requests=max(400, min(400_000, round(scale * 4_000 * replicas)))),
                MAIN,
            )
            for chunks, replicas in SIZES
        ],
    }
    for study in studies:
        yield from made[study]()


STUDIES = ("load", "skew", "churn", "lost", "added", "shared-bandwidth", "memory", "replicas")


def simulate(setting: Setting, costs: TierCosts, seed: int) -> list[dict[str, Any]]:
    """Return the figures of every policy in a setting, on the same trace and arrivals."""
    trace, rows = make_trace(setting.trace, seed), []
    each = setting.cluster.device + setting.cluster.host
    for name, placement in make_policies(seed + 1, DIGESTS, each).items():
        if setting.policies and name not in setting.policies:
            continue
        found = asdict(SimulatedCluster(setting.cluster, costs, seed + 2).run(trace, placement))
        hits = found.pop("hits")
        where = {"study": setting.study, "value": setting.value, "costs": costs.name, "policy": name}
        sizes = {"replicas": setting.cluster.replicas, "chunks": setting.trace.chunks, "requests": len(trace)}
        rows.append({**where, **sizes, **hits, **found})
    return rows
