"""Why media are computed and not taken: the reasons, the cause of each, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class MissReason(StrEnum):
    """Why no row of a piece of media was taken; `docs/troubleshooting.md` shows what `ADVICE` says about each."""

    NEW = "new"
    CHANGED = "changed"
    OTHER_OPTIONS = "other_options"
    OTHER_MODEL = "other_model"
    NOT_STORED = "not_stored"
    EVICTED = "evicted"
    EXPIRED = "expired"
    DELETED = "deleted"
    LOST = "lost"
    NEW_ORDER = "new_order"
    SHORT = "short"
    COSTS = "costs"
    DISTRUSTED = "distrusted"
    UNSURE = "unsure"
    STRATEGY = "strategy"
    REFUSED = "refused"


GONE = (MissReason.EVICTED, MissReason.EXPIRED, MissReason.DELETED)
"""Reasons of media that were stored."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said of a reason: what it comes from, and what to change. In Markdown."""

    cause: str
    change: str


ADVICE: Mapping[MissReason, Advice] = MappingProxyType(
    {
        MissReason.NEW: Advice("it was never shown, as far as this tenant and process know", "`engine.add` it before"),
        MissReason.CHANGED: Advice(
            "its pixels are not those of before, which the detail compares",
            "send the same bytes: no clock, no pointer, no second JPEG",
        ),
        MissReason.OTHER_OPTIONS: Advice(
            "it was shown before, at another size or with other options", "send it always with the same"
        ),
        MissReason.OTHER_MODEL: Advice(
            "its rows are of other weights or another data type", "load the same model and `dtype`"
        ),
        MissReason.NOT_STORED: Advice("it was shown before, and its rows are made in idle time", "ask again"),
        MissReason.EVICTED: Advice(
            "it was stored, and others took its room", "more `device_bytes`, disk or quota; pin it"
        ),
        MissReason.EXPIRED: Advice("it was stored, and its time was over", "keep it for longer"),
        MissReason.DELETED: Advice("it was stored, and deleted", "`engine.add` it again"),
        MissReason.LOST: Advice("its rows could not be read", "see the log"),
        MissReason.NEW_ORDER: Advice(
            "no patch for these pictures before it", "the third time takes it; keep the order, or `keep=True`"
        ),
        MissReason.SHORT: Advice("no patch fits its few rows", "name a strategy"),
        MissReason.COSTS: Advice("linking would cost more than it saves", 'name a strategy; in vLLM `"least_rows": 0`'),
        MissReason.DISTRUSTED: Advice(
            "its lane was measured to break your bound (`emblema policy --store FOLDER`)", "raise `max_kl` or `alpha`"
        ),
        MissReason.UNSURE: Advice(
            "the answer over linked rows was not sure",
            "raise `query_share`; a lower `margin` accepts more wrong answers",
        ),
        MissReason.STRATEGY: Advice("the strategy computes it", "`auto`"),
        MissReason.REFUSED: Advice("the model, server or request is not linked", "see the detail"),
    }
)


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, and what is known beyond it.

    Attributes:
        reason: the reason.
        detail: which byte, option or rule, in a few words; empty where no more is known.
    """

    reason: MissReason
    detail: str = ""
