"""Tokens are chosen from finite logits alone."""

import math

import pytest
import torch

from emblema.errors import ModelError, PromptError
from emblema.session.decoding import TOP, Sampler, Sampling


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


def kept_tokens(logits: torch.Tensor, temperature: float, top_p: float) -> tuple[list[int], torch.Tensor]:
    """Return the smallest set of tokens of a probability, and the shares of all tokens within it, all sorted."""
    weights = torch.softmax(logits.double() / temperature, dim=0)
    ordered, tokens = weights.sort(descending=True)
    ordered[ordered.cumsum(0) - ordered >= top_p] = 0
    shares = torch.zeros_like(weights).index_copy_(0, tokens, ordered / ordered.sum())
    return shares.nonzero().squeeze(1).tolist(), shares


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("size", [5, 40, 2000])
def test_tokens_are_drawn_by_their_shares(size: int, top_p: float) -> None:
    logits = 3 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    kept, shares = kept_tokens(logits, 0.7, top_p)
    sampler, draws = Sampler(Sampling(temperature=0.7, top_p=top_p, seed=4)), 3000
    counts = torch.bincount(torch.tensor([sampler(logits) for _ in range(draws)]), minlength=size)
    assert set(counts.nonzero().squeeze(1).tolist()) <= set(kept)
    expected = draws * shares
    often = expected >= 5
    seen = torch.cat((counts[often].double(), counts[~often].sum()[None].double()))
    wanted = torch.cat((expected[often], expected[~often].sum()[None]))
    square = float(((seen - wanted).square() / wanted.clamp_min(1e-9))[wanted > 0].sum())
    # A chi-square of so many degrees, and six of its deviations.
    degrees = max(1, int((wanted > 0).sum()) - 1)
    assert square <= degrees + 6 * (2 * degrees) ** 0.5


@pytest.mark.slow
def test_a_flat_distribution_needs_more_than_the_likeliest_at_first() -> None:
    logits = torch.zeros(5000)
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.5, seed=1))
    found = {sampler(logits) for _ in range(2000)}
    assert len(found) > 4 * TOP


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(1))
    samplers = [Sampler(Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    first, again, other = ([sampler(logits) for _ in range(30)] for sampler in samplers)
    assert first == again != other


@pytest.mark.parametrize("bias", [{}, {3: -2.0, 7: 1.5}])
@pytest.mark.parametrize(("presence", "frequency"), [(0.0, 0.0), (1.2, 0.0), (0.0, 0.4), (-0.5, 1.0)])
def test_penalties_and_biases_are_openais(bias: dict[int, float], presence: float, frequency: float) -> None:
    """`mu[j] + bias[j] - c[j] * frequency - float(c[j] > 0) * presence`, c over the reply's tokens alone."""
    generator = torch.Generator().manual_seed(1)
    sampler = Sampler(Sampling.of(presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias))
    made: list[int] = []
    for _ in range(40):
        logits = torch.randn(12, generator=generator)
        wanted = [
            float(logits[token]) + bias.get(token, 0.0) - made.count(token) * frequency - (token in made) * presence
            for token in range(12)
        ]
        kept = logits.clone()
        made.append(sampler(logits))
        assert made[-1] == max(range(12), key=wanted.__getitem__)
        assert torch.equal(logits, kept)
    assert sampler.greedy == (not bias and presence == frequency == 0)


def test_a_penalty_is_part_of_what_is_drawn_from() -> None:
    """Equal logits, where each token but one was made or banned."""
    sampler = Sampler(Sampling.of(temperature=1.0, seed=1, presence_penalty=2.0, logit_bias={0: -100, 1: 100}))
    assert {sampler(torch.zeros(3)) for _ in range(9)} == {1}
    banned = Sampler(Sampling.of(temperature=1.0, seed=1, logit_bias={0: -100, 1: -100}))
    assert {banned(torch.zeros(3)) for _ in range(9)} == {2}


@pytest.mark.parametrize(
    "knobs",
    [
        {"presence_penalty": 2.1}, {"frequency_penalty": math.nan}, {"frequency_penalty": "1"},
        {"logit_bias": {-1: 1}}, {"logit_bias": {"a": 1}}, {"logit_bias": {1: 101}}, {"logit_bias": [1]},
    ],
)  # fmt: skip
def test_penalties_and_biases_out_of_range_are_refused_by_name(knobs: dict[str, object]) -> None:
    with pytest.raises(PromptError, match=next(iter(knobs))):
        Sampling.of(**knobs)  # type: ignore[arg-type]


def test_a_bias_of_a_token_that_is_not_there_is_refused() -> None:
    with pytest.raises(PromptError, match="logit_bias names token 9: the model has tokens 0 to 4"):
        Sampler(Sampling.of(logit_bias={9: 1}))(torch.zeros(5))
