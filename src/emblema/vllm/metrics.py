"""Counters of what was linked, for vLLM's own log and `/metrics`."""

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from emblema.vllm.desk import Counts

COUNTERS = {
    "linked_tokens": "Rows of media taken from the store in place of computing them.",
    "linked_bytes": "Bytes of KV written into pages for them.",
    "encodings": "Encoder outputs handed over in place of running the encoder.",
}


class LinkedStats(KVConnectorStats):
    """What was linked since the last time."""

    @classmethod
    def of(cls, counts: Counts) -> "LinkedStats":
        return cls({name: getattr(counts, name) for name in COUNTERS})

    def reset(self) -> None:
        self.data = dict.fromkeys(COUNTERS, 0)

    def aggregate(self, other: KVConnectorStats) -> "LinkedStats":
        return LinkedStats({name: self.data.get(name, 0) + other.data.get(name, 0) for name in COUNTERS})

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class LinkedCounters(KVConnectorPromMetrics):
    """`vllm:emblema_linked_tokens_total` and the others: an engine's end takes back what bears vLLM's name alone."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: dict[int, Any]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        made = {
            name: self._counter_cls(name=f"vllm:emblema_{name}", documentation=words, labelnames=labelnames)
            for name, words in COUNTERS.items()
        }
        self._counters = {
            (engine, name): counter.labels(*values)
            for name, counter in made.items()
            for engine, values in per_engine.items()
        }

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        for name in COUNTERS:
            self._counters[engine_idx, name].inc(transfer_stats_data.get(name, 0))
