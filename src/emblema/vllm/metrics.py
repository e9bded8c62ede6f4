"""vLLM's and the plugin's metrics under the names of the embedded engine's server, so that one dashboard shows both."""

from collections.abc import Iterable, Iterator
from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SAME = {
    "vllm:num_requests_waiting": "emblema_requests_waiting",
    "vllm:num_requests_running": "emblema_replies_running",
    "vllm:generation_tokens": "emblema_completion_tokens",
    "vllm:time_to_first_token_seconds": "emblema_time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds": "emblema_time_per_output_token_seconds",
    "vllm:emblema_queries": "emblema_queries",
    "vllm:emblema_hits": "emblema_hits",
    "vllm:emblema_prompt_rows": "emblema_prompt_rows",
    "vllm:emblema_fallbacks": "emblema_fallbacks",
    "vllm:emblema_missed_rows": "emblema_missed_rows",
    "vllm:emblema_store_events": "emblema_store_events",
    "vllm:emblema_store_bytes": "emblema_store_bytes",
}
"""Metrics that tell the same fact, by vLLM's name."""
_ENDS = ("_total", "_bucket", "_count", "_sum")
ROWS, SOURCES = "vllm:prompt_tokens_by_source", {"local_compute": "computed", "local_cache_hit": "prefix"}
"""vLLM's count of prompts' rows, and our names of its sources. Rows that the plugin gave are counted by the plugin."""


@cache
def share_names(registry: CollectorRegistry = REGISTRY) -> None:
    """Have a registry tell them too, once."""
    registry.register(SharedNames(registry))


class SharedNames(Collector):
    """Tells metrics of a registry a second time, under the names of the embedded engine's.

    Args:
        registry: of vLLM.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        asked = [name for known in (*SAME, ROWS) for name in (known, *(f"{known}{end}" for end in _ENDS))]
        found = {metric.name: metric for metric in self._registry.restricted_registry(asked).collect()}
        for name, shared in SAME.items():
            metric = found.get(name)
            if metric is None:
                continue
            samples = [sample._replace(name=sample.name.replace(name, shared, 1)) for sample in metric.samples]
            if shared == "emblema_prompt_rows" and ROWS in found:
                samples = _summed([*samples, *_rows(found[ROWS])])
            yield _metric(shared, metric, samples)


def _rows(metric: Metric) -> Iterator[Sample]:
    for sample in metric.samples:
        source = SOURCES.get(sample.labels.get("source", ""))
        if source is not None:
            name = sample.name.replace(ROWS, "emblema_prompt_rows", 1)
            yield sample._replace(name=name, labels={**sample.labels, "source": source})


def _summed(samples: Iterable[Sample]) -> list[Sample]:
    """Return samples of counts; the values of those with the same name and labels are added."""
    summed: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in samples:
        key = (sample.name, frozenset(sample.labels.items()))
        known = summed.get(key)
        if known is None:
            summed[key] = sample
        elif sample.name.endswith("_total"):
            summed[key] = known._replace(value=known.value + sample.value)
    return list(summed.values())


def _metric(name: str, like: Metric, samples: list[Sample]) -> Metric:
    made = Metric(name, like.documentation, like.type)
    made.samples = samples
    return made
