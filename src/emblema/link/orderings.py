"""The orderings of a chunk's antecedents, over which an orbit patch is averaged (Kamera, section 5)."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from blake3 import blake3

from emblema.kv.layout import LayerRows
from emblema.link.prompt import ChunkPart, Part, Prompt, Segment
from emblema.store.keys import ArtifactKind, PatchKey

EXHAUSTIVE = 4
"""Sets up to this size are enumerated whole, as the paper does."""

SAMPLED = 24
"""Orderings drawn of a larger set, as many as the paper draws of six."""


def orbit_key(model: str, chunk: str, antecedents: tuple[str, ...], *, strict: bool = False) -> PatchKey:
    """What the orbit patch of a chunk behind a set is found by; a strict one, by the ordering it leaves out too."""
    held_out = blake3("".join(antecedents).encode()).hexdigest(16) if strict else None
    return PatchKey(model, chunk, antecedents, ArtifactKind.ORBIT, held_out=held_out)


def averaged(key: PatchKey, antecedents: tuple[str, ...]) -> bool:
    """Whether an orbit patch serves this ordering of antecedents."""
    return key.antecedents == tuple(sorted(set(antecedents)))


def orderings(prompt: Prompt, segment: Segment) -> list[Prompt]:
    """The prompt up to a chunk with the chunks before it in other orders; its own order only where there is no other.

    Texts stay where they are. Orderings are distinct by the chunks' ids; those of a large set are drawn by a generator
    that the set seeds, so that the same patch is formed each time.
    """
    part = prompt.until(segment.stop)
    before = [one.part for one in part.segments[:-1] if isinstance(one.part, ChunkPart)]
    own = tuple(one.chunk.id for one in before)
    orders = {own: before}
    if len(before) <= EXHAUSTIVE:
        for permuted in permutations(before):
            orders.setdefault(tuple(one.chunk.id for one in permuted), list(permuted))
    elif len(set(own)) > 1:
        generator = random.Random("".join(sorted(own)))
        for _ in range(4 * SAMPLED):
            order = generator.sample(sorted(before, key=lambda one: one.chunk.id), len(before))
            if len(orders) <= SAMPLED:
                orders.setdefault(tuple(one.chunk.id for one in order), order)
    others = [order for ids, order in orders.items() if ids != own]
    return [_reordered(part, order) for order in others or [before]]


def mean_deficits(every: Sequence[Sequence[LayerRows | None]]) -> list[LayerRows | None]:
    """The mean over orderings of each layer's deficit; None where a layer is left out."""
    means: list[LayerRows | None] = []
    for layers in zip(*every, strict=True):
        held = [rows for rows in layers if rows is not None]
        if not held:
            means.append(None)
            continue
        keys = sum((rows.keys for rows in held[1:]), start=held[0].keys) / len(held)
        values = sum((rows.values for rows in held[1:]), start=held[0].values) / len(held)
        means.append(LayerRows(keys, values))
    return means


def _reordered(prompt: Prompt, order: Sequence[ChunkPart]) -> Prompt:
    """The same prompt with its chunks but the last in another order, from the same first position."""
    chunks = iter([*order, prompt.segments[-1].part])
    parts: list[Part] = [next(chunks) if isinstance(one.part, ChunkPart) else one.part for one in prompt.segments]
    laid, shift = Prompt.of(parts, prompt.axes), prompt.segments[0].position
    segments = tuple(replace(one, position=one.position + shift) for one in laid.segments)
    return Prompt(segments, laid.axes, laid.next_position + shift)
