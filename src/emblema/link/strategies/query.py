"""`query-R%`: rows taken blind, and those that the question attends most computed again in context."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from math import ceil

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerLayout
from emblema.link.mapped import is_mapped
from emblema.link.plan import LinkPlan, Recomputation, RowRange
from emblema.link.policy.certificate import PROVISIONAL
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
        least_margin: see `LinkPlan`.
        kept: whether rows before which something has left may be chosen too, as for a conversation that asks for its
            rows.
    """

    share: float
    least_margin: float | None = PROVISIONAL
    kept: bool = False

    @property
    def name(self) -> str:
        return f"query-{self.share * 100:.12g}%"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        layers = knowledge.layers

        def chunk_ranges(segment: Segment, chunk: Chunk) -> list[RowRange]:
            return taken(segment, chunk, layers)

        ranges = lay_out(prompt, knowledge, chunk_ranges, in_context=True)
        plan = LinkPlan(self.name, prompt.tokens, layers, ranges, leaving=prompt.slid_rows)
        kept = left_rows(prompt) if self.kept else ()
        candidates = tuple(sorted((*unread_rows(prompt, knowledge.anchor), *kept)))
        again = recomputation(prompt, candidates, self.share, knowledge.layouts)
        return replace(plan, recomputation=again, least_margin=None if again is None else self.least_margin)


def unread_rows(
    prompt: Prompt, anchor: tuple[int, ...] = (), new: Container[str] = (), among: Container[int] | None = None
) -> tuple[Rows, ...]:
    """Return the rows that may be chosen: of visible chunks with canonical rows, but for one right after the anchor.

    Of a picture that differs little from a stored one they are those that are the same; right after the anchor, those
    behind the first that differs.

    Args:
        prompt: the prompt.
        anchor: token ids that canonical rows were prefilled after.
        new: ids of chunks that count as having canonical rows, as they will be prefilled.
        among: first rows of the chunks that are asked about; None for all.
    """
    question = prompt.question_rows[0]
    found: list[Rows] = []
    for segment in prompt.segments:
        part = segment.part
        if not isinstance(part, ChunkPart) or part.slid or (among is not None and segment.start not in among):
            continue
        leads = prompt.leads(segment, anchor)
        if part.changed is not None and part.chunk.id not in new:
            first = part.changed.rows[0][0] if leads and _is_causal(part.chunk) else 0
            same = [(start, stop) for start, stop in part.changed.same_rows if start >= first]
            found += [(segment.start + start, segment.start + stop) for start, stop in same]
        elif (part.state is RowState.CANONICAL or part.chunk.id in new) and not leads:
            found.append(segment.rows)
    return tuple((start, min(stop, question)) for start, stop in found if start < question)


def left_rows(prompt: Prompt) -> tuple[Rows, ...]:
    """Return the kept rows before which something has left since the request before, up to the question.

    A second pass is kept too: what it corrects once stays so.
    """
    question = prompt.question_rows[0]
    return tuple(
        (segment.start, min(segment.stop, question))
        for segment in prompt.segments
        if isinstance(segment.part, ChunkPart) and segment.part.left_since and segment.start < question
    )


def _is_causal(chunk: Chunk) -> bool:
    """Return whether none of a chunk's rows attends later ones."""
    return bool((chunk.encoded.groups < 0).all())


def recomputation(
    prompt: Prompt, candidates: tuple[Rows, ...], share: float, layouts: Sequence[LayerLayout] = ()
) -> Recomputation | None:
    """Return the second pass over a share of the rows of some ranges, the best of all; None without any.

    Chunks that keep a map of a state are computed whole or not at all: the share is of at least the longest of them.
    Of pictures that differ from stored ones, the rows that differ are computed in any case and count as chosen.
    """
    if not candidates:
        return None
    whole = tuple((start, stop) for start, stop in candidates if is_mapped(layouts, stop - start))
    differing = _differing_rows(prompt, candidates)
    budget = ceil(share * (differing + sum(stop - start for start, stop in candidates)) - ROUNDING) - differing
    longest = max((stop - start for start, stop in whole), default=0)
    if differing and budget <= 0:
        return None
    return Recomputation(candidates, max(budget, longest), prompt.question_rows, whole)


def _differing_rows(prompt: Prompt, candidates: tuple[Rows, ...]) -> int:
    """Return how many rows differ from stored ones, of the pictures that some candidates are of."""
    total = 0
    for segment in prompt.segments:
        changed = segment.part.changed if isinstance(segment.part, ChunkPart) else None
        if changed is not None and any(segment.start <= start < segment.stop for start, _ in candidates):
            total += sum(stop - start for start, stop in changed.rows)
    return total
