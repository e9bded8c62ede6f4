"""What an agent does with the screenshots that its conversation has: rules by name, each a function of what is kept.

`keep` shows the last few. `cap` lets them grow to a cap and then drops the older half. `every-other` drops every second
one at that cap. `crop` cuts older ones to a quarter. `budget` retires the oldest at a budget of tokens, down to half of
it. `none` drops nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.errors import PromptError


@dataclass(frozen=True, slots=True)
class KeptPicture:
    """A screenshot that is sent, by the turn that showed it, whole or cropped."""

    turn: int
    cropped: bool = False


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """What rules keep to.

    Attributes:
        pictures: screenshots that `keep` shows, and that `crop` leaves whole.
        cap: screenshots at which `cap` and `every-other` drop some.
        budget: tokens of pictures at which `budget` retires the oldest.
    """

    pictures: int = 5
    cap: int = 10
    budget: int = 2_000

    def __post_init__(self) -> None:
        if self.pictures < 1 or self.cap < 2 or self.budget < 1:
            raise PromptError(f"{self}: give one picture or more, a cap of two or more, and a budget")


Kept = tuple[KeptPicture, ...]
Rule = Callable[[Kept, RuleLimits, Callable[[KeptPicture], int]], Kept]
"""Takes what is kept in order with the newest last, the limits, and what counts a picture's tokens."""


def keep_last(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return the last pictures."""
    return kept[-limits.pictures :]


def cap_half(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return all until there are more than the cap, then the newer half of as many."""
    return kept if len(kept) <= limits.cap else kept[-(limits.cap // 2) :]


def drop_every_other(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return all until there are more than the cap, then every second one and the newest."""
    return kept if len(kept) <= limits.cap else (*kept[1:-1:2], kept[-1])


def crop_older(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return the last pictures whole, and those before them cropped."""
    older, newer = kept[: -limits.pictures], kept[-limits.pictures :]
    return (*(KeptPicture(picture.turn, cropped=True) for picture in older), *newer)


def retire_at_budget(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return all until their tokens are above the budget, then the newest that half of it holds."""
    if sum(map(tokens, kept)) <= limits.budget:
        return kept
    while len(kept) > 1 and 2 * sum(map(tokens, kept)) > limits.budget:
        kept = kept[1:]
    return kept


def keep_all(kept: Kept, limits: RuleLimits, tokens: Callable[[KeptPicture], int]) -> Kept:
    """Return all."""
    return kept


RULES: dict[str, Rule] = {
    "keep": keep_last,
    "cap": cap_half,
    "every-other": drop_every_other,
    "crop": crop_older,
    "budget": retire_at_budget,
    "none": keep_all,
}


def left(before: Sequence[KeptPicture], now: Sequence[KeptPicture]) -> Kept:
    """Return the pictures of a request that the next one does not show as they were."""
    return tuple(picture for picture in before if picture not in now)
