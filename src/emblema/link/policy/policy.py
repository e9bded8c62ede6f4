"""The policy: what a person asks of `auto`. Bounds on fidelity, and on what forming and checking may cost."""

import math
from dataclasses import dataclass
from typing import Self

from emblema.errors import EmblemaError


@dataclass(frozen=True, slots=True)
class Policy:
    """The bounds that `auto` keeps to.

    Attributes:
        max_kl: nats of divergence from re-prefill at the answer's first token that a lane may have on average; 0 takes
            exact rows only; None for no bound.
        min_agreement: share of answers whose first token has to be re-prefill's; 1 takes exact rows only; None for no
            bound.
        canary: share of the linked requests that are computed again to compare; 0 turns it off.
        canary_rows: rows computed for that, as a share of the rows computed for answers, at most.
        drift: share of the antecedents that may be gone, or stand there twice, for a stored patch to serve still.
        forming: whether patches are formed in the background from rows that were computed in context.
        rank: of those patches; None for the largest whose bytes are `share` of the chunk's.
        share: see `rank`; also how large a stored patch has to be for `auto` to take it.
        refresh_rank: of an update to a stored patch.
        forming_bytes: of rows that may wait to be formed into patches; what comes on top is not formed.
        forming_seconds: of CPU that forming may take in a minute; None for no bound.
        inline_media_rows: rows prefilled alone after answers, of media that came with a prompt for the second time, as
            a share of the rows computed for answers, at most; 0 leaves them as they come, as does `forming` off.

    Raises:
        EmblemaError: a bound is out of range.
    """

    max_kl: float | None = 0.05
    min_agreement: float | None = None
    canary: float = 0.01
    canary_rows: float = 0.05
    drift: float = 1 / 3
    forming: bool = True
    rank: int | None = None
    share: float = 0.25
    refresh_rank: int = 32
    forming_bytes: int = 256 * 2**20
    forming_seconds: float | None = None
    inline_media_rows: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high, optional in _RANGES:
            value = getattr(self, name)
            if value is None and optional:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            if not number or not low <= value <= high:
                raise EmblemaError(f"policy: {name} is {value!r}: give a number from {low:g} to {high:g}")
        for name in ("rank", "refresh_rank", "forming_bytes"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), int):
                raise EmblemaError(f"policy: {name} is {getattr(self, name)!r}: give a whole number")
        if not self.share > 0:
            raise EmblemaError("policy: share is 0: give more, up to 1")

    @classmethod
    def quiet(cls) -> Self:
        """Nothing behind the answers: no forming and no canary, for measurements that they would disturb."""
        return cls(canary=0, forming=False)

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
    ("rank", 1, 65_536, True),
    ("share", 0, 1, False),
    ("refresh_rank", 1, 65_536, False),
    ("forming_bytes", 0, math.inf, False),
    ("forming_seconds", 0, math.inf, True),
    ("inline_media_rows", 0, math.inf, False),
)
