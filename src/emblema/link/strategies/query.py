"""`query-R%`: rows taken blind, and those that the question attends most computed again in context."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan, Recomputation, RowRange
from emblema.link.policy.margins import DEFAULT
from emblema.link.prompt import ChunkPart, Prompt, Rows, RowState, Segment
from emblema.link.strategies.base import Knowledge, lay_out, taken

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class QueryStrategy:
    """Relocated chunks; the share of their rows that the question attends most is computed again, with the question.

    The first pass computes text over the rows as they are. Slid chunks are in the table until the end, as context for
    the rows that are computed again. Text between chunks is computed once. If the answer's first token is not sure
    enough after the second pass, the prompt is computed in full. Knob: R, of the rows of all visible chunks but one at
    row 0, which is exact. Cost: text, the question twice and R % of the rows computed; all chunks' KV read.

    Attributes:
        share: of the candidates, above 0 and at most 1.
        least_margin: see `Recomputation`; 0 takes any answer.
    """

    share: float
    least_margin: float = DEFAULT

    @property
    def name(self) -> str:
        return f"query-{self.share * 100:.12g}%"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return taken(segment, chunk, layers)

        ranges = lay_out(prompt, layers, chunk_ranges, in_context=True)
        plan = LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
        candidates = dict.fromkeys(unread_rows(prompt), self.share)
        return replace(plan, recomputation=recomputation(prompt, candidates, self.least_margin))


def unread_rows(prompt: Prompt) -> tuple[Rows, ...]:
    """Return the rows that may be chosen: of visible chunks with canonical rows, unless they are at row 0."""
    question = question_rows(prompt)
    return tuple(
        (segment.start, min(segment.stop, question[0]))
        for segment in prompt.segments
        if isinstance(segment.part, ChunkPart)
        and segment.part.state is RowState.CANONICAL
        and not segment.part.slid
        and 0 < segment.start < question[0]
    )


def question_rows(prompt: Prompt) -> Rows:
    """Return the rows after the last chunk; the last row alone where a chunk ends the prompt."""
    last = max((segment.stop for segment, _ in prompt.chunk_segments), default=0)
    return min(last, prompt.tokens - 1), prompt.tokens


def recomputation(prompt: Prompt, candidates: Mapping[Rows, float], least_margin: float) -> Recomputation | None:
    """Return the second pass over a share of the rows of each range; None without any. The best of all are chosen."""
    if not candidates:
        return None
    budget = ceil(sum(share * (stop - start) for (start, stop), share in candidates.items()) - ROUNDING)
    return Recomputation(tuple(candidates), budget, question_rows(prompt), least_margin=least_margin)
