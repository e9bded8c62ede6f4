"""The network that names a tile's token: what one tile's row goes through in the tower, without its neighbours."""

import torch
from torch import nn
from torch.nn import functional

LAYERS = ("patch", "first", "second", "naming")


class PageReader(nn.Module):
    """A tile's ink to a score for each token that is known.

    It is a CLIP tower of two layers whose attention is nothing. Only the first `width` of the tower's channels are
    used; norms count the others as zeros.
    """

    def __init__(self, pixels: int, width: int, hidden: int, tokens: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.patch = nn.Linear(pixels, width)
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)
        self.naming = nn.Linear(width, tokens)
        nn.init.constant_(self.naming.bias, -4.0)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(3))
        self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(3))

    def forward(self, ink: torch.Tensor) -> torch.Tensor:
        """Return scores [tiles, tokens] of ink [tiles, pixels]."""
        state = self._norm(0, self.patch(ink))
        state = state + self.second(torch.sigmoid(self.first(self._norm(1, state))))
        scores: torch.Tensor = self.naming(self._norm(2, state))
        return scores

    def _norm(self, place: int, state: torch.Tensor) -> torch.Tensor:
        mean = state.sum(-1, keepdim=True) / self.channels
        spread = (state.square().sum(-1, keepdim=True) / self.channels - mean.square() + 1e-5).rsqrt()
        return (state - mean) * spread * self.scales[place] + self.shifts[place]


def loss_of(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss: which token it is among all, and for each token whether it is this one."""
    each = functional.binary_cross_entropy_with_logits(
        scores, functional.one_hot(tokens, scores.shape[-1]).float(), reduction="none"
    )
    return functional.cross_entropy(scores, tokens) + each.sum(-1).mean()
