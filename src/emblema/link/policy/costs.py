"""What rows cost on this machine, learnt from linked prompts: seconds for a forward, and each row that it computes.

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
    """Seconds a forward, a computed row, a taken row, and a megabyte of patches."""

    forward: float
    computed: float
    taken: float
    megabyte: float


class Costs:
    """Measurements of one model on one machine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float, float, float, float]] = deque(maxlen=KEPT)
        self._fit: tuple[np.ndarray, np.ndarray] | None = None
        self._is_fitted = False

    def observe(self, computed: int, taken: int, patch_bytes: int, seconds: float, forwards: int = 1) -> None:
        """Add the seconds that linking one prompt took; rows that ran in two forwards are counted twice."""
        with self._lock:
            self._seen.append((float(forwards), float(computed), float(taken), patch_bytes / MEGABYTE, seconds))
            self._is_fitted = False

    @property
    def rates(self) -> Rates | None:
        """The fit; None while there are too few prompts, or they are too similar."""
        fitted = self._fitted()
        return None if fitted is None else Rates(*(float(value) for value in fitted[0]))

    def ratios(self) -> tuple[float, float] | None:
        """Return what a forward and what a taken row cost, in computed rows; None where the fit is not sure of them.

        Prompts that are all alike do not tell what costs what, however well they are fitted.
        """
        fitted = self._fitted()
        if fitted is None:
            return None
        values, errors = fitted[0][:3], np.sqrt(np.maximum(0.0, np.diag(fitted[1])[:3]))
        if not (values > SURE * errors).all():
            return None
        return float(values[0] / values[1]), float(values[2] / values[1])

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
            if not self._is_fitted and len(self._seen) >= LEAST:
                self._fit, self._is_fitted = _fit(np.array(self._seen)), True
            return self._fit


def _fit(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return coefficients [4] and their covariance [4, 4]; None where the prompts are too similar."""
    features = seen[:, :4]
    # The slowest tenth is left out: slow moments of the machine say nothing about rows.
    kept = seen[:, 4] <= np.quantile(seen[:, 4] / (1 + seen[:, 1]), 0.9) * (1 + seen[:, 1])
    features, seconds = features[kept], seen[kept, 4]
    values, _, rank, _ = np.linalg.lstsq(features, seconds, rcond=None)
    if len(features) <= features.shape[1] or rank < features.shape[1]:
        return None
    noise = float(np.square(seconds - features @ values).sum()) / (len(features) - features.shape[1])
    return values, noise * np.linalg.inv(features.T @ features)
