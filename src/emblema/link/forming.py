"""Forming of the patches and other artifacts that a plan asks for and the store lacks, from few forwards."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Protocol

import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.artifacts import Artifact, KeyFactors, ResidualStream
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch, deficit, factor, form_patch
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.context import LinkContext
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Part, Prompt, Segment
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob, ModelGeometry
from emblema.models.adapter import Adapter
from emblema.models.table import KVTable
from emblema.store.keys import ArtifactKey, ArtifactKind

EXHAUSTIVE = 4
"""Sets of antecedents up to this size are enumerated whole, as the paper does (Kamera, section 5)."""

SAMPLED = 24
"""Orderings drawn of a larger set, as many as the paper draws of six."""

PatchSize = tuple[int, Collection[int]]
"""The rank of a patch to form, and its layers."""

Deficits = list[LayerRows | None]
"""Per layer, a chunk's position-free deficit; None where the layer is left out."""

Directions = tuple[Tensor, Tensor]
"""Orthonormal rows [rank, features] for the keys and the values of one layer."""


class LayerReader(Protocol):
    """Where conditioned rows are read: a table, or rows that another engine's pages gave."""

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows: ...


def form_missing(
    executor: Executor, prompt: Prompt, plan: LinkPlan, context: LinkContext
) -> tuple[dict[ArtifactKey, Artifact], int]:
    """Form what the plan lists and add it to the context.

    Returns:
        The artifacts by key, and the rows that were run.

    Raises:
        PlanError: the plan asks for an artifact of a chunk that the prompt does not hold, or for one on other items'
            directions where there are none.
    """
    adapter, resources = executor.adapter, context.resources
    conditioned: dict[ArtifactKey, PatchSize] = {}
    made: dict[ArtifactKey, Artifact] = {}
    rows = 0
    for key in plan.forming:
        size = _size(plan, key, context.artifact(key))
        ran = 0
        if key.kind is ArtifactKind.RESIDUAL:
            chunk = _chunk(prompt, key)
            made[key], ran = form_residual(adapter, key, chunk), chunk.tokens
        elif key.kind is ArtifactKind.KEYS:
            chunk = _chunk(prompt, key)
            made[key] = form_key_factors(adapter, chunk, resources.chunk_rows(chunk), size[0])
        elif key.orbit:
            made[key], ran = _form_orbit(executor, prompt, key, size, context)
        else:
            conditioned[key] = size
        rows += ran
    if conditioned:
        formed, ran = _form_patches(executor, prompt, conditioned, context)
        made |= formed
        rows += ran
    context.add(made)
    return made, rows


def form_residual(adapter: Adapter, key: ArtifactKey, chunk: Chunk) -> ResidualStream:
    """Return the residual stream that enters the layer of a RESIDUAL key, from one run of the layers below it.

    Like the canonical KV it belongs to the chunk whatever is before it.

    Raises:
        PlanError: the key names no layer.
    """
    if key.layer is None:
        raise PlanError(f"the {key} names no layer")
    return ResidualStream(adapter.residual(chunk.encoded, key.layer), key.layer, len(adapter.layouts))


def form_key_factors(adapter: Adapter, chunk: Chunk, rows: KVRows, rank: int) -> KeyFactors:
    """Return factors of the position-free keys (MLA: the latent) of every layer. No forward runs."""
    source = adapter.phases(chunk.encoded.positions)
    layers = []
    for index, layout in enumerate(adapter.layouts):
        keys = unplace(rows[index].to(adapter.devices[index]), layout, source).keys
        layers.append(factor(keys, rank, adapter.dtype))
    return KeyFactors(tuple(layers))


def conditioned_table(executor: Executor, prompt: Prompt) -> KVTable:
    """Return the table of a prompt with every row computed, slid chunks still in it."""
    layers = len(executor.adapter.layouts)
    plan = LinkPlan("forming", prompt.tokens, layers, tuple(computed(prompt, layers, 0, prompt.tokens)))
    return executor.run(LinkJob(plan, prompt)).table


def deficits_of(
    model: ModelGeometry,
    table: LayerReader,
    prompt: Prompt,
    segment: Segment,
    canonical: KVRows,
    layers: Collection[int],
) -> Deficits:
    """Return a chunk's deficits (Kamera, equation 2), position-free, from a table of the prompt.

    Args:
        model: the model's geometry.
        table: holds the prompt's rows, all computed.
        prompt: the prompt.
        segment: the chunk's place in it.
        canonical: the chunk's rows, prefilled alone.
        layers: the layers to compare; the others are None.

    Raises:
        PlanError: the segment is text.
    """
    if not isinstance(segment.part, ChunkPart):
        raise PlanError(f"rows {segment.start} to {segment.stop} are text, which has no canonical rows")
    source = PhaseBook(model.tables, segment.part.chunk.encoded.positions.to(model.device))
    target = PhaseBook(model.tables, prompt.positions[:, segment.start : segment.stop].to(model.device))
    deficits: Deficits = []
    for index, layout in enumerate(model.layouts):
        if index not in layers:
            deficits.append(None)
            continue
        conditioned = unplace(table.read(index, segment.start, segment.stop), layout, target)
        own = canonical[index].to(conditioned.keys.device)
        deficits.append(deficit(conditioned, unplace(own, layout, source)))
    return deficits


def _form_patches(
    executor: Executor, prompt: Prompt, wanted: Mapping[ArtifactKey, PatchSize], context: LinkContext
) -> tuple[dict[ArtifactKey, Patch], int]:
    """Form the patches of a prompt's chunks from one forward over it, up to the last chunk (Kamera, appendix A).

    One of the kind BASIS is cut to directions pooled over other items, and the item's own patch is formed beside it, as
    its share in later pools.

    Returns:
        The patches by key, and the rows that were run.
    """
    adapter, resources = executor.adapter, context.resources
    places: dict[ArtifactKey, tuple[Segment, Chunk]] = {}
    for segment, chunk in prompt.chunk_segments:
        for key in wanted:
            if (key.chunk, key.antecedents) == (chunk.id, prompt.antecedents(segment)):
                places.setdefault(key, (segment, chunk))
    front = prompt.until(max(segment.stop for segment, _ in places.values()))
    table = conditioned_table(executor, front)
    patches: dict[ArtifactKey, Patch] = {}
    for key, (segment, chunk) in places.items():
        rank, layers = wanted[key]
        deficits = deficits_of(adapter, table, front, segment, resources.chunk_rows(chunk), set(layers))
        own = ArtifactKey(key.model, key.chunk, key.antecedents)
        if own == key:
            patches[key] = form_patch(deficits, rank, adapter.dtype)
            continue
        others = context.others(key)
        if not others:
            raise PlanError(f"the {key} needs the patches of other items")
        patches[key] = project(deficits, pooled_directions(others, rank), adapter.dtype)
        if own not in wanted and context.artifact(own) is None:
            patches[own] = form_patch(deficits, rank, adapter.dtype)
    return patches, front.tokens


def _form_orbit(
    executor: Executor, prompt: Prompt, key: ArtifactKey, size: PatchSize, context: LinkContext
) -> tuple[Patch, int]:
    """Form one patch of the mean deficit over the orderings of the antecedents, the prompt's own held out."""
    adapter, (rank, layers) = executor.adapter, size
    segment, chunk = next(
        (segment, chunk)
        for segment, chunk in prompt.chunk_segments
        if chunk.id == key.chunk and key.antecedents == tuple(sorted(set(prompt.antecedents(segment))))
    )
    canonical = context.resources.chunk_rows(chunk)
    rows = 0
    every: list[Deficits] = []
    for ordering in orderings(prompt, segment):
        table = conditioned_table(executor, ordering)
        every.append(deficits_of(adapter, table, ordering, ordering.segments[-1], canonical, set(layers)))
        rows += ordering.tokens
    return form_patch(mean_deficits(every), rank, adapter.dtype), rows


def _size(plan: LinkPlan, key: ArtifactKey, held: Artifact | None) -> PatchSize:
    """Return the rank and layers to form: what the plan asks for, and no less than what is held already."""
    rank, layers = plan.patch_need(key)
    if isinstance(held, KeyFactors):
        rank = max(rank, held.rank)
    elif isinstance(held, Patch):
        rank = max(rank, held.rank)
        layers |= {index for index, layer in enumerate(held.layers) if layer is not None}
    return rank, layers


def _chunk(prompt: Prompt, key: ArtifactKey) -> Chunk:
    found = next((chunk for _, chunk in prompt.chunk_segments if chunk.id == key.chunk), None)
    if found is None:
        raise PlanError(f"the plan asks for the {key}, a chunk that the prompt does not hold")
    return found


def orderings(prompt: Prompt, segment: Segment) -> list[Prompt]:
    """Return the prompt up to a chunk with the chunks before it in other orders; unchanged if there is no other order.

    Texts stay where they are. Orderings are distinct by the chunks' ids; those of a large set are drawn by a generator
    that the set seeds, so that the same patch is formed each time.
    """
    front = prompt.until(segment.stop)
    before = front.chunk_parts[:-1]
    own = _ids(before)
    orders = {own: before}
    if len(before) <= EXHAUSTIVE:
        for permuted in permutations(before):
            orders.setdefault(_ids(permuted), permuted)
    elif len(set(own)) > 1:
        generator = random.Random("".join(sorted(own)))
        for _ in range(4 * SAMPLED):
            drawn = tuple(generator.sample(sorted(before, key=lambda part: part.chunk.id), len(before)))
            if len(orders) <= SAMPLED:
                orders.setdefault(_ids(drawn), drawn)
    others = [order for ids, order in orders.items() if ids != own]
    return [_reordered(front, order) for order in others or [before]]


def _ids(parts: Sequence[ChunkPart]) -> tuple[str, ...]:
    return tuple(part.chunk.id for part in parts)


def _reordered(prompt: Prompt, order: Sequence[ChunkPart]) -> Prompt:
    """Return the same prompt with its chunks but the last in another order, from the same first position."""
    chunks = iter([*order, prompt.segments[-1].part])
    parts: list[Part] = [
        next(chunks) if isinstance(segment.part, ChunkPart) else segment.part for segment in prompt.segments
    ]
    laid, shift = Prompt.of(parts, prompt.axes), prompt.segments[0].position
    segments = tuple(replace(segment, position=segment.position + shift) for segment in laid.segments)
    return Prompt(segments, laid.axes, laid.next_position + shift)


def mean_deficits(every: Sequence[Sequence[LayerRows | None]]) -> Deficits:
    """Return the mean over orderings of each layer's deficit; None where a layer is left out."""
    means: Deficits = []
    for layers in zip(*every, strict=True):
        held = [rows for rows in layers if rows is not None]
        if not held:
            means.append(None)
            continue
        keys = sum((rows.keys for rows in held[1:]), start=held[0].keys) / len(held)
        values = sum((rows.values for rows in held[1:]), start=held[0].values) / len(held)
        means.append(LayerRows(keys, values))
    return means


def pooled_directions(patches: Sequence[Patch], rank: int) -> list[Directions | None]:
    """Return per layer the leading directions of all patches together; None where no patch has the layer.

    Each item enters with its directions weighted by their singular values, as if the deficits were stacked (Kamera,
    section 4).
    """
    pooled: list[Directions | None] = []
    for layers in zip(*(patch.layers for patch in patches), strict=True):
        held = [layer for layer in layers if layer is not None]
        keys, values = [layer.keys for layer in held], [layer.values for layer in held]
        pooled.append((_leading(keys, rank), _leading(values, rank)) if held else None)
    return pooled


def project(deficits: Sequence[LayerRows | None], directions: Sequence[Directions | None], dtype: torch.dtype) -> Patch:
    """Return deficits as coefficients on given directions; a layer that lacks either is left unpatched."""
    layers: list[LayerPatch | None] = []
    for rows, basis in zip(deficits, directions, strict=True):
        if rows is None or basis is None:
            layers.append(None)
        else:
            keys, values = _coefficients(rows.keys, basis[0], dtype), _coefficients(rows.values, basis[1], dtype)
            layers.append(LayerPatch(keys, values))
    return Patch(tuple(layers))


def _leading(items: Sequence[Factors], rank: int) -> Tensor:
    device = items[0].right.device
    weighted = torch.cat([(item.left.float().norm(dim=0)[:, None] * item.right.float()).to(device) for item in items])
    right: Tensor = torch.linalg.svd(weighted, full_matrices=False).Vh
    return right[:rank]


def _coefficients(rows: Tensor, basis: Tensor, dtype: torch.dtype) -> Factors:
    matrix = rows.transpose(0, 1).reshape(rows.shape[1], -1).float()
    basis = basis.to(matrix.device)
    return Factors((matrix @ basis.T).to(dtype), basis.to(dtype))
