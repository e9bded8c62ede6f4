"""`basis-M`: a patch on directions pooled over other items, only its coefficients the item's (Kamera, section 4)."""

from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, PatchUse, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks
from emblema.link.strategies.patch import PatchStrategy, patched
from emblema.store.keys import ArtifactKey, ArtifactKind


@dataclass(frozen=True, slots=True)
class Basis:
    """Relocated chunks with the deficit projected on `rank` directions a layer that other items' patches share.

    The pool is the patches formed before for other chunks of the same model, at most 32 of them; an item's own patch is
    kept as its share in it. The first item finds no pool and takes its own patch, which the reply says. Knob: M. Cost:
    text computed; all chunks' KV and M/F of their bytes read. The directions are the model's, and their bytes no
    item's.
    """

    rank: int

    @property
    def name(self) -> str:
        return f"basis-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        alone: list[str] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rank = PatchStrategy(rank=self.rank).rank_for(chunk.tokens, knowledge)
            own = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment))
            use = PatchUse(replace(own, kind=ArtifactKind.BASIS, rank=rank), rank)
            stored = knowledge.find_patch(use.key)
            if stored is not None:
                use = replace(use, rank=min(rank, stored.rank))
            elif knowledge.others(use.key) == 0:
                alone.append(chunk.id)
                use = PatchUse(own, rank)
            return patched(segment, chunk, knowledge.layers, use)

        plan = plan_chunks(self.name, prompt, knowledge, chunk_ranges)
        remark = f"{len(alone)} chunks found no other item's directions: taken with their own patch" if alone else None
        return replace(plan, remark=remark)
