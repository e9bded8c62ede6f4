"""Forming of the patches that a plan asks for and the store lacks, from few forwards."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Protocol

from emblema.errors import PlanError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows, LayerRows, MappedRows
from emblema.kv.patch import Patch, deficit, form_patch
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.context import LinkContext
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Part, Prompt, Segment
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob, ModelGeometry
from emblema.models.tables import KVTable

EXHAUSTIVE = 4
"""Sets of antecedents up to this size are enumerated whole, as the paper does (Kamera, section 5)."""

SAMPLED = 24
"""Orderings drawn of a larger set, as many as the paper draws of six."""

PatchSize = tuple[int, Collection[int], bool]
"""The rank of a patch to form, its layers, and whether all of them have that rank."""

Deficits = list[LayerRows | None]
"""Per layer, a chunk's position-free deficit; None where the layer is left out."""


class LayerReader(Protocol):
    """Where conditioned rows are read: a table, or rows that another engine's pages gave."""

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows: ...


def form_missing(
    executor: Executor, prompt: Prompt, plan: LinkPlan, context: LinkContext
) -> tuple[dict[ArtifactKey, Patch], int]:
    """Form what the plan lists and add it to the context.

    Returns:
        The patches by key, and the rows that were run.

    Raises:
        PlanError: the plan asks for a patch of a chunk that the prompt does not hold.
    """
    conditioned: dict[ArtifactKey, PatchSize] = {}
    made: dict[ArtifactKey, Patch] = {}
    rows = 0
    for key in plan.forming:
        size = _size(plan, key, context.patch(key))
        if key.orbit:
            made[key], ran = _form_orbit(executor, prompt, key, size, context)
            rows += ran
        else:
            conditioned[key] = size
    if conditioned:
        formed, ran = _form_patches(executor, prompt, conditioned, context)
        made |= formed
        rows += ran
    context.add(made)
    return made, rows


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
        layers: the layers to compare; the others are None, and those that keep a map of the chunk's state.

    Raises:
        PlanError: the segment is text.
    """
    if not isinstance(segment.part, ChunkPart):
        raise PlanError(f"rows {segment.start} to {segment.stop} are text, which has no canonical rows")
    source = PhaseBook(model.tables, segment.part.chunk.encoded.positions.to(model.device))
    target = PhaseBook(model.tables, prompt.positions[:, segment.start : segment.stop].to(model.device))
    deficits: Deficits = []
    for index, layout in enumerate(model.layouts):
        if index not in layers or isinstance(canonical[index], MappedRows):
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

    Returns:
        The patches by key, and the rows that were run.
    """
    adapter, resources = executor.adapter, context.resources
    places: dict[ArtifactKey, tuple[Segment, Chunk]] = {}
    for segment, chunk in prompt.chunk_segments:
        for key in wanted:
            if (key.chunk, key.antecedents) == (chunk.id, prompt.antecedents(segment)):
                places.setdefault(key, (segment, chunk))
    for key in wanted.keys() - places.keys():
        raise PlanError(f"the plan asks for the {key}, which the prompt does not hold")
    front = prompt.until(max(segment.stop for segment, _ in places.values()))
    table = conditioned_table(executor, front)
    patches: dict[ArtifactKey, Patch] = {}
    for key, (segment, chunk) in places.items():
        rank, layers, even = wanted[key]
        deficits = deficits_of(adapter, table, front, segment, resources.chunk_rows(chunk), set(layers))
        patches[key] = form_patch(deficits, rank, adapter.dtype, even=even)
    return patches, front.tokens


def _form_orbit(
    executor: Executor, prompt: Prompt, key: ArtifactKey, size: PatchSize, context: LinkContext
) -> tuple[Patch, int]:
    """Form one patch of the mean deficit over the orderings of the antecedents, the prompt's own held out."""
    adapter, (rank, layers, even) = executor.adapter, size
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
    return form_patch(mean_deficits(every), rank, adapter.dtype, even=even), rows


def _size(plan: LinkPlan, key: ArtifactKey, held: Patch | None) -> PatchSize:
    """Return the rank and layers to form: what the plan asks for, and no less than what is held already."""
    rank, layers = plan.patch_need(key)
    if held is not None:
        rank = max(rank, held.rank)
        layers |= {index for index, layer in enumerate(held.layers) if layer is not None}
    return rank, layers, plan.needs_even(key)


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
