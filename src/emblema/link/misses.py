"""Why media of a prompt were computed and not taken: one reason a piece, by which servers count."""

from collections.abc import Mapping
from dataclasses import dataclass

from emblema.link.lanes import MissReason
from emblema.link.plan import LinkPlan, RowSource
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment


@dataclass(frozen=True, slots=True)
class Miss:
    """One piece of media that was computed.

    Attributes:
        part: its number among the prompt's media.
        rows: how many it has.
        reason: why.
    """

    part: int
    rows: int
    reason: MissReason

    @property
    def data(self) -> tuple[int, int, str]:
        """It as reports have it."""
        return self.part, self.rows, str(self.reason)


def find_misses(
    prompt: Prompt, plan: LinkPlan, whole: MissReason | None = None, known: Mapping[str, MissReason] | None = None
) -> tuple[Miss, ...]:
    """Return the media of a prompt of which a plan takes no row. Media that have slid out are not asked for.

    Args:
        prompt: it.
        plan: what was carried out.
        whole: why all that the plan computes is computed, where that is known.
        known: reasons by a chunk's id, which come before the plan's own.
    """
    taken = [(part.start, part.stop) for part in plan.ranges if part.source is RowSource.TAKEN]
    decided = {own.start: own.miss for own in plan.decisions}
    found: list[Miss] = []
    for number, (segment, chunk) in enumerate(prompt.chunk_segments):
        part = segment.part
        assert isinstance(part, ChunkPart)
        if part.slid or any(start < segment.stop and segment.start < stop for start, stop in taken):
            continue
        reason = whole or (known or {}).get(chunk.id) or decided.get(segment.start) or _reason_of(segment)
        found.append(Miss(number, chunk.tokens, reason))
    return tuple(found)


def _reason_of(segment: Segment) -> MissReason:
    """Return why a chunk is computed of which nothing was decided."""
    part = segment.part
    assert isinstance(part, ChunkPart)
    return MissReason.NEW if part.state is RowState.MISSING else MissReason.STRATEGY
