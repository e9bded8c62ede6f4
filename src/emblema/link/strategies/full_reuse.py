"""`full-reuse`, and un-relocated: MPIC's two-step baseline, after Prompt Cache (MPIC, sections 2.2 and 5.2)."""

from dataclasses import dataclass, replace

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, blind_text_first, plan_chunks, taken


@dataclass(frozen=True, slots=True)
class FullReuse:
    """First all text is computed, blind to every chunk; then the last token, over text and chunks as they are kept.

    The text has its places in the prompt in the first step too. The last token runs in the second step only: no row
    would attend what the first wrote for it. No knob. Cost: text computed, in two forwards; all chunks' KV read.

    With `relocated` False taken keys keep the phase they were written with, from position 0, as the paper stores them.
    """

    relocated: bool = True

    @property
    def name(self) -> str:
        return "full-reuse" + ("" if self.relocated else "-raw")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return taken(segment, chunk, knowledge.layers, relocated=self.relocated)

        plan = plan_chunks(self.name, prompt, knowledge, chunk_ranges)
        return replace(plan, ranges=blind_text_first(prompt, plan.ranges))
