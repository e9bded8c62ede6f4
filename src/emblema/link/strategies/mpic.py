"""`mpic-K`, `mpic-all`, and both un-relocated: the first K tokens of every chunk computed again (MPIC, section 4)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, lay_out


@dataclass(frozen=True, slots=True)
class Mpic:
    """All text and the first `tokens` rows of each chunk, every row where None, run in one forward over linked rows.

    The paper's dummy cache is the table itself: rows of text have their slots from the start and are written by the
    forward that first attends them, so that there is one step. Knob: K, tokens a chunk, markers included. Cost: text
    and K rows a chunk computed; the other rows' KV read.

    With `relocated` False taken keys keep the phase they were written with, from position 0, as the paper stores them.
    """

    tokens: int | None
    relocated: bool = True

    @property
    def name(self) -> str:
        return f"mpic-{'all' if self.tokens is None else self.tokens}" + ("" if self.relocated else "-raw")

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            count = chunk.tokens if self.tokens is None else self.tokens
            return first_computed(segment, chunk, layers, (count,) * layers, relocated=self.relocated)

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
