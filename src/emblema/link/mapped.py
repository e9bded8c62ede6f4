"""Which plans maps of a state serve: a map stands for all rows of a chunk but the first few."""

from collections.abc import Sequence

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerLayout, MappedRows
from emblema.link.plan import ChunkOrigin, LinkPlan
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment


def mapped_layers(layouts: Sequence[LayerLayout], tokens: int) -> frozenset[int]:
    """Return the layers in which a chunk of so many tokens keeps a map of the state in place of its rows."""
    return frozenset(layer for layer, layout in enumerate(layouts) if layout.is_mapped(tokens))


def is_mapped(layouts: Sequence[LayerLayout], tokens: int) -> bool:
    """Return whether a chunk of so many tokens keeps a map of the state in place of its rows in any layer."""
    return any(layout.is_mapped(tokens) for layout in layouts)


def cut_map(plan: LinkPlan, prompt: Prompt, layouts: Sequence[LayerLayout]) -> str | None:
    """Return why a plan asks for less than all of a map, or None where it does not.

    In each layer a chunk is taken from some row on to its end; rows before that are computed, and read the state. Those
    of them that the map stands for as well leave in the state what they left where they were captured.
    """
    for segment, chunk in _mapped_chunks(plan, prompt, layouts):
        codes = plan.sources()[sorted(mapped_layers(layouts, chunk.tokens)), segment.start : segment.stop]
        taken = (codes == 1) | (codes == 2)
        if (taken[:, :-1] & ~taken[:, 1:]).any():
            return _remark(segment, "rows in its midst or at its end are computed while others are taken")
        chosen = [rows for selector in plan.selectors for rows in selector.candidates]
        if any(first < segment.stop and segment.start < stop for first, stop in chosen):
            return _remark(segment, "rows are chosen between layers")
        single = set() if plan.recomputation is None else {*plan.recomputation.candidates} - {*plan.recomputation.whole}
        if any(segment.start <= first < segment.stop for first, _ in single):
            return _remark(segment, "rows are chosen one by one")
    return None


def _mapped_chunks(plan: LinkPlan, prompt: Prompt, layouts: Sequence[LayerLayout]) -> list[tuple[Segment, Chunk]]:
    """Return the chunks that a plan takes canonical rows of, and that keep a map in some layer."""
    taken = {part.origin.chunk for part in plan.ranges if isinstance(part.origin, ChunkOrigin)}
    return [
        (segment, part.chunk)
        for (segment, _), part in zip(prompt.chunk_segments, prompt.chunk_parts, strict=True)
        if part.chunk.id in taken and is_mapped(layouts, part.tokens) and _may_hold_map(part)
    ]


def _may_hold_map(part: ChunkPart) -> bool:
    """Return whether a part's rows may be kept as a map: those that a window wrote are known."""
    return part.state is RowState.CANONICAL or any(isinstance(rows, MappedRows) for rows in part.chunk.rows)


def _remark(segment: Segment, why: str) -> str:
    return f"rows {segment.start} to {segment.stop} are kept as a map of linear attention's state: {why}"
