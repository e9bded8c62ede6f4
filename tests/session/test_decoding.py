"""Tokens are chosen from finite logits alone."""

import math

import pytest
import torch

from emblema.errors import ModelError
from emblema.session.decoding import Sampler, Sampling


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_logits_that_are_not_finite_end_a_reply_with_an_error(temperature: float, logits: list[float]) -> None:
    with pytest.raises(ModelError, match="not finite"):
        Sampler(Sampling(temperature=temperature, seed=1))(torch.tensor(logits))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_of_no_probability_is_never_chosen(temperature: float) -> None:
    assert {
        Sampler(Sampling(temperature=temperature, seed=seed))(torch.tensor([-math.inf, 0.0])) for seed in range(9)
    } == {1}
