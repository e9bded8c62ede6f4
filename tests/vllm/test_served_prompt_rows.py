"""Every row of a prompt has one source: what vLLM and the plugin count adds up to the rows of all prompts."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import prometheus_client as prometheus
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry
from pytest import MonkeyPatch
from vllm.v1.metrics.stats import PrefillStats, PromptTokenStats

from emblema.served.request_plan import RequestPlan
from emblema.served.spans import CachedSpans
from emblema.served.staging import StagedRows
from emblema.vllm.metrics import SharedNames
from emblema.vllm.prompt_counts import LinkedCounters, PromptCounts
from emblema.vllm.prompt_rows import PromptRows

Fate = Literal["served", "aborted while it waits", "aborted before its first token", "preempted after it"]


@dataclass(frozen=True)
class Turn:
    """One time that a request is scheduled from its start.

    Attributes:
        ready: rows that vLLM's prefix cache has.
        other: rows that another connector gives after them, where ours gives none.
        fails: whether our load fails, so that all is looked up again.
    """

    ready: int
    other: int
    fails: bool


@dataclass(frozen=True)
class Drawn:
    """A request: its plan, None for text; and how often it is preempted before its first token, a turn each."""

    rows: int
    cached: CachedSpans | None
    turns: tuple[Turn, ...]
    fate: Fate


@st.composite
def requests(draw: st.DrawFn) -> Drawn:
    rows = draw(st.integers(2, 40))
    cached = None
    if draw(st.booleans()):
        edges = draw(st.lists(st.integers(0, rows), unique=True, max_size=6).map(sorted))
        spans = tuple(zip(edges[::2], edges[1::2], strict=False))
        cached = CachedSpans(spans, patched=tuple(span for span in spans if draw(st.booleans())))
    turn = st.integers(0, rows - 1).flatmap(
        lambda ready: st.builds(Turn, st.just(ready), st.integers(0, rows - 1 - ready), st.booleans())
    )
    turns = draw(st.lists(turn, min_size=1, max_size=3))
    fates = st.sampled_from(Fate.__args__)  # type: ignore[attr-defined]
    return Drawn(rows, cached, tuple(turns), draw(fates))


class Server:
    """Counts as vLLM's scheduler and the connector do."""

    def __init__(self) -> None:
        self.rows, self.counts, self.told = PromptRows(), PromptCounts(), PromptTokenStats()
        self.sent = 0

    def _look_up(self, request: Any, local: int, external: int) -> None:
        """As `Scheduler.schedule` does where nothing of a request is computed."""
        if request.prefill_stats and request.num_preemptions <= 0:
            request.prefill_stats.set(request.num_prompt_tokens, local, external)

    def _schedule(self, request: Any, plan: RequestPlan | None, turn: Turn) -> None:
        """Look a request up until it is scheduled."""
        loaded = None if plan is None else plan.cached.load(turn.ready, request.num_prompt_tokens)
        if loaded is not None and plan is not None:
            self._look_up(request, turn.ready, loaded.stop - turn.ready)
            self.rows.await_load(request)
            plan.linked, plan.patched = loaded.linked, plan.cached.patched_rows(loaded.taken)
            if not turn.fails:
                return
            plan.fail()
            self.rows.fail_load(request)
        self._look_up(request, turn.ready, turn.other)

    def answer(self, drawn: Drawn) -> None:
        plan: Any = None
        if drawn.cached is not None:
            nothing: Any = None
            plan = RequestPlan(nothing, nothing, nothing, cached=drawn.cached)
        request = SimpleNamespace(
            request_id="1", num_prompt_tokens=drawn.rows, num_preemptions=0, prefill_stats=PrefillStats()
        )
        for turn in drawn.turns:
            if plan is not None:
                plan.restart()
            self._schedule(request, plan, turn)
            if drawn.fate == "aborted while it waits":
                break
            self.rows.follow(request, plan)
            # The last turn ends with the first token, those before in a preemption.
            request.num_preemptions += turn is not drawn.turns[-1]
        if not drawn.fate.startswith("aborted"):
            self.told.update_from_output(request.prefill_stats)
            request.prefill_stats = None
            self.sent += drawn.rows
            self.rows.follow(request, plan)
        if drawn.fate.startswith("preempted"):
            request.num_preemptions += 1
            if plan is not None:
                plan.restart()
            self._schedule(request, plan, drawn.turns[0])
            self.rows.follow(request, plan)
        self.counts.note(plan, None)
        self.counts.note_rows(self.rows.end(request))

    def metrics(self) -> dict[str, float]:
        """What `/metrics` tells, by source."""
        registry = CollectorRegistry()
        registry.register(SharedNames(registry))
        types = {
            kind: partial(kind, registry=registry)
            for kind in (prometheus.Counter, prometheus.Gauge, prometheus.Histogram)
        }
        ours = LinkedCounters(SimpleNamespace(kv_transfer_config=None), types, ["model_name"], {0: ["m"]})
        theirs = prometheus.Counter("vllm:prompt_tokens_by_source", "p", ["model_name", "source"], registry=registry)
        for source in PromptTokenStats.ALL_SOURCES:
            theirs.labels("m", source).inc(self.told.get_by_source(source))
        # A counter takes no number below zero.
        ours.observe(self.counts.take())
        (metric,) = [metric for metric in registry.collect() if metric.name == "emblema_prompt_rows"]
        samples = [sample for sample in metric.samples if sample.name.endswith("_total")]
        told = {sample.labels["source"]: sample.value for sample in samples}
        assert len(samples) == len(told), "each source is told once"
        return told


@given(st.lists(requests(), max_size=8))
def test_rows_by_source_are_the_rows_of_all_prompts(drawn: list[Drawn]) -> None:
    server = Server()
    for request in drawn:
        server.answer(request)
    told = server.metrics()
    assert sum(told.values()) == server.sent == server.told.total
    assert told["computed"] == server.told.computed


def test_rows_are_counted_where_they_come_from() -> None:
    cached = CachedSpans(((2, 12), (12, 20)), patched=((12, 20),))
    for turns, told in (
        ([Turn(0, 0, False)], {"computed": 4, "prefix": 0, "taken": 10, "patched": 8}),
        ([Turn(6, 0, False)], {"computed": 2, "prefix": 6, "taken": 6, "patched": 8}),
        ([Turn(16, 0, False)], {"computed": 2, "prefix": 16, "taken": 0, "patched": 4}),
        ([Turn(16, 3, True)], {"computed": 3, "prefix": 19, "taken": 0, "patched": 0}),
        ([Turn(0, 0, False), Turn(0, 0, True)], {"computed": 4, "prefix": 0, "taken": 10, "patched": 8}),
    ):
        server = Server()
        server.answer(Drawn(22, cached, tuple(turns), "served"))
        assert server.metrics() == told


def counted() -> Counter[str]:
    """Return the rows of prompts that engines of this process had so far, by source."""
    told: Counter[str] = Counter()
    for metric in SharedNames(REGISTRY).collect():
        for sample in metric.samples if metric.name == "emblema_prompt_rows" else ():
            told[sample.labels["source"]] += round(sample.value) * sample.name.endswith("_total")
    return told


class Asking:
    """Asks a server, and counts rows.

    Attributes:
        rows: of the prompts.
        linked: those that replies report.
    """

    def __init__(self, served: Any) -> None:
        self.served, self.rows, self.linked = served, 0, 0

    def ask(self, *shown: Any, strategy: str = "blind", **more: Any) -> list[dict[str, Any]]:
        prompts = [(prompt.token_ids, prompt.pictures) for prompt in shown]
        reports = [answer.report for answer in self.served.ask_all(prompts, {"strategy": strategy}, **more)]
        for prompt, report in zip(shown, reports, strict=True):
            self.rows += report["prompt_tokens"] if prompt.pictures else len(prompt.token_ids)
            self.linked += report["linked_tokens"] if prompt.pictures else 0
        return reports


def test_a_server_counts_each_row_once(bench: Any, subject: Any, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Text, new pictures, linked ones, patched rows that the prefix cache has, lost rows, preemptions and aborts."""
    page = 2 * 32 * 2 * 32 * 3 * 4
    served = bench.serve(
        subject.folder, tmp_path / "store", subject.vocabulary, kv_cache_memory_bytes=11 * page, max_model_len=320
    )
    before, asking = counted(), Asking(served)
    ask = asking.ask
    first, second, third = (subject.prompt(2, seed=90 + number) for number in range(3))
    ask(subject.prompt(0, seed=93, lead=50), subject.prompt(0, seed=93, lead=50))
    for shown in (first, second, third):
        ask(shown)
        served.settle()
    served.forget_prefixes()
    assert ask(first)[0]["linked_tokens"] > 0
    ask(first, strategy="patch-4096")
    served.settle()
    served.forget_prefixes()
    assert ask(first, strategy="patch-4096")[0]["linked_tokens"] > 0
    ask(first.only(0), strategy="full")
    partly = ask(first, strategy="patch-4096")[0]
    assert 0 < partly["linked_tokens"] < partly["media_tokens"], "the prefix cache has some of them"
    with monkeypatch.context() as patched:
        patched.setattr(StagedRows, "write", lambda *args: 1 // 0)
        assert "could not be loaded" in ask(second, tokens=2)[0]["remark"]
    told = counted()
    told.subtract(before)
    assert sum(told.values()) == asking.rows and told["taken"] + told["patched"] == asking.linked
    served.forget_prefixes()
    preemptions, stock = [], served.scheduler._preempt_request
    monkeypatch.setattr(
        served.scheduler, "_preempt_request", lambda *args, **named: (preemptions.append(1), stock(*args, **named))
    )
    ask(first, second, third, tokens=90)
    assert preemptions, "the pool is to be too small"
    served.forget_prefixes()
    engine = served.llm.llm_engine
    for name, shown in (("linked", third), ("plain", subject.prompt(2, seed=94))):
        prompt = {"prompt_token_ids": shown.token_ids, "multi_modal_data": {"image": shown.pictures}}
        engine.add_request(name, prompt, served.params({"strategy": "blind"}))
    # What had its first token counts, although it is aborted.
    asking.rows += sum(len(output.prompt_token_ids) for output in engine.step())
    engine.abort_request(["linked", "plain"])
    served.settle()
    told = counted()
    told.subtract(before)
    assert sum(told.values()) == asking.rows
    assert min(told[source] for source in ("computed", "prefix", "taken", "patched")) > 0
