"""`orbit-M`: one patch for every ordering of the chunks before a chunk (Kamera, section 5)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.link.plan import LinkPlan, PatchUse, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks
from emblema.link.strategies.patch import PatchStrategy, patched


@dataclass(frozen=True, slots=True)
class OrbitStrategy:
    """Relocated chunks with a rank-`rank` patch of the deficit averaged over the orderings of the antecedents.

    Its key is the set of antecedents, so reordering them finds it again. It is formed over all orderings but the one
    that asks for it (all orderings of up to four chunks, a sample of more), one conditioned forward each, all counted.
    Where there is no second ordering it is the ordering's own patch. An order asked for later is one that it was
    averaged over. Knob: M. Cost: text computed; all chunks' KV and M (1/F + 1/n) of their bytes read.
    """

    rank: int

    @property
    def name(self) -> str:
        return f"orbit-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rank = PatchStrategy(rank=self.rank).rank_for(chunk.tokens, knowledge)
            key = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment), ArtifactKind.ORBIT)
            return patched(segment, chunk, knowledge.layers, PatchUse(key, rank))

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges)
