"""`patch-M`, `patch-P%`, `patch-M-deep`: relocated chunks with a stored conditioning patch (Kamera, equation 1)."""

from dataclasses import dataclass, replace
from functools import lru_cache

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerLayout
from emblema.kv.patch import rank_for_share
from emblema.link.plan import LinkPlan, PatchUse, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks, taken


@dataclass(frozen=True, slots=True)
class PatchStrategy:
    """A rank-`rank` patch, or the largest rank within `share` of the chunk's bytes, on all layers or the deepest half.

    A chunk's patch is found by the model, the chunk and the ordered chunks before it. A chunk at row 0 has absorbed
    nothing and is exact without one.
    """

    rank: int | None = None
    share: float | None = None
    deep: bool = False

    @property
    def name(self) -> str:
        knob = f"{self.rank}" if self.share is None else f"{self.share * 100:g}%"
        return f"patch-{knob}" + ("-deep" if self.deep else "")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        first = knowledge.layers // 2 if self.deep else 0
        unpatched: list[str] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rank = self.rank_for(chunk.tokens, knowledge)
            if rank == 0:
                unpatched.append(chunk.id)
                return taken(segment, chunk, knowledge.layers)
            key = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment))
            return patched(segment, chunk, knowledge.layers, PatchUse(key, rank, even=self.deep), first)

        plan = plan_chunks(self.name, prompt, knowledge, chunk_ranges)
        remark = f"{len(unpatched)} chunks are too short for this share: taken without a patch" if unpatched else None
        return replace(plan, remark=remark)

    def rank_for(self, tokens: int, knowledge: Knowledge) -> int:
        """Return the rank for a chunk of so many tokens, at most full rank; 0 where not even one fits the share."""
        return _rank_for(self, tokens, knowledge.layouts)


@lru_cache(maxsize=256)
def _rank_for(strategy: PatchStrategy, tokens: int, layouts: tuple[LayerLayout, ...]) -> int:
    layers = range(len(layouts) // 2 if strategy.deep else 0, len(layouts))
    patched = [layout for layout in layouts[layers.start :] if not layout.is_mapped(tokens)]
    slots = [slot for layout in patched for slot in (layout.keys, layout.values)]
    share = strategy.share or 1.0
    wanted = strategy.rank if strategy.rank is not None else rank_for_share(share, tokens, layouts, layers)
    return min(wanted, tokens, max((heads * width for heads, width in slots), default=0))


def patched(segment: Segment, chunk: Chunk, layers: int, use: PatchUse, first: int = 0) -> list[RowRange]:
    """Return a whole chunk taken in all layers, with a patch added from layer `first` on."""
    (rows,) = taken(segment, chunk, layers)
    plain = [replace(rows, layers=(0, first))] if first else []
    return [*plain, replace(rows, layers=(first, layers), patch=use)]
