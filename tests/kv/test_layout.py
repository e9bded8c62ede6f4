"""Whether numbers are finite: by sums, which must neither hide a number that is not nor refuse large ones."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.kv.layout import LayerRows, all_finite, rows_finite

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@given(st.sampled_from(DTYPES), st.integers(0, 59), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_one_number_is_found_wherever_it_is(dtype: torch.dtype, place: int, number: float, twice: bool) -> None:
    tensor = torch.ones(3, 4, 5, dtype=dtype)
    rows = (LayerRows(torch.ones(1, 2, 2), torch.ones(1, 2, 2)), LayerRows(tensor.transpose(0, 1), tensor))
    assert all_finite([tensor]) and rows_finite(rows)
    tensor.view(-1)[place] = number
    if twice:
        # Two infinities of both signs have no sum that is a number.
        tensor.view(-1)[(place + 7) % 60] = -number
    assert not all_finite([torch.zeros(2), tensor]) and not rows_finite(rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_overflow_together_are_finite(dtype: torch.dtype) -> None:
    largest = torch.full((4, 4), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite([largest, -largest]) and not all_finite([largest, largest.new_full((1,), math.nan)])


def test_what_has_no_fractions_or_no_numbers_is_finite() -> None:
    assert all_finite([]) and all_finite([torch.empty(0, 3), torch.full((2,), 2**62)])
