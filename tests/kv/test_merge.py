"""The merge of two attention states equals attention over the union."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emblema.kv.merge import merge_states


def attend(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    scores = query @ keys.transpose(-1, -2)
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


@given(seed=st.integers(0, 2**31), split=st.integers(1, 18), scale=st.floats(0.1, 30))
def test_reading_apart_and_merging_is_reading_together(seed: int, split: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, keys, values = (torch.randn(3, n, 8, generator=generator) for n in (4, 19, 19))
    query = query * scale
    together, lse = attend(query, keys, values)
    first = attend(query, keys[:, :split], values[:, :split])
    second = attend(query, keys[:, split:], values[:, split:])
    merged, merged_lse = merge_states(*first, *second)
    assert torch.allclose(merged, together, atol=1e-4)
    assert torch.allclose(merged_lse, lse, rtol=1e-5, atol=1e-4)


def test_an_empty_set_changes_nothing_and_two_give_zero() -> None:
    output, lse = torch.randn(4, 8), torch.randn(4)
    nothing, empty = torch.zeros(4, 8), torch.full((4,), float("-inf"))
    merged, merged_lse = merge_states(output, lse, nothing, empty)
    assert torch.allclose(merged, output) and torch.allclose(merged_lse, lse)
    merged, merged_lse = merge_states(nothing, empty, nothing, empty)
    assert torch.equal(merged, nothing) and torch.equal(merged_lse, empty)
