"""Methods that only the papers' tables need, by the package's protocol; rows that some of them take are made here."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows
from emblema.kv.patch import Factors, Patch
from emblema.kv.rotation import PhaseBook, place, unplace
from emblema.link.executor import Executor
from emblema.link.forming import conditioned_table, deficits_of
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.base import Knowledge, Strategy, blind_text, computed, lay_out, plan_chunks, taken
from emblema.link.strategies.blind import Blind
from emblema.link.strategies.cacheblend import CacheBlend
from emblema.link.strategies.registry import NUMBER, StrategyKind, percent, whole_number
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.models.tables import KVTable

Directions = Sequence[tuple[Tensor, Tensor]]
"""By layer, orthonormal rows [directions, features] for the keys and the values, the leading ones first."""


def slot_widths(layouts: Sequence[LayerLayout]) -> list[int]:
    """Return the features of a row's keys and of its values, layer by layer."""
    return [heads * width for layout in layouts for heads, width in (layout.keys, layout.values)]


@runtime_checkable
class MadeRows(Strategy, Protocol):
    """A strategy that takes other rows than the canonical ones; its plan is that of `blind`."""

    def rows(self, executor: Executor, prompt: Prompt, pool: Directions) -> Mapping[str, KVRows]:
        """Return, by chunk, the rows to take, as if prefilled alone; `pool` is of other items' patches."""

    def numbers(self, tokens: int, adapter: Adapter) -> int:
        """Return how many numbers it spends on a chunk of so many rows."""

    def layers_computed(self, layers: int) -> int:
        """Return in how many layers chunk rows are computed."""


@runtime_checkable
class OwnForward(Strategy, Protocol):
    """A method that the executor cannot carry out; its plan says only what it computes and takes."""

    def logits(self, adapter: Adapter, prompt: Prompt) -> Tensor:
        """Return the logits [vocab] float32 of a prompt's last row."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Deficits on `rank` directions a layer that other items' patches share, only coefficients its own (Kamera, 4)."""

    rank: int

    @property
    def name(self) -> str:
        return f"basis-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return replace(Blind().plan(prompt, knowledge), strategy=self.name)

    def rows(self, executor: Executor, prompt: Prompt, pool: Directions) -> Mapping[str, KVRows]:
        if not pool:
            raise StrategyError(f"{self.name} needs the patches of other items")
        adapter, found = executor.adapter, {}
        table = conditioned_table(executor, prompt)
        layers = range(len(adapter.layouts))
        for segment, chunk in reused(prompt, adapter):
            deficits = deficits_of(adapter, table, prompt, segment, chunk.rows, layers)
            shares = projected([rows for rows in deficits if rows is not None], pool, self.rank)
            found[chunk.id] = tuple(
                place(plus(free, share), layout, book_of(adapter, chunk), adapter.dtype)
                for free, share, layout in zip(position_free(adapter, chunk), shares, adapter.layouts, strict=True)
            )
        return found

    def numbers(self, tokens: int, adapter: Adapter) -> int:
        return sum(min(self.rank, tokens, width) * tokens for width in slot_widths(adapter.layouts))

    def layers_computed(self, layers: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class LowRankKeys:
    """Keys (MLA: the latent) rebuilt from their leading directions, values as they are (ShadowKV; Kamera, table 6)."""

    rank: int

    @property
    def name(self) -> str:
        return f"lowrank-k-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return replace(Blind().plan(prompt, knowledge), strategy=self.name)

    def rows(self, executor: Executor, prompt: Prompt, pool: Directions) -> Mapping[str, KVRows]:
        adapter, found = executor.adapter, {}
        for _, chunk in reused(prompt, adapter):
            layers = []
            for free, layout in zip(position_free(adapter, chunk), adapter.layouts, strict=True):
                left, weights, right = torch.linalg.svd(matrix_of(free.keys), full_matrices=False)
                keys = Factors(left[:, : self.rank] * weights[: self.rank], right[: self.rank]).dense(layout.keys[0])
                layers.append(place(LayerRows(keys, free.values), layout, book_of(adapter, chunk), adapter.dtype))
            found[chunk.id] = tuple(layers)
        return found

    def numbers(self, tokens: int, adapter: Adapter) -> int:
        return sum(min(self.rank, tokens, width) * (tokens + width) for width in slot_widths(adapter.layouts)[::2])

    def layers_computed(self, layers: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class DeepReprefill:
    """Every chunk row computed in context in the deepest `percent` of the layers (Kamera, sections 6 and C.3).

    Rows begin from the residual stream that enters the cut where the chunk is prefilled alone, so the first of the deep
    layers writes the canonical KV again, and context comes in from the second on.
    """

    percent: float

    @property
    def name(self) -> str:
        return f"reprefill-deep-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return replace(Blind().plan(prompt, knowledge), strategy=self.name)

    def rows(self, executor: Executor, prompt: Prompt, pool: Directions) -> Mapping[str, KVRows]:
        adapter, found = executor.adapter, {}
        cut = len(adapter.layouts) - self.layers_computed(len(adapter.layouts))
        table = reprefilled_table(executor, prompt, cut)
        for segment, chunk in reused(prompt, adapter):
            there = PhaseBook(adapter.tables, prompt.positions[:, slice(*segment.rows)].to(adapter.device))
            layers = list(chunk.rows)
            for index in range(cut, len(layers)):
                free = unplace(table.read(index, *segment.rows), adapter.layouts[index], there)
                layers[index] = place(free, adapter.layouts[index], book_of(adapter, chunk), adapter.dtype)
            found[chunk.id] = tuple(layers)
        return found

    def numbers(self, tokens: int, adapter: Adapter) -> int:
        cut = len(adapter.layouts) - self.layers_computed(len(adapter.layouts))
        stream = adapter.hidden_size if cut else 0
        return tokens * (stream + sum(layout.features for layout in adapter.layouts[cut:]))

    def layers_computed(self, layers: int) -> int:
        return share_of_layers(self.percent, layers)


@dataclass(frozen=True, slots=True)
class ShallowReprefill:
    """Every chunk row computed in context in the shallowest `percent` of the layers only (Kamera, appendix D)."""

    percent: float

    @property
    def name(self) -> str:
        return f"reprefill-shallow-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        count = share_of_layers(self.percent, layers)

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            ranges = [RowRange(*segment.rows, RowSource.COMPUTED, (0, count))]
            if count < layers:
                ranges.append(RowRange(*segment.rows, RowSource.TAKEN, (count, layers), ChunkOrigin(chunk.id)))
            return ranges

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges, in_context=True)


@dataclass(frozen=True, slots=True)
class TwoStepCacheBlend:
    """CacheBlend as MPIC runs it (section 5.2): text is blind to every chunk; R is of chunk rows there too."""

    percent: float

    @property
    def name(self) -> str:
        return f"cacheblend2-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = CacheBlend(self.percent).plan(prompt, knowledge)
        return replace(plan, strategy=self.name, ranges=blind_text(prompt, plan.ranges))


def _percent_kind(usage: str, make: Any) -> StrategyKind:
    name = usage.removesuffix("R")
    return StrategyKind(usage, make.__doc__ or "", rf"{re.escape(name)}{NUMBER}", lambda match: make(percent(match)))


def _rank_kind(usage: str, make: Any) -> StrategyKind:
    pattern = rf"{re.escape(usage.removesuffix('M'))}{NUMBER}"
    return StrategyKind(usage, make.__doc__ or "", pattern, lambda match: make(whole_number(match, "the rank")))


ABLATIONS: tuple[StrategyKind, ...] = (
    _rank_kind("basis-M", Basis),
    _rank_kind("lowrank-k-M", LowRankKeys),
    _percent_kind("reprefill-deep-R", DeepReprefill),
    _percent_kind("reprefill-shallow-R", ShallowReprefill),
    _percent_kind("cacheblend2-R", TwoStepCacheBlend),
)


def share_of_layers(percent: float, layers: int) -> int:
    """Return how many of the layers a share is: the nearest number, one at least."""
    return max(1, int(layers * percent / 100 + 0.5))


def reused(prompt: Prompt, adapter: Adapter) -> list[tuple[Segment, Chunk]]:
    """Return the chunks whose rows a method may make anew: visible, canonical, and not right after the anchor.

    Raises:
        StrategyError: a chunk stands there twice; its rows would differ.
    """
    found = [
        (segment, segment.part.chunk)
        for segment in prompt.segments
        if isinstance(segment.part, ChunkPart)
        and segment.part.state is RowState.CANONICAL
        and not segment.part.slid
        and not prompt.leads(segment, adapter.anchor)
    ]
    if len({chunk.id for _, chunk in found}) < len(found):
        raise StrategyError("a chunk stands in the prompt twice: rows are made for one place alone")
    return found


def book_of(adapter: Adapter, chunk: Chunk) -> PhaseBook:
    """Return the phases that a chunk's canonical rows have."""
    return PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))


def position_free(adapter: Adapter, chunk: Chunk) -> list[LayerRows]:
    """Return a chunk's rows with their position taken out, float32, by layer."""
    book = book_of(adapter, chunk)
    pairs = zip(chunk.rows, adapter.layouts, strict=True)
    return [unplace(rows.to(adapter.device), layout, book) for rows, layout in pairs]


def plus(rows: LayerRows, more: LayerRows) -> LayerRows:
    """Return the sum of a layer's rows and others."""
    return LayerRows(rows.keys + more.keys, rows.values + more.values)


def matrix_of(rows: Tensor) -> Tensor:
    """Return rows [heads, tokens, width] as one matrix [tokens, heads * width], float32."""
    return rows.transpose(0, 1).flatten(1).float()


def pooled_directions(patches: Sequence[Patch]) -> Directions:
    """Return per layer the directions of all patches together, the leading first.

    Each item enters with its directions weighted by their singular values, as if the deficits were stacked (Kamera,
    section 4).
    """
    pooled = []
    for layers in zip(*(patch.layers for patch in patches), strict=True):
        held = [layer for layer in layers if layer is not None]
        pooled.append((_leading([layer.keys for layer in held]), _leading([layer.values for layer in held])))
    return pooled


def _leading(items: Sequence[Factors]) -> Tensor:
    weighted = torch.cat([item.left.float().norm(dim=0)[:, None] * item.right.float() for item in items])
    right: Tensor = torch.linalg.svd(weighted, full_matrices=False).Vh
    return right


def projected(deficits: Sequence[LayerRows], pool: Directions, rank: int) -> list[LayerRows]:
    """Return what of position-free deficits lies on the pool's leading `rank` directions."""

    def on(rows: Tensor, directions: Tensor) -> Tensor:
        basis = directions[:rank].to(rows.device)
        return Factors(matrix_of(rows) @ basis.T, basis).dense(rows.shape[0])

    pairs = zip(deficits, pool, strict=True)
    return [LayerRows(on(rows.keys, keys), on(rows.values, values)) for rows, (keys, values) in pairs]


def reprefilled_table(executor: Executor, prompt: Prompt, cut: int) -> KVTable:
    """Return a table whose rows from layer `cut` on are those of chunks that begin there, from what enters it alone.

    The rows of the layers below are of no use. Text runs through all layers, over canonical chunks below the cut.
    """
    if cut == 0:
        return conditioned_table(executor, prompt)
    adapter, layers = executor.adapter, len(executor.adapter.layouts)
    known = Knowledge("", adapter.layouts, lambda key: None, lambda prompt: None, anchor=adapter.anchor)
    ranges = lay_out(prompt, known, lambda segment, chunk: taken(segment, chunk, layers), in_context=True)
    below = LinkPlan("below the cut", prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
    own = torch.from_numpy(below.sources()[0] == 0)
    streams: dict[int, Tensor] = {}
    for segment, chunk in prompt.chunk_segments:
        if not prompt.leads(segment, adapter.anchor) and not own[segment.start]:
            with entering(adapter, cut, {}) as seen:
                adapter.capture(chunk.encoded)
            streams |= enumerate_rows(range(*segment.rows), torch.cat(seen)[len(adapter.anchor) :])
    with entering(adapter, cut, {}) as seen:
        executor.run(LinkJob(below, prompt))
    streams |= enumerate_rows(own.nonzero()[:, 0].tolist(), torch.cat(seen))
    whole = LinkPlan("above the cut", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    with entering(adapter, cut, streams):
        return executor.run(LinkJob(whole, prompt)).table


def enumerate_rows(rows: Sequence[int], values: Tensor) -> dict[int, Tensor]:
    """Return values [rows, hidden] by row."""
    return dict(zip(rows, values, strict=True))


@contextmanager
def entering(adapter: Adapter, layer: int, streams: Mapping[int, Tensor]) -> Iterator[list[Tensor]]:
    """Collect what enters a layer in the block, [rows, hidden] a call; rows of `streams`, counted on, enter with it."""
    seen: list[Tensor] = []

    def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        first = sum(len(part) for part in seen)
        seen.append(hidden[0])
        rows = [row for row in range(first, first + hidden.shape[1]) if row in streams]
        if rows:
            hidden = hidden.clone()
            hidden[0, [row - first for row in rows]] = torch.stack([streams[row] for row in rows])
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    handle = adapter.layers[layer].register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
