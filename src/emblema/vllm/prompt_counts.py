"""What is told of prompts and of the store while a server runs: from the scheduler and the worker to its metrics."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from emblema.errors import StoreError
from emblema.served.request_plan import RequestPlan
from emblema.store import Store
from emblema.store.statistics import CounterName
from emblema.vllm.prompt_rows import GivenRows

_log = logging.getLogger(__name__)
COUNTERS = {
    "linked_tokens": "Rows of media taken from the store in place of computing them.",
    "linked_bytes": "Bytes of KV written into pages for them.",
    "extra_tokens": "Rows computed beside prompts' own: media prefilled alone, and questions read a second time.",
    "encodings": "Encoder outputs handed over in place of running the encoder.",
    "dropped": "Chunks and prompts whose rows were not kept, as too many prompts or bytes of rows waited to be stored.",
    "fallbacks": "Prompts not linked as asked.",
}
LABELLED = {
    "queries": ("lane", "Prompts linked, by lane."),
    "hits": ("lane", "Prompts of which rows were taken, by lane."),
    "prompt_rows": ("source", "Rows of prompts, by where from."),
    "store_events": ("event", "What the store has done."),
    "missed_rows": ("reason", "Rows of media of which none was taken, by why."),
}
BYTES = "store_bytes"
HELD = {"store_bytes": ("tier", "Bytes kept, by tier.")}
"""What is so now, with its label."""
_LOOKING_SHARE = 0.01
"""Share of the time in which a store is looked at."""
AWAY_SECONDS = 10.0
"""How long a store that could not be looked at is left alone."""
TIERS = ("device", "host", "disk")
_LANES = 64


class PromptCounts:
    """Counts prompts as they end, beside the scheduler."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, plan: RequestPlan | None, report: Mapping[str, Any] | None) -> None:
        """Count a prompt by its plan, None for one without media or computed plainly, and what its reply reports."""
        lane = "plain" if report is None else str(report["strategy"])
        self._counts[f"queries {lane}"] += 1
        self._counts[f"hits {lane}"] += plan is not None and plan.linked > 0
        self._counts["fallbacks"] += plan is not None and plan.remark is not None
        for _, rows, reason, _ in () if report is None else report["misses"]:
            self._counts[f"missed_rows {reason}"] += rows

    def note_rows(self, given: GivenRows) -> None:
        """Count the rows of a prompt that vLLM counts as given from outside; it counts the others."""
        self._counts["prompt_rows prefix"] += given.other
        self._counts["prompt_rows patched"] += given.patched
        self._counts["prompt_rows taken"] += given.linked - given.patched

    def take(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: count for name, count in counts.items() if count}


class StoreMeter:
    """Tells what a store has done since it was last asked, and what it holds.

    Args:
        store: is looked at in a small share of the time.
        bytes: whether to tell what it holds.
    """

    def __init__(self, store: Store, bytes: bool) -> None:
        self._store, self._bytes = store, bytes
        self._told: dict[str, int] = dict.fromkeys(get_args(CounterName), 0)
        self._next = 0.0

    def take(self) -> dict[str, int]:
        """Return events since the last call and bytes now, by the names of `LinkedStats`; empty soon after."""
        began = time.monotonic()
        if began < self._next:
            return {}
        try:
            statistics = self._store.statistics
        except StoreError as error:
            # The engine's own thread asks: a folder that is away may not end the server.
            _log.warning("emblema: the store cannot be counted: %s", error)
            self._next = began + AWAY_SECONDS
            return {}
        done = {event: getattr(statistics, event) for event in self._told}
        told = {f"store_events {event}": count - self._told[event] for event, count in done.items()}
        self._told = done
        if self._bytes:
            told |= {f"{BYTES} {tier}": getattr(statistics, f"{tier}_bytes") for tier in TIERS}
        self._next = began + (time.monotonic() - began) / _LOOKING_SHARE
        return told


class LinkedStats(KVConnectorStats):
    """What was done since the last report.

    By the names of `COUNTERS`; those of `LABELLED` and `HELD` with their label's value after a space.
    """

    def reset(self) -> None:
        self.data = dict[str, Any]()

    def aggregate(self, other: KVConnectorStats) -> "LinkedStats":
        return LinkedStats(_summed((self.data, other.data)))

    def reduce(self) -> dict[str, int | float]:
        return {name: self.data.get(name, 0) for name in COUNTERS}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class LinkedCounters(KVConnectorPromMetrics):
    """`vllm:emblema_linked_tokens_total` and the others, named so that vLLM's engine unregisters them at its end."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: dict[int, Any]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._values = per_engine
        self._counters = {
            name: self._counter_cls(name=f"vllm:emblema_{name}", documentation=words, labelnames=labelnames)
            for name, words in COUNTERS.items()
        }
        self._labelled = {
            name: self._counter_cls(name=f"vllm:emblema_{name}", documentation=words, labelnames=[*labelnames, label])
            for name, (label, words) in LABELLED.items()
        }
        self._held = {
            name: self._gauge_cls(name=f"vllm:emblema_{name}", documentation=words, labelnames=[*labelnames, label])
            for name, (label, words) in HELD.items()
        }
        self._lanes: set[str] = set()
        known = {"prompt_rows": ("prefix", "taken", "patched"), "store_events": get_args(CounterName), BYTES: TIERS}
        names = [f"{name} {label}" for name, labels in known.items() for label in labels]
        for engine in per_engine:
            self.observe(dict.fromkeys((*COUNTERS, *names), 0), engine)

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        values = self._values[engine_idx]
        for written, count in transfer_stats_data.items():
            name, _, label = written.partition(" ")
            if not label:
                self._counters[name].labels(*values).inc(count)
            elif name in HELD:
                self._held[name].labels(*values, label).set(count)
            else:
                shown = self._lane(label) if LABELLED[name][0] == "lane" else label
                self._labelled[name].labels(*values, shown).inc(count)

    def _lane(self, lane: str) -> str:
        """Return a lane as a label. Clients spell strategies, so only the first `_LANES` have labels of their own."""
        if len(self._lanes) < _LANES:
            self._lanes.add(lane)
        return lane if lane in self._lanes else "other"


def joined(parts: Iterable[Mapping[str, float]]) -> LinkedStats | None:
    """Return the sum of counts as one report; None where there is nothing to report."""
    stats = LinkedStats(_summed(parts))
    return None if stats.is_empty() else stats


def _summed(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of counts; of what is so now, the last that was told."""
    told: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            told[name] = value if name.partition(" ")[0] in HELD else told.get(name, 0) + value
    return told
