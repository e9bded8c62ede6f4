"""Maps of a state in eight bits a number: half the bytes of bfloat16, for models that compute in 16 bits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import StateMap, StateShape

INT8_LARGEST = 127.0


def to_int8(numbers: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return numbers [heads, rows, width] divided by their scales and rounded, int8, and the scales [heads, width].

    A scale, float32, is the largest magnitude over the rows, divided by 127. None where an infinity or a NaN would be
    gained or lost.
    """
    exact = numbers.float()
    scales = (exact.abs().amax(dim=1) / INT8_LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    if not bool((scales * INT8_LARGEST).isfinite().all()):
        return None
    return (exact / scales[:, None]).clamp_(-INT8_LARGEST, INT8_LARGEST).round_().to(torch.int8), scales


@dataclass(frozen=True, slots=True)
class CompactMap(StateMap):
    """A map whose `own` and `decay` are int8, to be multiplied by scales; `decay` is without its diagonal.

    Over a run of rows a head's decay is near a multiple of the identity, so the diagonal would leave few steps to the
    other numbers.

    Attributes:
        own_scales: [heads, value width] float32.
        decay_scales: [kept, key width] float32.
        diagonal: [kept, key width] of the decay, in the model's dtype.
    """

    own_scales: Tensor
    decay_scales: Tensor
    diagonal: Tensor

    @classmethod
    def of(cls, whole: StateMap) -> StateMap:
        """Return a map in eight bits a number; one with an infinity or a NaN as it is."""
        diagonal = whole.decay.diagonal(dim1=1, dim2=2)
        own, decay = to_int8(whole.own), to_int8(whole.decay - torch.diag_embed(diagonal))
        if own is None or decay is None:
            return whole
        scales = own[1], decay[1]
        return cls(whole.start, whole.stop, own[0], decay[0], whole.heads, *scales, diagonal.contiguous())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.own, self.decay, self.heads, self.own_scales, self.decay_scales, self.diagonal

    @property
    def dtype(self) -> torch.dtype:
        return self.diagonal.dtype

    @staticmethod
    def shapes(state: StateShape, kept: int) -> tuple[tuple[int, ...], ...]:
        keys = state.key_width
        return *StateMap.shapes(state, kept), (state.heads, state.value_width), (kept, keys), (kept, keys)

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        own = self.own.to(dtype) * self.own_scales[:, None].to(dtype)
        decay = self.decay.to(dtype) * self.decay_scales[:, None].to(dtype)
        decay.diagonal(dim1=1, dim2=2).add_(self.diagonal)
        return own, decay
