"""`orbit-M`: one patch for every ordering of the chunks in front (Kamera, section 5)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, taken
from emblema.link.strategies.patch import PatchStrategy, patched
from emblema.store.keys import PatchKey, orbit_key


@dataclass(frozen=True, slots=True)
class Orbit:
    """Relocated chunks with a rank-`rank` patch of the deficit averaged over the orderings of what stands before.

    Its key is the set of antecedents, so reordering them finds it again. It is formed over all orderings but the one
    that asks for it, of up to four chunks all and of more a sample, one conditioned forward each, all counted. Where
    there is no second ordering it is the ordering's own patch. An order asked for later is one that it was averaged
    over; with `strict`, for a bench that asks in several, each has a patch of its own that leaves it out. Knob: M.
    Cost: text computed; all chunks' KV and M (1/F + 1/n) of their bytes read.
    """

    rank: int
    strict: bool = False

    @property
    def name(self) -> str:
        return f"orbit-{self.rank}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        forming: list[PatchKey] = []

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            rank = PatchStrategy(rank=self.rank).rank_for(chunk.tokens, knowledge)
            key = orbit_key(knowledge.model, chunk.id, prompt.antecedents(segment), strict=self.strict)
            patch = knowledge.find_patch(key)
            if patch is None or patch.rank < rank or not patch.covers(range(layers)):
                forming.append(key)
            return patched(taken(segment, chunk, layers), key, rank)

        ranges = lay_out(prompt, layers, chunk_ranges)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, forming=tuple(dict.fromkeys(forming)))
