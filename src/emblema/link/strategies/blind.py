"""`blind`: every chunk taken as it was prefilled alone, only relocated. The floor (Kamera section 2)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, lay_out, taken


@dataclass(frozen=True, slots=True)
class Blind:
    """Loses what chunks absorb from each other; single-hop readout stays intact."""

    @property
    def name(self) -> str:
        return "blind"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return taken(segment, chunk, knowledge.layers)

        return LinkPlan(self.name, prompt.tokens, knowledge.layers, lay_out(prompt, knowledge.layers, chunk_ranges))
