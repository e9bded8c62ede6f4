"""How far a method is from re-prefill: eta, flip recovery, agreement.

Every function takes items side by side: the same question, in the same setting, under re-prefill and under a method.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

PLATEAU = 0.94
"""Share of full rank's recovery from which a rank counts as on the plateau: what Kamera's rank 32 has of rank 64's."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """A share, always with the number of items it is a share of; the share of none is NaN."""

    value: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.3f} of {self.count}" if self.count else "of none"


def eta(method: ArrayLike, blind: ArrayLike) -> float:
    """Return 1 - mean KL(method) / mean KL(blind), unclipped: 1 is re-prefill, 0 is blind reuse, below 0 is harm.

    It is NaN where blind reuse has no divergence, or an infinite one.
    """
    floor = float(np.mean(_floats(blind)))
    return 1.0 - float(np.mean(_floats(method))) / floor if 0 < floor < np.inf else float("nan")


def agreement(reference: ArrayLike, method: ArrayLike) -> float:
    """Return the share of items with the same answer."""
    return float(np.mean(np.asarray(reference) == np.asarray(method)))


def flip_recovery(reference: ArrayLike, blind: ArrayLike, method: ArrayLike) -> Share:
    """Return the share restored by the method of the items whose answer blind reuse changes, and their count."""
    flipped = np.asarray(reference) != np.asarray(blind)
    count = int(flipped.sum())
    restored = (np.asarray(reference) == np.asarray(method))[flipped]
    return Share(float(np.mean(restored)) if count else float("nan"), count)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
