"""Patches formed from one conditioned forward (Kamera, appendix A), and stored under the design's key."""

from collections.abc import Collection, Mapping

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch, deficit, form_patch
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.assemble import Resources
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import computed
from emblema.models.adapter import Adapter
from emblema.models.table import KVTable
from emblema.store.keys import PatchKey


def form_patches(
    executor: Executor,
    prompt: Prompt,
    model: str,
    wanted: Mapping[PatchKey, tuple[int, Collection[int]]],
    resources: Resources,
) -> tuple[dict[PatchKey, Patch], int]:
    """Form the patches of a prompt's chunks from one forward over it, up to the last chunk wanted.

    Args:
        wanted: for each key, the rank and the layers to patch.
        resources: where the chunks' canonical rows are.

    Returns:
        The patches by key, and the rows that were run.
    """
    adapter = executor.adapter
    places = [
        (PatchKey(model, chunk.id, prompt.antecedents(segment)), segment, chunk)
        for segment, chunk in prompt.chunk_segments
    ]
    places = [place for place in places if place[0] in wanted]
    part = prompt.until(max(segment.stop for _, segment, _ in places))
    plan = LinkPlan(
        "forming", part.tokens, len(adapter.layouts), tuple(computed(part, len(adapter.layouts), 0, part.tokens))
    )
    table = executor.run(plan, part, Resources({}, {})).table
    patches: dict[PatchKey, Patch] = {}
    for key, segment, chunk in places:
        rank, layers = wanted[key]
        if key not in patches:
            deficits = _deficits(adapter, table, part, segment, (chunk, resources.chunk_rows(chunk)), set(layers))
            patches[key] = form_patch(deficits, rank, adapter.dtype)
    return patches, part.tokens


def _deficits(
    adapter: Adapter,
    table: KVTable,
    prompt: Prompt,
    segment: Segment,
    canonical: tuple[Chunk, KVRows],
    layers: set[int],
) -> list[LayerRows | None]:
    chunk, rows = canonical
    source = PhaseBook(adapter.tables, chunk.encoded.positions.to(adapter.device))
    target = PhaseBook(adapter.tables, prompt.positions[:, segment.start : segment.stop].to(adapter.device))
    deficits: list[LayerRows | None] = []
    for index, layout in enumerate(adapter.layouts):
        if index not in layers:
            deficits.append(None)
            continue
        conditioned = unplace(table.read(index, segment.start, segment.stop), layout, target)
        deficits.append(deficit(conditioned, unplace(rows[index].to(adapter.device), layout, source)))
    return deficits
