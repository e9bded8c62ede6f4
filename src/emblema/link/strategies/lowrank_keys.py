"""`lowrank-k-M`: keys rebuilt from rank-M factors, values as they are (ShadowKV-style; Kamera, table 6)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, plan_chunks
from emblema.store.keys import ArtifactKey, ArtifactKind


@dataclass(frozen=True, slots=True)
class LowRankKeys:
    """Blind reuse whose keys come from the leading `rank` directions of the chunk's own, position taken out first.

    A control: it spends its bytes on what the canonical rows have already, not on what they lack. An MLA layer's
    position-free key is its latent, which is its value as well. Knob: M. Cost: text computed; M (1/F + 1/n) of the
    keys' bytes and all values read. The factors are formed from the kept rows, without a forward.
    """

    rank: int

    @property
    def name(self) -> str:
        return f"lowrank-k-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        widest = max(layout.keys[0] * layout.keys[1] for layout in knowledge.layouts)

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            key = ArtifactKey(knowledge.model, chunk.id, kind=ArtifactKind.KEYS)
            use, origin = PatchUse(key, min(self.rank, chunk.tokens, widest)), ChunkOrigin(chunk.id)
            return [RowRange(*segment.rows, RowSource.TAKEN, (0, knowledge.layers), origin, use)]

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges)
