"""Why media of a prompt were computed and not taken: one reason a piece, by which servers count."""

from collections.abc import Mapping
from dataclasses import dataclass

from emblema.link.lanes import Decision
from emblema.link.miss_reasons import GONE, Cause, MissReason
from emblema.link.plan import LinkPlan, RowSource
from emblema.link.prompt import ChunkPart, Prompt, RowState

LONGEST_DETAIL = 200
"""Characters of a detail in a report."""
MissData = tuple[int, int, str, str]
"""A miss as reports have it: number, rows, reason, detail."""
_OPEN = (MissReason.NEW, MissReason.NOT_STORED, MissReason.NEW_ORDER)
"""What a plan decides of a chunk of which more may be known: why it has no rows, or no patch."""


@dataclass(frozen=True, slots=True)
class Miss:
    """One piece of media that was computed.

    Attributes:
        part: its number among the prompt's media.
        rows: how many it has.
        reason: why.
        detail: which byte, option or rule, in a few words; empty where no more is known.
    """

    part: int
    rows: int
    reason: MissReason
    detail: str = ""

    @property
    def data(self) -> MissData:
        """It as reports have it."""
        detail = "".join(letter if letter.isprintable() else "?" for letter in self.detail[:LONGEST_DETAIL])
        return self.part, self.rows, str(self.reason), detail


def find_misses(
    prompt: Prompt, plan: LinkPlan, whole: Cause | None = None, known: Mapping[str, Cause] | None = None
) -> tuple[Miss, ...]:
    """Return the media of a prompt of which a plan takes no row. Media that have slid out are not asked for.

    Args:
        prompt: it.
        plan: what was carried out.
        whole: why all that the plan computes is computed, where that is known.
        known: by a chunk's id, why the store has no rows of it, or had none.
    """
    taken = [(part.start, part.stop) for part in plan.ranges if part.source is RowSource.TAKEN]
    decided = {own.start: own for own in plan.decisions}
    found: list[Miss] = []
    for number, (segment, chunk) in enumerate(prompt.chunk_segments):
        part = segment.part
        assert isinstance(part, ChunkPart)
        if part.slid or any(start < segment.stop and segment.start < stop for start, stop in taken):
            continue
        own, cause = decided.get(segment.start), (known or {}).get(chunk.id)
        why = whole or _cause_of(part, own, cause) or Cause(MissReason.STRATEGY, plan.strategy)
        found.append(Miss(number, chunk.tokens, why.reason, why.detail))
    return tuple(found)


def _cause_of(part: ChunkPart, own: Decision | None, cause: Cause | None) -> Cause | None:
    """Return why a chunk is computed: by its decision, or as the store has no rows; None where neither says so."""
    miss = None if own is None else own.miss
    if own is not None and miss is not None and miss not in _OPEN:
        return Cause(miss, own.reason)
    # Its patches went with a chunk that was stored; another chunk's order is new whatever it was before.
    if cause is not None and (miss is not MissReason.NEW_ORDER or cause.reason in GONE):
        return cause
    if own is not None and miss is not None:
        return Cause(miss, "" if miss is MissReason.NEW else own.reason)
    return Cause(MissReason.NEW) if part.state is RowState.MISSING else None
