"""`full-reuse`, and un-relocated: MPIC's two-step baseline, after Prompt Cache (MPIC, sections 2.2 and 5.2)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, blind_text_first, lay_out, taken


@dataclass(frozen=True, slots=True)
class FullReuse:
    """First all text is computed, blind to every chunk; then the last token, over text and chunks as they are kept.

    The text stands at its places in the prompt in the first step too. The last token runs in the second step only: what
    the first would write for it nobody attends. No knob. Cost: text computed, in two forwards; all chunks' KV read.

    With `relocated` False taken keys keep the phase they were written with, from position 0, as the paper stores them.
    """

    relocated: bool = True

    @property
    def name(self) -> str:
        return "full-reuse" + ("" if self.relocated else "-raw")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return taken(segment, chunk, knowledge.layers, relocated=self.relocated)

        ranges = blind_text_first(prompt, lay_out(prompt, knowledge.layers, chunk_ranges))
        return LinkPlan(self.name, prompt.tokens, knowledge.layers, ranges)
