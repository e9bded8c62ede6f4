"""`mpic-K`, `epic-K`, `sink`: the first K tokens of every chunk computed again. Three papers, one plan."""

from dataclasses import dataclass
from typing import Literal

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, RowRange
from emblema.link.prompt import Prompt, Segment
from emblema.link.strategies.base import Knowledge, first_computed, plan_chunks

SINK_TOKENS = 4
"""The number that StreamingLLM found to hold the attention sink (ICLR 2024, section 3)."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """All text and the first `tokens` rows of each chunk that does not begin the prompt, run in one forward.

    Knob: K, tokens a chunk, markers included. Cost: text and K rows a chunk computed; the other rows' KV read.

    - `mpic-K`, `mpic-all` (MPIC, section 4): the paper's dummy cache is the table itself. Rows of text have their slots
      from the start and are written by the forward that first attends them, so there is one step.
    - `epic-K` (LegoLink; EPIC, ICML 2025): keeps a chunk's beginning from being a second attention sink. With text in
      between and MPIC's single step, which all methods have here, both choose the same rows (one line of Kamera's table
      6).
    - `sink` (Kamera, section 6): a uniform attention sink. Kamera does not give its size; `SINK_TOKENS` is
      StreamingLLM's.

    Attributes:
        method: whose name the plan has.
        tokens: K; None for every row of a chunk.
    """

    method: Literal["mpic", "epic", "sink"]
    tokens: int | None = SINK_TOKENS

    @property
    def name(self) -> str:
        if self.method == "sink":
            return "sink"
        return f"{self.method}-{'all' if self.tokens is None else self.tokens}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            count = chunk.tokens if self.tokens is None else self.tokens
            return first_computed(segment, chunk, knowledge.layers, (count,) * knowledge.layers)

        return plan_chunks(self.name, prompt, knowledge, chunk_ranges, in_context=True)
