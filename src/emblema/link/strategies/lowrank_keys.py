"""`lowrank-k-M`: keys rebuilt from rank-M factors, values as they are (ShadowKV-style; Kamera, table 6)."""

from dataclasses import dataclass

from emblema.kv.artifacts import KeyFactors
from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out
from emblema.store.keys import ArtifactKind, PatchKey


@dataclass(frozen=True, slots=True)
class LowRankKeys:
    """Blind reuse whose keys come from the leading `rank` directions of the chunk's own, position taken out first.

    It spends its bytes on what the canonical rows have already, not on what they lack, and is there as that control.
    An MLA layer's position-free key is its latent, which is its value as well. Knob: M. Cost: text computed; M (1/F +
    1/n) of the keys' bytes and all values read. The factors are formed from the kept rows, without a forward.
    """

    rank: int

    @property
    def name(self) -> str:
        return f"lowrank-k-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        forming: list[PatchKey] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            key = PatchKey(knowledge.model, chunk.id, kind=ArtifactKind.KEYS)
            rank = min(self.rank, chunk.tokens, max(one.keys[0] * one.keys[1] for one in knowledge.layouts))
            held = knowledge.find_artifact(key)
            if not isinstance(held, KeyFactors) or held.rank < rank:
                forming.append(key)
            use = PatchUse(key, rank)
            return [RowRange(*segment.rows, RowSource.TAKEN, (0, layers), ChunkOrigin(chunk.id), use)]

        ranges = lay_out(prompt, layers, chunk_ranges)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, forming=tuple(dict.fromkeys(forming)))
