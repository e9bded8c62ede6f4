"""What `auto` decided for each chunk of a prompt, and why. Plain data."""

from dataclasses import dataclass
from enum import StrEnum

from emblema.store.keys import PatchKey


class Lane(StrEnum):
    """Where a chunk's rows come from.

    Up to `fresh` they are as the model's own forward, or as the prompt says; `survivor`: as a window wrote them behind
    other antecedents than now. `patch`, `orbit`, `drift` and `bare` take stored rows; `refresh` and `full` compute the
    rows in their place, the first where a stored patch can be updated.
    """

    PREFIX = "prefix"
    LEADING = "leading"
    SETTLED = "settled"
    SURVIVOR = "survivor"
    FRESH = "fresh"
    PATCH = "patch"
    ORBIT = "orbit"
    DRIFT = "drift"
    BARE = "bare"
    REFRESH = "refresh"
    FULL = "full"


TAKEN = (Lane.PATCH, Lane.ORBIT, Lane.DRIFT, Lane.BARE)
"""Lanes whose fidelity is a matter of measurement, the most faithful first."""

COMPUTED = (Lane.REFRESH, Lane.FULL)
"""Lanes that `auto` computes because nothing better is known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One chunk's lane.

    Attributes:
        chunk: its id.
        kind: what the chunk is.
        start, stop: its rows in the prompt.
        lane: what was chosen.
        reason: why, in a few words.
        key: the patch that is added, or that a refresh updates; None for the others.
        rank: of the patch that is added.
        closed: lanes that had something to take and were not trusted.
    """

    chunk: str
    kind: str
    start: int
    stop: int
    lane: Lane
    reason: str
    key: PatchKey | None = None
    rank: int = 0
    closed: tuple[Lane, ...] = ()

    def __str__(self) -> str:
        return f"{self.start}-{self.stop} {self.kind} {self.chunk[:8]}: {self.lane}, {self.reason}"


def name_of(decisions: tuple[Decision, ...]) -> str:
    """What usage says of a plan: `auto:` and the lanes taken, in the order above; `full` where all was computed."""
    lanes = {one.lane for one in decisions} - {Lane.FRESH}
    return "auto:" + ("+".join(lane for lane in Lane if lane in lanes) or "full")
