"""`epic-K`: LegoLink, the first K tokens of every chunk computed again (EPIC, ICML 2025)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, lay_out


@dataclass(frozen=True, slots=True)
class Epic:
    """Text and the first `tokens` rows of each chunk that does not begin the prompt, in context and one forward.

    It keeps a chunk's beginning from being a second attention sink. EPIC links consecutive chunks and a query; with
    text in between and the single step that MPIC adds, which all methods have here, both choose the same rows (Kamera's
    table 6 has them in one line). Knob: K, tokens a chunk. Cost: text and K rows a chunk computed; the other rows' KV
    read.
    """

    tokens: int

    @property
    def name(self) -> str:
        return f"epic-{self.tokens}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return first_computed(segment, chunk, layers, (self.tokens,) * layers)

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
