"""What a server tells Prometheus. No label names a tenant."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from emblema.engine.engine import Engine
from emblema.engine.scheduler import Scheduler
from emblema.session.replies import Reply
from emblema.store.statistics import CounterName

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LANES = 64


class Metrics:
    """Counters of replies; and gauges of the scheduler, store and policy, read when they are asked for."""

    def __init__(self, registry: CollectorRegistry, engine: Engine, scheduler: Scheduler) -> None:
        self._registry = registry
        self.queries = Counter("emblema_queries", "Prompts linked, by lane.", ["lane"], registry=registry)
        self.hits = Counter("emblema_hits", "Prompts of which rows were taken, by lane.", ["lane"], registry=registry)
        self._lanes: set[str] = set()
        self.rows = Counter("emblema_prompt_rows", "Rows of prompts, by where from.", ["source"], registry=registry)
        self.missed = Counter(
            "emblema_missed_rows", "Rows of media of which none was taken, by why.", ["reason"], registry=registry
        )
        self.tokens = Counter("emblema_completion_tokens", "Tokens made.", registry=registry)
        self.fallbacks = Counter("emblema_fallbacks", "Prompts not linked as asked.", registry=registry)
        self.first, self.each = (
            Histogram(f"emblema_time_{name}_seconds", said, buckets=_SECONDS, registry=registry)
            for name, said in (
                ("to_first_token", "From the call to the first token."),
                ("per_output_token", "Mean of a reply, after its first."),
            )
        )
        registry.register(_Gauges(engine, scheduler))

    def note(self, reply: Reply, seconds: float) -> None:
        """Count a reply that took so many seconds in all."""
        usage = reply.usage
        lane = self._label(usage.lane)
        self.queries.labels(lane).inc()
        self.hits.labels(lane).inc(usage.cached_tokens > 0)
        self.rows.labels("patched").inc(usage.patched_tokens)
        self.rows.labels("taken").inc(usage.cached_tokens - usage.patched_tokens)
        self.rows.labels("computed").inc(usage.computed_tokens)
        for miss in usage.misses:
            self.missed.labels(miss.reason).inc(miss.rows)
        self.tokens.inc(usage.completion_tokens)
        self.fallbacks.inc(usage.fallback is not None)
        self.first.observe(usage.ttft_seconds)
        if usage.completion_tokens > 1:
            self.each.observe(max(0.0, seconds - usage.ttft_seconds) / (usage.completion_tokens - 1))

    def _label(self, lane: str) -> str:
        """Return a lane as a label. Clients spell strategies, so only the first `_LANES` have labels of their own."""
        if len(self._lanes) < _LANES:
            self._lanes.add(lane)
        return lane if lane in self._lanes else "other"

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, engine: Engine, scheduler: Scheduler) -> None:
        self._engine, self._scheduler = engine, scheduler

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("emblema_requests_waiting", "Requests not begun.", self._scheduler.waiting)
        yield GaugeMetricFamily("emblema_replies_running", "Replies under way.", self._scheduler.running)
        statistics = self._engine.store.parent.statistics
        tiers = GaugeMetricFamily("emblema_store_bytes", "Bytes kept, by tier.", labels=["tier"])
        for tier in ("device", "host", "prefix", "disk"):
            tiers.add_metric([tier], getattr(statistics, f"{tier}_bytes"))
        yield tiers
        events = CounterMetricFamily("emblema_store_events", "What the store has done.", labels=["event"])
        for event in get_args(CounterName):
            events.add_metric([event], getattr(statistics, event))
        yield events
        divergence = GaugeMetricFamily(
            "emblema_canary_kl", "Mean divergence by lane, in nats.", labels=["kind", "lane"]
        )
        for report in self._engine.policy_runtime.lane_reports:
            divergence.add_metric([report.kind, report.lane], report.kl)
        yield divergence
