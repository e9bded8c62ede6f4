"""The placing pass in torch: by its definition, into memory of every order, and nowhere else."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.kv.placing_torch import TorchPlacer
from tests.kv.placing_cases import CASES, ORDERS, Case, errors_of

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**31))
def test_rows_are_those_of_their_definition(case: Case, dtype: torch.dtype, seed: int) -> None:
    assert errors_of(TorchPlacer(), replace(case, dtype=dtype, seed=seed)).max() <= 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_of_every_order_is_written(order: str, scattered: bool, dtype: torch.dtype) -> None:
    """In slots one after another, over pages of any order; nothing else changes."""
    for case in (CASES["half, patched"], CASES["part of a row, patched"], CASES["no band"]):
        whole = replace(case, order=order, scattered=scattered and order != "dense", dtype=dtype)
        assert errors_of(TorchPlacer(), whole).max() <= 1


def test_rows_that_do_not_turn_keep_their_bits() -> None:
    for order in ORDERS:
        case = replace(CASES["no band"], order=order, dtype=torch.bfloat16)
        assert errors_of(TorchPlacer(), case).max() == 0
