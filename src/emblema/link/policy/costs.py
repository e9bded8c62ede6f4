"""What rows cost on this machine, learnt from linked prompts: seconds for a computed row, a taken row, a megabyte.

Least squares over the latest prompts. A gain is given only where the fit is sure of its sign.
"""

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

KEPT = 128
LEAST = 24
SURE = 3.0
"""Standard errors by which a gain has to differ from zero."""
MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds a prompt, a computed row, a taken row, and a megabyte of patches."""

    prompt: float
    computed: float
    taken: float
    megabyte: float


class Costs:
    """Measurements of one model on one machine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=KEPT)
        self._fit: tuple[np.ndarray, np.ndarray] | None = None

    def observe(self, computed: int, taken: int, patch_bytes: int, seconds: float) -> None:
        """Add the seconds that linking one prompt took."""
        with self._lock:
            self._seen.append((float(computed), float(taken), patch_bytes / MEGABYTE, seconds))
            self._fit = None

    @property
    def rates(self) -> Rates | None:
        """The fit; None while there are too few prompts, or they are too similar."""
        fitted = self._fitted()
        return None if fitted is None else Rates(*(float(value) for value in fitted[0]))

    def gain(self, rows: int, patch_bytes: int) -> float | None:
        """Return seconds saved by taking rows instead of computing them; None where the fit is not sure of the sign."""
        fitted = self._fitted()
        if fitted is None:
            return None
        values, covariance = fitted
        weights = np.array([0.0, rows, -rows, -patch_bytes / MEGABYTE])
        gain, error = float(weights @ values), float(np.sqrt(max(0.0, weights @ covariance @ weights)))
        return gain if abs(gain) > SURE * error else None

    def _fitted(self) -> tuple[np.ndarray, np.ndarray] | None:
        with self._lock:
            if self._fit is None and len(self._seen) >= LEAST:
                self._fit = _fit(np.array(self._seen))
            return self._fit


def _fit(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return coefficients [4] and their covariance [4, 4]; None where the prompts are too similar."""
    features = np.column_stack([np.ones(len(seen)), seen[:, :3]])
    # The slowest tenth is left out: slow moments of the machine say nothing about rows.
    kept = seen[:, 3] <= np.quantile(seen[:, 3] / (1 + seen[:, 0]), 0.9) * (1 + seen[:, 0])
    features, seconds = features[kept], seen[kept, 3]
    if len(features) <= features.shape[1] or np.linalg.matrix_rank(features) < features.shape[1]:
        return None
    values, *_ = np.linalg.lstsq(features, seconds, rcond=None)
    noise = float(np.square(seconds - features @ values).sum()) / (len(features) - features.shape[1])
    return values, noise * np.linalg.inv(features.T @ features)
