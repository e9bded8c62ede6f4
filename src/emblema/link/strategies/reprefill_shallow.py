"""`reprefill-shallow-F`: the shallowest share of the layers run again, deep KV reused (Kamera, appendix D)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, share_of


@dataclass(frozen=True, slots=True)
class ReprefillShallow:
    """Every chunk row is computed in context in the shallowest `percent` of the layers, and taken above.

    The refresh that misses where the deficit lives. Knob: F in percent of layers, rounded, one at least. Cost: text,
    and chunk rows in the shallow layers computed; deep KV read.
    """

    percent: float

    @property
    def name(self) -> str:
        return f"reprefill-shallow-{self.percent:.12g}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        cut = share_of(layers, self.percent)

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            shallow = RowRange(*segment.rows, RowSource.COMPUTED, (0, cut))
            if cut == layers:
                return [shallow]
            return [shallow, RowRange(*segment.rows, RowSource.TAKEN, (cut, layers), ChunkOrigin(chunk.id))]

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
