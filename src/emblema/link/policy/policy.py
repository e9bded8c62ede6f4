"""What `auto` decides by: the bounds it keeps, the lanes it chooses from, its decisions, and what it may ask."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from emblema.errors import EmblemaError
from emblema.link.policy.margins import DEFAULT
from emblema.link.prompt import Prompt
from emblema.store.keys import ArtifactKey


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of `auto` on fidelity, and on what forming and checking may cost.

    Attributes:
        max_kl: mean divergence from re-prefill at the answer's first token that a lane may have, in nats; 0 takes exact
            rows only; None for no bound.
        min_agreement: share of answers whose first token has to be re-prefill's; 1 takes exact rows only; None for no
            bound.
        canary: share of the linked requests that are computed again to compare; 0 turns it off.
        canary_rows: most rows computed for that, as a share of the rows computed for answers.
        drift: share of the antecedents that may be gone, or present twice, for a stored patch to be used.
        forming: whether patches are formed in the background from rows that were computed in context.
        sightings: how often a chunk has to be met after the same antecedents for a patch to be formed.
        recurring: whether a chunk that comes again after the same antecedents is computed, to leave such a patch; else
            it is served by pairs or by the question as in any other combination, and leaves a patch only where it is
            computed anyway.
        rank: of those patches; None for the largest whose bytes are `share` of the chunk's.
        share: see `rank`; also how large a stored patch has to be for `auto` to take it.
        refresh_rank: of an update to a stored patch.
        forming_bytes: most bytes of rows that wait to be formed into patches; rows beyond that are not formed.
        forming_seconds: most CPU seconds that forming takes in a minute; None for no bound.
        learning_share: seconds of the processor that go into the memory of pairs and into checks, over those of linking
            prompts, at most; None for no bound. Checks are counted, and not held back by it.
        learning_ahead: what so many answers will earn of that share may be spent in advance, on what is new.
        query_share: share of the rows of pages in an unknown combination that are computed again for a question; 0
            computes such pages in full.
        pair_share: the same share for pages that were met with each of those before them: what they take from these is
            remembered. 0 learns nothing of pairs, and serves none.
        query_margin: how far apart the probabilities of the two likeliest first tokens have to be for such an answer to
            stand; the prompt is computed in full otherwise. None: 0.5, and what is learnt from then on.
        inline_media_rows: rows prefilled alone after answers, of media that came with a prompt for the second time, as
            a share of the rows computed for answers, at most; 0 leaves them as they come, as does `forming` off.
        inline_media_at_once: whether that is done when they come for the first time.

    Raises:
        EmblemaError: a bound is out of range.
    """

    max_kl: float | None = 0.05
    min_agreement: float | None = None
    canary: float = 0.01
    canary_rows: float = 0.05
    drift: float = 1 / 3
    forming: bool = True
    sightings: int = 2
    recurring: bool = False
    rank: int | None = None
    share: float = 0.25
    refresh_rank: int = 32
    forming_bytes: int = 256 * 2**20
    forming_seconds: float | None = 3.0
    learning_share: float | None = 0.05
    learning_ahead: int = 512
    query_share: float = 0.12
    pair_share: float = 0.03
    query_margin: float | None = None
    inline_media_rows: float = 1.0
    inline_media_at_once: bool = False

    def __post_init__(self) -> None:
        for name, low, high, optional in _RANGES:
            value = getattr(self, name)
            if value is None and optional:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            if not number or not low <= value <= high:
                raise EmblemaError(f"policy: {name} is {value!r}: give a number from {low:g} to {high:g}")
        for name in ("rank", "sightings", "refresh_rank", "forming_bytes", "learning_ahead"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), int):
                raise EmblemaError(f"policy: {name} is {getattr(self, name)!r}: give a whole number")
        if not self.share > 0:
            raise EmblemaError("policy: share is 0: give more, up to 1")

    @classmethod
    def quiet(cls) -> Self:
        """Return a policy without background work (no forming, no canary), for measurements it would disturb."""
        return cls(canary=0, forming=False)

    def keeping(self) -> Self:
        """Return the policy for prompts that will come again: what is unknown is computed in full and kept at once."""
        return replace(self, sightings=1, query_share=0, pair_share=0, inline_media_at_once=True)

    @property
    def exact_only(self) -> bool:
        """Whether the bounds leave no room for rows that are not exact."""
        return self.max_kl == 0 or self.min_agreement == 1


_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("max_kl", 0, math.inf, True),
    ("min_agreement", 0, 1, True),
    ("canary", 0, 1, False),
    ("canary_rows", 0, math.inf, False),
    ("drift", 0, 1, False),
    ("sightings", 1, 15, False),
    ("rank", 1, 65_536, True),
    ("share", 0, 1, False),
    ("refresh_rank", 1, 65_536, False),
    ("forming_bytes", 0, math.inf, False),
    ("forming_seconds", 0, math.inf, True),
    ("learning_share", 0, math.inf, True),
    ("learning_ahead", 0, math.inf, False),
    ("query_share", 0, 1, False),
    ("pair_share", 0, 1, False),
    ("query_margin", 0, 1, True),
    ("inline_media_rows", 0, math.inf, False),
)


class Lane(StrEnum):
    """Where a chunk's rows come from.

    Rows of the lanes up to `fresh` are as the model's own forward or the prompt gives them; `survivor` rows were
    written in a window after other antecedents than now. `patch`, `orbit`, `drift` and `bare` take stored rows.
    `query` takes rows blind and computes those again that the question attends most; `pair` takes rows with what they
    are known to take from single antecedents, and computes fewer of them again. `refresh` and `full` compute the
    rows in place, `refresh` where a stored patch can be updated.
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
    PAIR = "pair"
    QUERY = "query"
    REFRESH = "refresh"
    FULL = "full"


TAKEN = (Lane.PATCH, Lane.ORBIT, Lane.DRIFT, Lane.BARE, Lane.PAIR, Lane.QUERY)
"""Lanes whose fidelity has to be measured, the most faithful first."""

REPEATED = (Lane.PAIR, Lane.QUERY)
"""Lanes with a second pass."""

COMPUTED = (Lane.REFRESH, Lane.FULL)
"""Lanes that `auto` computes because nothing better is known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One chunk's lane.

    Attributes:
        chunk: the chunk's id.
        kind: what the chunk is.
        start, stop: its rows in the prompt.
        lane: what was chosen.
        reason: why, in a few words.
        key: the patch that is added, or that a refresh updates; None for the other lanes.
        rank: of the patch that is added.
        closed: lanes that could have been taken and were not trusted.
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

    def __str__(self) -> str:
        return f"{self.start}-{self.stop} {self.kind} {self.chunk[:8]}: {self.lane}, {self.reason}"


def name_of(decisions: tuple[Decision, ...]) -> str:
    """Return the plan's name for usage: `auto:` and the lanes taken, in `Lane` order; `full` if all was computed."""
    lanes = {decision.lane for decision in decisions} - {Lane.FRESH}
    return "auto:" + ("+".join(lane for lane in Lane if lane in lanes) or "full")


@dataclass(frozen=True, slots=True)
class LaneVerdict:
    """Whether a lane may be taken, and how that is known."""

    open: bool
    reason: str


def unmeasured(kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
    """Return the verdict on a lane that was not measured: a patch made for these antecedents is taken, no other lane.

    A patch that still holds what it absorbed of a page now gone may do more harm than none, and ids do not tell which
    page mattered; so `drift` is open unmeasured only where there is no bound to break. Survivors of a window are taken:
    the paper measured them to be near-lossless (Kamera, section 5).
    """
    if policy.exact_only:
        return LaneVerdict(False, "the bound takes exact rows only")
    if lane is Lane.BARE:
        return LaneVerdict(False, f"{kind} was not measured to show no gap")
    if lane is Lane.DRIFT and (policy.max_kl is not None or policy.min_agreement is not None):
        return LaneVerdict(False, f"{kind} was not measured to bear it")
    return LaneVerdict(True, "not measured yet")


UNSURE = 0.1
"""Share of the prompts with a second pass that are not sure enough, where that was not measured."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """What linking costs beside computed rows, in computed rows; the defaults hold where nothing was measured yet.

    Attributes:
        forward: a forward.
        taken: a row that is read, relocated and perhaps patched.
    """

    forward: float = 64.0
    taken: float = 0.1


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What a plan of `auto` is decided by.

    Attributes:
        policy: the engine's; a request may bring its own.
        verdict: returns whether a lane may be taken for a kind of content, under a policy.
        gain: returns the seconds that taking a chunk's rows saves over computing them, from the number of rows and the
            bytes of the patch; None where that is not known yet.
        plateau: rank from which on the model's patches were measured not to gain; None where that is not known.
        recurs: returns whether a chunk was met before after just these antecedents, from their ids, the chunk's last.
        unsure: returns the share of the prompts with a second pass that had to be computed in full after all.
        least_margin: returns the margin that an answer about some kinds of content has to have after a second pass.
        row_costs: returns what a forward costs beside its rows, and what a taken row costs, both in computed rows.
        knows_pairs: returns whether a chunk was met often enough with each of its antecedents, from a key of the kind
            PAIRS.
        continued: returns the share of new prompts like one that a later prompt began with.
    """

    policy: Policy = Policy()
    verdict: Callable[[str, Lane, Policy], LaneVerdict] = unmeasured
    gain: Callable[[int, int], float | None] = lambda rows, patch_bytes: None
    plateau: int | None = None
    recurs: Callable[[Sequence[str]], bool] = lambda names: False
    unsure: Callable[[], float] = lambda: UNSURE
    least_margin: Callable[[Collection[str]], float] = lambda kinds: DEFAULT
    row_costs: Callable[[], RowCosts] = lambda: RowCosts()
    knows_pairs: Callable[[ArtifactKey], bool] = lambda key: False
    continued: Callable[[Prompt], float] = lambda prompt: 0.0
