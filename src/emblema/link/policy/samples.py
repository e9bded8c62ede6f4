"""What a comparison of a linked answer with full prefill says: a sample, and sums over several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from emblema.errors import EmblemaError
from emblema.link.second_pass import margin_of


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer's first token by a linked prompt against full prefill's.

    Attributes:
        kl: divergence in nats, perhaps infinite.
        agrees: whether it is the same token.
        margin: how far apart the linked answer's two likeliest tokens were.
    """

    kl: float
    agrees: bool
    margin: float = 1.0


def compare(reference: ArrayLike, method: ArrayLike) -> Sample:
    """Return the sample of logits [vocab] by re-prefill and by a lane; what is not finite agrees with nothing."""
    token = first_token(reference)
    agrees = token >= 0 and token == first_token(method)
    return Sample(divergence(reference, method), agrees, margin_of(torch.as_tensor(method)))


def first_token(logits: ArrayLike) -> int:
    """Return the likeliest token of logits [vocab]; -1 where they are not finite, as `divergence` has it."""
    values = np.asarray(logits)
    token = int(values.argmax())
    return token if math.isfinite(values[token]) else -1


def divergence(reference: ArrayLike, method: ArrayLike) -> float:
    """Return KL(reference || method) in nats, from logits [vocab]; never below zero.

    It is infinite where a logit of either is NaN or infinite, but for tokens of logit -inf, which are never said; also
    where the method never says a token that the reference does.

    Raises:
        EmblemaError: the two have different vocabularies.
    """
    left, right = np.asarray(reference, dtype=np.float64), np.asarray(method, dtype=np.float64)
    if left.shape != right.shape:
        raise EmblemaError(f"logits over {left.size} and over {right.size} tokens cannot be compared")
    # The largest is NaN where any is.
    if not (np.isfinite(left.max()) and np.isfinite(right.max())):
        return math.inf
    left, right = _log_softmax(left), _log_softmax(right)
    likely = np.exp(left)
    said = likely > 0
    return max(0.0, float(np.sum(likely[said] * (left[said] - right[said]))))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def divergence_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the mean divergence and its standard error, in nats; both are infinite where any sample is."""
    values = [sample.kl for sample in samples]
    mean = math.fsum(values) / len(values)
    if len(values) < 2 or math.isinf(mean):
        return mean, math.inf
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))


def agreement_of(samples: Sequence[Sample]) -> float:
    """Return the share of first tokens that are re-prefill's."""
    return sum(sample.agrees for sample in samples) / len(samples)


def describe(samples: Sequence[Sample]) -> str:
    """Return the samples in a few words."""
    mean, _ = divergence_of(samples)
    return f"{mean:.2g} nats, {agreement_of(samples):.0%} agreement over {len(samples)}"
