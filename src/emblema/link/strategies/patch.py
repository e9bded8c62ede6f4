"""`patch-M`, `patch-P%`, `patch-M-deep`: relocated chunks with a stored conditioning patch (Kamera, equation 1)."""

from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.kv.patch import rank_for_share
from emblema.link.plan import LinkPlan, PatchUse, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, taken
from emblema.store.keys import PatchKey


@dataclass(frozen=True, slots=True)
class PatchStrategy:
    """A rank-`rank` patch, or the largest rank within `share` of the chunk's bytes, on all layers or the deepest half.

    A chunk's patch is looked up by the model, the chunk and the ordered chunks before it. What is missing is listed in
    the plan's `forming`. A chunk at row 0 has absorbed nothing and is exact without one.
    """

    rank: int | None = None
    share: float | None = None
    deep: bool = False

    @property
    def name(self) -> str:
        knob = f"{self.rank}" if self.share is None else f"{self.share * 100:g}%"
        return f"patch-{knob}" + ("-deep" if self.deep else "")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        first = layers // 2 if self.deep else 0
        forming: list[PatchKey] = []
        bare: list[str] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rank = self.rank_for(chunk.tokens, knowledge)
            if rank == 0:
                bare.append(chunk.id)
                return taken(segment, chunk, layers)
            key = PatchKey(knowledge.model, chunk.id, prompt.antecedents(segment))
            patch = knowledge.find_patch(key)
            if patch is None or patch.rank < rank or not patch.covers(range(first, layers)):
                forming.append(key)
            return patched(taken(segment, chunk, layers), key, rank, first)

        ranges = lay_out(prompt, layers, chunk_ranges)
        remark = f"{len(bare)} chunks are too short for this share: taken without a patch" if bare else None
        return LinkPlan(self.name, prompt.tokens, layers, ranges, forming=tuple(forming), remark=remark)

    def rank_for(self, tokens: int, knowledge: Knowledge) -> int:
        """The rank for a chunk of so many tokens, at most full rank; 0 where not even one fits the share."""
        layouts = knowledge.layouts
        kept = range(len(layouts) // 2 if self.deep else 0, len(layouts))
        full = min(
            tokens,
            max(
                max(layouts[i].keys[0] * layouts[i].keys[1], layouts[i].values[0] * layouts[i].values[1]) for i in kept
            ),
        )
        wanted = self.rank if self.rank is not None else rank_for_share(self.share or 1.0, tokens, layouts, kept)
        return min(wanted, full)


def patched(ranges: list[RowRange], key: PatchKey, rank: int, first: int = 0) -> list[RowRange]:
    """Ranges taken in all layers with a patch added from layer `first` on."""
    kept: list[RowRange] = []
    for part in ranges:
        last = part.layers[1]
        kept += [replace(part, layers=(0, first))] if first else []
        kept.append(replace(part, layers=(first, last), patch=PatchUse(key, rank)))
    return kept
