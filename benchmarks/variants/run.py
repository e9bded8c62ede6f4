"""What maps that differ a little from stored ones cost, and how they are answered, by share, place and method."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.figures import write_figures
from benchmarks.table import Bar
from benchmarks.variants.pictures import PLACES, ChangedMap, draw_maps
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.full import Full
from emblema.link.strategies.query import QueryStrategy
from emblema.session.prompt_reader import PromptPart
from emblema.session.requests import LinkRequest, Prefill

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
POLICY = Policy(canary=0, learning=0, forming=False)
METHODS: dict[str, Strategy] = {"blind": Blind(), "query-25%": QueryStrategy(POLICY.query_share), "auto": Auto()}
ROUNDS = 15
"""Times that the first token of a new picture is timed with and without a comparison."""


def measure(
    model: torch.nn.Module, processor: Any, seed: int, items: int, side: int, listing: Path, screen: Console
) -> dict[str, Any]:
    """Measure every share and place on fresh maps of `side` x `side` cells, and write the figures' file."""
    rows = []
    for share in SHARES:
        for place in PLACES:
            with Engine(model, processor, policy=POLICY) as engine:
                found = list(_records(engine, draw_maps(seed, items, side, share, place)))
            for method in METHODS:
                own = [record for record in found if record["method"] == method]
                means = {name: float(np.mean([record[name] for record in own])) for name in own[0] if name != "method"}
                rows.append({"share": share, "place": place, "method": method, "questions": len(own), **means})
                screen.print(rows[-1])
    compared = comparison_cost(model, processor, seed, side)
    made = {"seed": seed, "items": items, "side": side, "compared": compared, "rows": rows}
    write_figures(made, listing)
    return made


def bars_of(found: dict[str, Any]) -> list[Bar]:
    """Return what has to hold at a tenth changed, and of what is new."""
    tenth = [row for row in found["rows"] if row["share"] == 0.1 and row["method"] == "auto"]
    return [
        Bar("rows of a picture of which a tenth changed", max(row["rows"] for row in tenth), 0.3, least=False),
        Bar("the encoder's work for it", max(row["encoded"] for row in tenth), 0.3, least=False),
        Bar("agreement with full recompute", min(row["agrees"] for row in tenth), 0.97),
        Bar("cost of a new picture over one that is compared with none", found["compared"], 1.05, least=False),
    ]


def _records(engine: Engine, maps: Iterator[ChangedMap]) -> Iterator[dict[str, Any]]:
    """Yield what each method made of each question: rows and encoder's work as shares of the picture's, and answers."""
    for drawn in maps:
        with encoder_work(engine) as work:
            stored = [engine.add(page.image()) for page in (drawn.legend, drawn.base)]
        whole = work[-1]
        pages = [chunk for chunk in stored if isinstance(chunk, Chunk)]
        for place, (text, _, _) in enumerate(drawn.questions):
            with encoder_work(engine) as work:
                parts: list[PromptPart] = [pages[0], drawn.changed.image(), text]
                prompt = engine.session.read(parts, prefill_media=False)
            if place == 0:
                encoded = sum(work) / whole
            full = _linked(engine, prompt, Full())
            for name, strategy in METHODS.items():
                made = _linked(engine, prompt, strategy)
                again = made.usage.repeated_tokens if made.usage.fallback else 0
                outside = prompt.tokens - sum(page.tokens for page in pages)
                yield {
                    "method": name,
                    "rows": (made.usage.computed_tokens + again - outside) / pages[1].tokens,
                    "encoded": encoded,
                    "agrees": float(made.logits.argmax() == full.logits.argmax()),
                    "KL": divergence(full.logits, made.logits),
                    "seconds over full": made.trace.seconds / full.trace.seconds,
                }
        for page in pages:
            engine.store.delete(page.id)


def _linked(engine: Engine, prompt: Prompt, strategy: Strategy) -> Prefill:
    made = engine.session.linker.link(LinkRequest(prompt, strategy, compared=True))
    engine.session.linker.forget_prompts()
    return made


def divergence(full: torch.Tensor, other: torch.Tensor) -> float:
    """Return KL(full, other) of logits, in nats."""
    wanted, found = (torch.log_softmax(each.double(), 0) for each in (full, other))
    return float((wanted.exp() * (wanted - found)).sum())


@contextmanager
def encoder_work(engine: Engine) -> Iterator[list[int]]:
    """Note how many numbers of pixels each run of the encoder is given."""
    kind, ran = engine.adapter.kind, list[int]()
    encode = kind.encode

    def noted(model: Any, prepared: Any) -> Any:
        ran.append(prepared.features["pixel_values"].numel())
        return encode(model, prepared)

    kind.encode = noted  # type: ignore[method-assign]
    try:
        yield ran
    finally:
        del kind.encode


def comparison_cost(model: torch.nn.Module, processor: Any, seed: int, side: int) -> float:
    """Return the seconds to the first token of a picture that is all new, over those where nothing is compared."""
    policies = (POLICY, replace(POLICY, changed=0.0))
    engines = [Engine(model, processor, policy=policy) for policy in policies]
    seconds: list[list[float]] = [[] for _ in engines]
    for round, drawn in enumerate(draw_maps(seed, ROUNDS + 1, side, 1.0, "region")):
        order = list(zip(engines, seconds, strict=True))
        for engine, taken in order[:: 1 if round % 2 else -1]:
            engine.add(drawn.base.image())
            parts: list[PromptPart] = [drawn.changed.image(), drawn.questions[0][0]]
            began = time.perf_counter()
            engine.prefill(parts)
            taken.append(time.perf_counter() - began)
    for engine in engines:
        engine.close()
    return _median(seconds[0]) / _median(seconds[1])


def _median(seconds: Sequence[float]) -> float:
    return float(np.median(seconds[1:]))
