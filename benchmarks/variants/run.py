"""What maps that differ a little from stored ones cost, and how they are answered, by share, place and method."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.cost.shapes import make_model
from benchmarks.models import model_source
from benchmarks.table import Bar
from benchmarks.variants.pictures import PLACES, ChangedMap, draw_maps
from benchmarks.variants.towers import add_attention
from emblema.engine.engine import Engine
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, Segment
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.full import Full
from emblema.link.strategies.query import QueryStrategy
from emblema.models.load import load_model
from emblema.session.prompt_reader import PromptPart
from emblema.session.requests import LinkRequest, Prefill

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
POLICY = Policy(canary=0, learning=0, forming=False)
METHODS: dict[str, Strategy] = {"blind": Blind(), "query-25%": QueryStrategy(POLICY.query_share), "auto": Auto()}
ROUNDS = 15
"""Times that the first token of a new picture is timed with and without a comparison."""
AT = 0.1
"""The share at which bars are set."""
WINDOWS = "reference"
"""The model whose encoder attends within windows alone, each of one cell of a map."""


@dataclass(frozen=True)
class Subject:
    """A model that pictures are shown to.

    Attributes:
        name: its name on the page.
        side: cells along a map's side.
        gain: see `add_attention`; None for encoders as they are.
        shape: a shape of random weights, whose answers say nothing: its margin is not looked at.
        shares: of cells that change.
        questions: asked of each map, at most.
        methods: names of `METHODS`.
    """

    name: str
    side: int = 16
    gain: float | None = None
    shape: str | None = None
    shares: tuple[float, ...] = SHARES
    questions: int = 8
    methods: tuple[str, ...] = tuple(METHODS)

    def load(self, seed: int, device: str | None = None) -> tuple[torch.nn.Module, Any]:
        """Return the model and a processor."""
        if self.shape is not None:
            return make_model(self.shape, torch.device(device or "cpu"), torch.float32, seed), load_model(WINDOWS)[1]
        model, processor = load_model(model_source(self.name.split(",")[0]), device)
        if self.gain is not None:
            add_attention(model, self.gain)
        return model, processor


GAINS = (10.0, 30.0, 100.0)
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(WINDOWS),
        *(
            Subject(
                f"reference-deepstack, {gain:g}", gain=gain, shares=SHARES[:4], questions=4, methods=("blind", "auto")
            )
            for gain in GAINS
        ),
        Subject("random 137m", side=32, shape="137m", shares=(0.05, AT), questions=1, methods=("blind", "auto")),
    )
}


def measure(subject: Subject, seed: int, items: int, screen: Console, device: str | None = None) -> dict[str, Any]:
    """Measure every share and place on fresh maps; return the rows, and what a comparison costs a new picture.

    The cost is measured under windows alone.
    """
    model, processor = subject.load(seed, device)
    policy = POLICY if subject.shape is None else replace(POLICY, margin=0)
    rows = []
    for share in subject.shares:
        for place in PLACES:
            drawn = draw_maps(seed, items, subject.side, share, place)
            asked = (replace(each, questions=each.questions[: subject.questions]) for each in drawn)
            with Engine(model, processor, policy=policy) as engine:
                found = list(_records(engine, asked, subject.methods))
            for method in subject.methods:
                own = [record for record in found if record["method"] == method]
                means = {name: _mean(own, name) for name in own[0] if name != "method"}
                told = {"model": subject.name, "share": share, "place": place, "method": method, "questions": len(own)}
                rows.append({**told, **means})
                screen.print(rows[-1])
    compared = comparison_cost(model, processor, seed, subject.side) if subject.name == WINDOWS else None
    command = f'python -m benchmarks variants --model "{subject.name}" --items {items} --seed {seed}'
    run = {"model": subject.name, "command": command, "date": date.today().isoformat(), "compared": compared}
    return {"runs": [run], "rows": rows}


def put(found: dict[str, Any], measured: dict[str, Any]) -> None:
    """Put what was measured in the place of what was found of the same models."""
    for name in ("runs", "rows"):
        measured_now = {row["model"] for row in measured[name]}
        found[name] = [row for row in found.get(name, []) if row["model"] not in measured_now] + measured[name]


def bars_of(found: dict[str, Any]) -> list[Bar]:
    """Return what has to hold at a tenth changed, and of what is new, under windows alone."""
    tenth = [row for row in found["rows"] if row["share"] == AT and row["method"] == "auto" and row["model"] == WINDOWS]
    compared = [run["compared"] for run in found["runs"] if run["compared"] is not None]
    return [
        Bar("rows of a picture of which a tenth changed", _most(tenth, "rows"), 0.3, least=False),
        Bar("the encoder's work for it", _most(tenth, "encoded"), 0.3, least=False),
        Bar("agreement with full recompute", min((row["agrees"] for row in tenth), default=None), 0.97),
        Bar(
            "cost of a new picture over one that is compared with none", max(compared, default=None), 1.05, least=False
        ),
    ]


def _most(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    return max((row[name] for row in rows), default=None)


def _mean(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a figure, of the records that have it; None without any."""
    values = [record[name] for record in records if record[name] is not None]
    return float(np.mean(values)) if values else None


def _records(engine: Engine, maps: Iterator[ChangedMap], methods: Sequence[str]) -> Iterator[dict[str, Any]]:
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
                encoded, moved = sum(work) / whole, moved_by(prompt.chunk_parts[-1])
            full = _linked(engine, prompt, Full())
            alone = full if moved is None else _linked(engine, prompt.map_chunks(_encoded_nearly), Full())
            for name in methods:
                made = _linked(engine, prompt, METHODS[name])
                again = made.usage.repeated_tokens if made.usage.fallback else 0
                outside = prompt.tokens - sum(page.tokens for page in pages)
                yield {
                    "method": name,
                    "rows": (made.usage.computed_tokens + again - outside) / pages[1].tokens,
                    "encoded": encoded,
                    "moved": moved,
                    "encoder agrees": None if moved is None else float(alone.logits.argmax() == full.logits.argmax()),
                    "encoder KL": None if moved is None else divergence(full.logits, alone.logits),
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


def _encoded_nearly(segment: Segment, part: ChunkPart) -> ChunkPart:
    """Return a part that is computed whole, of what the encoder made of its changed cells alone."""
    changed = part.changed
    if changed is None or changed.encoded is None:
        return part
    return replace(part, chunk=replace(part.chunk, encoded=changed.encoded), changed=None)


def moved_by(part: ChunkPart) -> float | None:
    """Return how far the rows that are the same moved in truth, over the spread of all; None where none may.

    Both are root mean squares, the spread of the distances from their mean.
    """
    changed = part.changed
    if changed is None or changed.encoded is None:
        return None
    exact, nearly = part.chunk.encoded.embeds.double(), changed.encoded.embeds.double()
    same = torch.cat([torch.arange(start, stop) for start, stop in changed.same_rows])
    own = same[part.chunk.encoded.visual[same]]
    rows = exact[part.chunk.encoded.visual]
    spread = (rows - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    return float((exact[own] - nearly[own]).square().sum(dim=1).mean().sqrt() / spread)


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
