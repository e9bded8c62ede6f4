"""Lanes: where a chunk's rows come from, and the decision for one of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from emblema.kv.keys import ArtifactKey
from emblema.link.miss_reasons import MissReason


class Lane(StrEnum):
    """Where a chunk's rows come from.

    Rows of the lanes up to `fresh` are as the model's own forward or the prompt gives them; `survivor` rows were
    written in a window after other antecedents than now. `patch` takes stored rows with the patch for these
    antecedents. `query` takes rows blind and computes those again that the question attends most. `changed` does so
    with the rows of a picture that differs little, and computes those that differ. `full` computes the rows in place.
    """

    PREFIX = "prefix"
    LEADING = "leading"
    SETTLED = "settled"
    SURVIVOR = "survivor"
    FRESH = "fresh"
    PATCH = "patch"
    QUERY = "query"
    CHANGED = "changed"
    FULL = "full"


TAKEN = (Lane.PATCH, Lane.QUERY, Lane.CHANGED)
"""Lanes whose fidelity has to be measured, the most faithful first."""
JUDGED = (*TAKEN, Lane.SURVIVOR, Lane.SETTLED)
"""Lanes whose rows may differ from re-prefill's; settled ones are measured, and taken all the same."""

Lanes = frozenset[tuple[str, Lane]]
"""Kinds of content, each with a lane."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A lane to measure for one kind of content: it is taken, open or closed, and no other lane is."""

    kind: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class LaneVerdict:
    """Whether a lane may be taken, and how that is known."""

    open: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One chunk's lane.

    Attributes:
        chunk: the chunk's id.
        kind: what the chunk is.
        start, stop: its rows in the prompt.
        lane: what was chosen.
        reason: why, in a few words.
        key: the patch that is added; None for the other lanes.
        rank: of the patch that is added.
        closed: lanes that could have been taken and were not trusted.
        miss: why its rows are computed; None where they are taken.
    """

    chunk: str
    kind: str
    start: int
    stop: int
    lane: Lane
    reason: str
    key: ArtifactKey | None = None
    rank: int = 0
    closed: tuple[Lane, ...] = ()
    miss: MissReason | None = None

    def __str__(self) -> str:
        return f"{self.start}-{self.stop} {self.kind} {self.chunk[:8]}: {self.lane}, {self.reason}"


def name_of(decisions: Iterable[Decision]) -> str:
    """Return the plan's name for usage: `auto:` and the lanes taken, in `Lane` order; `full` if all was computed."""
    lanes = {decision.lane for decision in decisions} - {Lane.FRESH}
    return "auto:" + ("+".join(lane for lane in Lane if lane in lanes) or "full")


def lanes_of(decisions: Iterable[Decision]) -> Lanes:
    """Return the kinds and lanes that an answer is compared for: those of rows kept after a slide alone, if any."""
    lanes = frozenset((decision.kind, decision.lane) for decision in decisions if decision.lane in JUDGED)
    return frozenset((kind, lane) for kind, lane in lanes if lane is Lane.SURVIVOR) or lanes


def measured_lanes(decisions: Iterable[Decision]) -> Lanes:
    """Return the kinds and lanes of taken rows, an answer over which has to be sure enough."""
    return frozenset((decision.kind, decision.lane) for decision in decisions if decision.lane in TAKEN)
