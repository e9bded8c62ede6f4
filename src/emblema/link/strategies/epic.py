"""`epic-K`: LegoLink, the first K tokens of every chunk but the prompt's first computed again (EPIC, ICML 2025)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, lay_out, taken


@dataclass(frozen=True, slots=True)
class Epic:
    """Text and the first `tokens` rows of each chunk from the second on, in context and one forward.

    It is there to keep a chunk's beginning from being a second attention sink. EPIC spares the first chunk, which
    stands where a sink belongs; MPIC spares none, which is what the two differ in once both run in context. Knob: K,
    tokens a chunk. Cost: text and K rows a chunk computed; the other rows' KV read.
    """

    tokens: int

    @property
    def name(self) -> str:
        return f"epic-{self.tokens}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers
        first = prompt.chunk_segments[0][0].start if prompt.chunk_segments else 0

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            if segment.start == first:
                return taken(segment, chunk, layers)
            return first_computed(segment, chunk, layers, (self.tokens,) * layers)

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
