"""`sink`: a uniform attention sink, the first four tokens of every chunk computed again (Kamera, section 6)."""

from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, lay_out

SINK_TOKENS = 4
"""The number that StreamingLLM found to hold the sink (ICLR 2024, section 3)."""


@dataclass(frozen=True, slots=True)
class Sink:
    """The least that a boundary fix can do: text and four rows a chunk computed in context, whatever its length.

    Kamera names the baseline and not its size; four are StreamingLLM's. No knob. Cost: text and four rows a chunk
    computed; the other rows' KV read.
    """

    @property
    def name(self) -> str:
        return "sink"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return first_computed(segment, chunk, layers, (SINK_TOKENS,) * layers)

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        return LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
