"""What `auto` may ask of the measurements: whether a lane keeps the bounds for some content, and what rows cost."""

from collections.abc import Callable
from dataclasses import dataclass

from emblema.link.policy.decisions import TAKEN, Lane
from emblema.link.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a lane may be taken, and how that is known."""

    open: bool
    reason: str


def unmeasured(kind: str, lane: Lane, policy: Policy) -> Verdict:
    """The verdict where nothing was measured: a patch made for the purpose is taken; anything else has to earn it.

    A patch that still holds what it absorbed of a page now gone may do more harm than none, and ids do not tell which
    page mattered; so `drift` is open unmeasured only where there is no bound to break. Survivors of a window are taken:
    the paper measured them to be near-lossless (Kamera, section 5).
    """
    if policy.exact_only:
        return Verdict(False, "the bound takes exact rows only")
    if lane is Lane.BARE:
        return Verdict(False, f"{kind} was not measured to show no gap")
    if lane is Lane.DRIFT and (policy.max_kl is not None or policy.min_agreement is not None):
        return Verdict(False, f"{kind} was not measured to bear it")
    return Verdict(True, "not measured yet")


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """All that a plan is judged by.

    Attributes:
        policy: the engine's; a request may bring its own.
        verdict: of a kind of content and a lane, under a policy.
        gain: seconds that taking a chunk's rows is measured to save over computing them, from its rows and the bytes of
            its patch; None where that is not known yet.
        plateau: rank from which on the model's patches were measured not to gain; None where that is not known.
    """

    policy: Policy = Policy()
    verdict: Callable[[str, Lane, Policy], Verdict] = unmeasured
    gain: Callable[[int, int], float | None] = lambda rows, patch_bytes: None
    plateau: int | None = None

    def open_lanes(self, kind: str, policy: Policy) -> dict[Lane, Verdict]:
        """The verdict of every lane that is a matter of measurement."""
        return {lane: self.verdict(kind, lane, policy) for lane in TAKEN}
