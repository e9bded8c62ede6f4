"""What is compared: memories, and Mosaic's with one thing changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings, change_settings

OURS, FULL = "mosaic", "full"
BASELINES = ("rekv", "livevlm", "streammem", "sliding", "nocache")
METHODS = (OURS, *BASELINES, FULL)
SHARED = ("sinks", "window", "block", "positions", "batched")
"""Settings that every method goes by, the budget apart."""
ALONE = 1e-9
"""A width, as a share of the variance, that no cluster of two frames keeps to."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A method, and what is changed of the settings that all arms share.

    Attributes:
        told: what is changed, in words.
    """

    name: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    told: str = ""

    def settings(self, shared: StreamSettings, budget: int) -> StreamSettings:
        """The arm's settings; full attention has native positions whatever the others have, as it has no end."""
        own = change_settings(shared, {**self.changes, "budget": budget})
        return replace(own, positions="native") if self.method == FULL else own

    def identity(self, shared: StreamSettings, budget: int) -> dict[str, Any]:
        """What its answers depend on: equal for two arms that are the same."""
        settings = self.settings(shared, budget).flat()
        if self.method == OURS:
            return {"method": self.method, **settings}
        kept = {name: settings[name] for name in SHARED}
        return {"method": self.method, **kept, "budget": None if self.method == FULL else budget}


def _ours(name: str, told: str, **changes: Any) -> Arm:
    return Arm(f"{OURS}-{name}", OURS, changes, told)


ABLATIONS: tuple[Arm, ...] = (
    _ours("visual", "visual clusters alone, layers follow them", levels="visual"),
    _ours("semantic", "semantic clusters alone, each layer's own", levels="semantic"),
    _ours(
        "flat",
        "no clusters: each frame is one, with its own representative",
        tau_small=ALONE,
        tau_large=ALONE,
    ),
    _ours("no-representatives", "what was not retrieved is not seen", representatives=False),
    _ours("unweighted", "a representative counts for one row", weighted=False),
    _ours("eager", "a cluster is cut as soon as it is too wide", splitting="eager"),
    _ours("relaxing", "large clusters may be wider than small ones (equation 5)", direction="relaxing"),
    _ours("one-part", "one mean key for a whole frame", parts=1),
    _ours("pooled", "clusters chosen by a pooled query (V-C)", scoring="pooled"),
    _ours("paper", "all three as the paper says", direction="relaxing", parts=1, scoring="pooled"),
    _ours("window-only", "frames retrieve nothing while they are encoded", retrieve_while_encoding=False),
)


def arms() -> dict[str, Arm]:
    """Every arm by name."""
    return {name: Arm(name, name) for name in METHODS} | {arm.name: arm for arm in ABLATIONS}


def arms_named(names: tuple[str, ...]) -> tuple[Arm, ...]:
    """Arms in the order of their names.

    Raises:
        PromptError: there is none of that name.
    """
    known = arms()
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise PromptError(f"there is no arm {unknown!r}: choose of {', '.join(known)}")
    return tuple(known[name] for name in names)
