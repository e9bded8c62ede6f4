"""The bounds that `auto` keeps."""

import math
from dataclasses import dataclass, replace
from typing import Self

from emblema.errors import EmblemaError
from emblema.kv.patch import LEAST_KEPT


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of `auto` on fidelity, and on what forming and checking may cost.

    Attributes:
        alpha: share of the answers that were not computed in full whose first token may differ from re-prefill's; 0
            takes exact rows only; None for no bound.
        delta: chance that more of them differ, where a margin was certified (see `link/policy/certificate`).
        max_kl: mean divergence from re-prefill at the answer's first token that they may have, in nats; 0 takes exact
            rows only; None for no bound.
        canary: share of the linked requests that are computed again to compare; 0 turns it off.
        learning: the same share while no margin is certified, where it is larger.
        canary_rows: most rows computed for that, as a share of the rows computed for answers.
        forming: whether patches are formed in the background from rows that were computed in context.
        sightings: how often a chunk has to be met after the same antecedents for a patch to be formed.
        rank: of those patches; None for the largest whose bytes are `share` of the chunk's.
        share: see `rank`; also how large a stored patch has to be for `auto` to take it.
        kept: share of what a chunk lacks that a patch formed with `share` has to hold to be kept: thinner ones mislead.
        forming_bytes: most bytes of rows that wait to be formed into patches; rows beyond that are not formed.
        forming_seconds: most CPU seconds that forming takes in a minute; None for no bound.
        query_share: share of the rows of pages in an unknown combination that are computed again for a question; 0
            computes such pages in full.
        survivor_share: share of a conversation's rows that are computed again once something before them has left,
            where a request takes them; 0 takes them as they are.
        margin: how far apart the probabilities of the two likeliest first tokens have to be for an answer over linked
            rows to stand; the prompt is computed in full otherwise. None for what is certified, and 0.5 before that.
        inline_media_rows: rows prefilled alone after answers, of media that came with a prompt for the second time, as
            a share of the rows computed for answers, at most; 0 leaves them as they come, as does `forming` off.
        inline_media_at_once: whether that is done when they come for the first time.
        changed: share of a picture's cells that may differ from a stored picture's for its other rows to be taken from
            there; 0 computes such a picture as any new one.
        changed_bytes: rows that are kept of encoders that attend over whole pictures, of the latest pictures, for what
            differs to be encoded alone; 0 keeps none and computes such pictures as any new one.

    Raises:
        EmblemaError: a bound is out of range.
    """

    alpha: float | None = 0.02
    delta: float = 0.05
    max_kl: float | None = 0.05
    canary: float = 0.05
    learning: float = 0.5
    canary_rows: float = 0.25
    forming: bool = True
    sightings: int = 2
    rank: int | None = None
    share: float = 0.25
    kept: float = LEAST_KEPT
    forming_bytes: int = 256 * 2**20
    forming_seconds: float | None = 3.0
    query_share: float = 0.25
    survivor_share: float = 0.1
    margin: float | None = None
    inline_media_rows: float = 1.0
    inline_media_at_once: bool = False
    changed: float = 0.25
    changed_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        for name, low, high, optional in _RANGES:
            value = getattr(self, name)
            if value is None and optional:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            if not number or not low <= value <= high:
                raise EmblemaError(f"policy: {name} is {value!r}: give a number from {low:g} to {high:g}")
        for name in ("rank", "sightings", "forming_bytes", "changed_bytes"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), int):
                raise EmblemaError(f"policy: {name} is {getattr(self, name)!r}: give a whole number")
        if not self.share > 0:
            raise EmblemaError("policy: share is 0: give more, up to 1")

    @classmethod
    def quiet(cls) -> Self:
        """Return a policy without background work (no forming, no canary), for measurements it would disturb."""
        return cls(canary=0, learning=0, forming=False)

    def keeping(self) -> Self:
        """Return the policy for prompts that will come again: what is unknown is computed in full and kept at once."""
        return replace(self, sightings=1, query_share=0, inline_media_at_once=True)

    @property
    def exact_only(self) -> bool:
        """Whether the bounds leave no room for rows that are not exact."""
        return self.max_kl == 0 or self.alpha == 0


_RANGES: tuple[tuple[str, float, float, bool], ...] = (
    ("max_kl", 0, math.inf, True),
    ("alpha", 0, 1, True),
    ("delta", 1e-9, 0.5, False),
    ("learning", 0, 1, False),
    ("canary", 0, 1, False),
    ("canary_rows", 0, math.inf, False),
    ("sightings", 1, 15, False),
    ("rank", 1, 65_536, True),
    ("share", 0, 1, False),
    ("kept", 0, 1, False),
    ("forming_bytes", 0, math.inf, False),
    ("forming_seconds", 0, math.inf, True),
    ("query_share", 0, 1, False),
    ("survivor_share", 0, 1, False),
    ("margin", 0, 1, True),
    ("inline_media_rows", 0, math.inf, False),
    ("changed", 0, 1, False),
    ("changed_bytes", 0, math.inf, False),
)
