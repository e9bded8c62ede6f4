"""What a memory of pairs is worth while it learns: requests over one library, answered by `auto`, one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.intervals import Interval, bootstrap, bootstrap_ratio
from benchmarks.recordfile import RecordFile, digest
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.traffic.requests import Picture, Piece, Traffic, TrafficShape, traffic_of
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.link.context import LinkContext
from emblema.link.executor import Executor
from emblema.link.policy.fidelity import divergence
from emblema.link.policy.margins import DEFAULT as LEAST_MARGIN
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.second_pass import margin_of
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.full import Full
from emblema.link.strategies.pair import Pair
from emblema.link.taken_rows import LinkJob
from emblema.session.prompt_reader import slid
from emblema.session.requests import Prefill

PAGES, SHOWN = 24, 8
POLICIES = {"pairs": Policy(), "recurring": Policy(recurring=True)}
"""`pairs` is the default; `recurring` computes pages in a known combination, to keep patches of exact lists."""
STRETCHES = ((1, 10), (11, 30), (31, 60), (61, 100))
"""Requests that a line is over, by their numbers; figures "after 60 requests" are those of the last."""


@dataclass(frozen=True, slots=True)
class LibraryRequests:
    """One library's requests in order, as `auto` answered them; figures of one setting, a value a request.

    Attributes:
        key: see `recordfile.digest`; not in the JSON file.
        policy: of `POLICIES`.
        agrees: 1 where the first token is re-prefill's.
        fell_back: 1 where the second pass was not sure, and the prompt was computed in full.
        rows: computed before that, in the prompt and again, over the prompt's rows.
        kl: from re-prefill at the first token, nats; 0 where the prompt was computed in full.
        blind: the same of blind reuse.
        pair, pair_margin, pair_agrees: the same of the memory alone as it was before the request, without a second
            pass; by how much its two likeliest first tokens differed, and whether the first is re-prefill's.
        known: share of the prompt's pairs of pages that were met before.
        learnt: bytes of the memory after the request, over those of the library's KV.
        lane: what was taken.
    """

    key: str
    model: str
    setting: str
    policy: str
    library: int
    agrees: tuple[int, ...]
    fell_back: tuple[int, ...]
    rows: tuple[float, ...]
    kl: tuple[float, ...]
    blind: tuple[float, ...]
    pair: tuple[float, ...]
    pair_margin: tuple[float, ...]
    pair_agrees: tuple[int, ...]
    known: tuple[float, ...]
    learnt: tuple[float, ...]
    lane: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LearningPlan:
    """What is measured: libraries of `PAGES` pages, of which each request shows `SHOWN` in random order."""

    seed: int
    libraries: int = 1
    requests: int = STRETCHES[-1][1]
    settings: tuple[str, ...] = SETTINGS

    def __post_init__(self) -> None:
        if not self.settings or not set(self.settings) <= set(SETTINGS):
            raise PromptError(f"settings {', '.join(self.settings)!r}: choose of {', '.join(SETTINGS)}")

    def traffic(self, setting: str, library: int) -> Traffic:
        """Return the requests of a library."""
        shape = TrafficShape("rag", self.requests, 8, PAGES, SHOWN, slid=setting == "slid")
        return traffic_of(shape, self.seed + library)


def learnt(
    engine: Engine, label: str, plan: LearningPlan, records: RecordFile[LibraryRequests]
) -> list[LibraryRequests]:
    """Return the records of a model; those that are lacking are measured, a library and setting at a time."""
    found = []
    for setting, policy, library in product(plan.settings, POLICIES, range(plan.libraries)):
        about = (setting, policy, plan.seed, library, plan.requests, PAGES, SHOWN)
        key = digest(engine.adapter.fingerprint, *about)
        if key not in records.held:
            served = [*_served(engine, plan.traffic(setting, library), POLICIES[policy])]
            columns = {name: tuple(each[name] for each in served) for name in served[0]}
            records.add([LibraryRequests(key, label, setting, policy, library, **columns)])
        found.append(records.held[key])
    return found


def _served(model: Engine, traffic: Traffic, policy: Policy) -> Iterator[dict[str, Any]]:
    """Yield each request's figures. `auto` has its background work, on a store of its own."""
    with Engine(model.adapter.model, model.processor, policy=policy) as engine:
        chunks = [chunk for page in traffic.pages if isinstance(chunk := engine.add(page.image()), Chunk)]
        met: set[tuple[int, int]] = set()
        for request in traffic.requests:
            pieces = request.turns[0].pieces
            pages = [piece.page for piece in pieces if isinstance(piece, Picture)]
            pairs = {(pages[before], pages[after]) for after in range(len(pages)) for before in range(after)}
            parts: list[Any] = [
                (slid(chunks[piece.page]) if piece.slid else chunks[piece.page])
                if isinstance(piece, Picture)
                else piece
                for piece in pieces
            ]
            prompt = engine.prompt(parts)
            full, blind, pair = (_logits(engine, prompt, strategy) for strategy in (Full(), Blind(), Pair()))
            answer = engine.prefill(parts, "auto")
            engine.settle()
            fell_back = answer.usage.margin is not None and answer.plan.recomputation is None
            yield {
                "agrees": int(answer.logits.argmax() == full.argmax()),
                "fell_back": int(fell_back),
                "rows": round(_rows_before_fallback(answer, fell_back) / prompt.tokens, 5),
                "kl": 0.0 if fell_back else _kl(full, answer.logits),
                "blind": _kl(full, blind),
                "pair": _kl(full, pair),
                "pair_margin": round(margin_of(pair), 4),
                "pair_agrees": int(pair.argmax() == full.argmax()),
                "known": round(len(pairs & met) / len(pairs), 4),
                "learnt": round(
                    engine.policy_runtime.pairs().statistics.bytes / sum(chunk.bytes for chunk in chunks), 6
                ),
                "lane": answer.usage.lane,
            }
            met |= pairs


def _shown(piece: Piece, chunks: Sequence[Chunk]) -> Any:
    """Return what a request gives the engine for one of its pieces."""
    if not isinstance(piece, Picture):
        return piece
    chunk = chunks[piece.page]
    return slid(chunk) if piece.slid else chunk


def _rows_before_fallback(answer: Prefill, fell_back: bool) -> int:
    usage = answer.usage
    return usage.repeated_tokens + (0 if fell_back else usage.computed_tokens)


@torch.inference_mode()
def _logits(engine: Engine, prompt: Prompt, strategy: Strategy) -> Tensor:
    """Return the last logits by a strategy, over what the engine's memory knows; nothing is learnt from it."""
    adapter = engine.adapter
    find = engine.policy_runtime.pairs().find
    context = LinkContext(Knowledge(adapter.fingerprint, adapter.layouts, find, lambda asked: None), {})
    plan = strategy.plan(prompt, context.knowledge)
    return Executor(adapter).run(LinkJob(plan, prompt, context.resources)).logits


def _kl(reference: Tensor, own: Tensor) -> float:
    return float(f"{divergence(reference.cpu().numpy(), own.cpu().numpy()):.4g}")


def stretches(records: Sequence[LibraryRequests]) -> list[dict[str, Any]]:
    """Return a row for each model, setting, policy and stretch of requests, over all libraries."""
    groups: dict[tuple[str, str, str], list[LibraryRequests]] = {}
    for record in records:
        groups.setdefault((record.model, record.setting, record.policy), []).append(record)
    return [
        {
            "model": model,
            "setting": setting,
            "policy": policy,
            "first": first,
            "last": last,
            **_stretch(own, first, last),
        }
        for (model, setting, policy), own in groups.items()
        for first, last in STRETCHES
        if len(own[0].agrees) >= first
    ]


def _stretch(own: Sequence[LibraryRequests], first: int, last: int) -> dict[str, Any]:
    def column(name: str) -> Any:
        return np.array(
            [value for record in own for value in getattr(record, name)[first - 1 : last]], dtype=np.float64
        )

    agrees, fell_back, pair_agrees = column("agrees"), column("fell_back"), column("pair_agrees")
    blind, answered = column("blind"), 1 - fell_back
    sure = (column("pair_margin") >= LEAST_MARGIN).astype(np.float64)
    episodes = np.array([str(place) for place in range(len(agrees))])
    intervals: dict[str, Interval] = {
        "agreement": bootstrap(agrees, episodes),
        "fallbacks": bootstrap(fell_back, episodes),
        "wrong_accepted": _ratio((1 - agrees) * answered, answered, episodes),
        "rows": bootstrap(column("rows"), episodes),
        "rows_with_fallbacks": bootstrap(column("rows") + fell_back, episodes),
        "eta": _ratio((blind - column("kl")) * answered, blind * answered, episodes),
        "pair_eta": _ratio(blind - column("pair"), blind, episodes),
        "pair_agreement": bootstrap(pair_agrees, episodes),
        "pair_wrong_accepted": _ratio((1 - pair_agrees) * sure, sure, episodes),
        "known": bootstrap(column("known"), episodes),
    }
    return {
        "n": len(agrees),
        **{name: interval.value for name, interval in intervals.items()},
        "pair_accepted": float(sure.mean()),
        "learnt": max(record.learnt[min(last, len(record.learnt)) - 1] for record in own),
        "intervals": {name: [interval.low, interval.high] for name, interval in intervals.items()},
    }


def _ratio(above: Any, below: Any, episodes: Any) -> Interval:
    if not below.sum() > 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    return bootstrap_ratio(above, below, episodes)
