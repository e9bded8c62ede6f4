"""Compressed rows: how far they are from what they were, and what is never touched."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.store.compression import COMPRESSIONS, Compression, check_compression, compress, fp8_to_float32, restore

SCALED: tuple[Compression, ...] = ("fp8", "int8")


def rows(seed: int = 0, tokens: int = 64, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows [2, tokens, 16] whose channels differ a thousandfold, as keys' do."""
    generator = torch.Generator().manual_seed(seed)
    channels = torch.logspace(-1.5, 1.5, 16)
    return (torch.randn(2, tokens, 16, generator=generator) * channels).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_none_keeps_every_bit_and_the_memory(dtype: torch.dtype) -> None:
    given = rows(dtype=dtype)
    stored, scales = compress(given, "none")
    assert scales is None and stored.data_ptr() == given.data_ptr()
    assert torch.equal(restore(stored, scales, dtype), given)


def test_bf16_is_exact_for_rows_of_two_bytes_and_rounds_wider_ones_once() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        stored, _ = compress(rows(dtype=dtype), "bf16")
        assert stored.dtype == dtype
        assert torch.equal(restore(stored, None, dtype), rows(dtype=dtype))
    given = rows()
    stored, scales = compress(given, "bf16")
    assert stored.dtype == torch.bfloat16 and scales is None
    back = restore(stored, scales, torch.float32)
    assert ((back - given).abs() <= given.abs() * 2**-8).all()
    assert not torch.equal(back, given)


@pytest.mark.parametrize("compression", SCALED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_eight_bits_bound_the_error_by_the_channels_own_size(compression: Compression, dtype: torch.dtype) -> None:
    given = rows(dtype=dtype)
    stored, scales = compress(given, compression)
    assert stored.dtype.itemsize == 1 and scales is not None and scales.shape == (2, 16)
    back = restore(stored, scales, dtype)
    assert back.dtype == dtype
    exact = given.double()
    largest = exact.abs().amax(1, keepdim=True)
    # Half a step: of 254 even ones, or of three bits of fraction; then one rounding to the rows' own dtype.
    step = largest / 254 if compression == "int8" else torch.maximum(exact.abs() / 16, largest * 2**-10 / 448)
    rounding = exact.abs() * torch.finfo(dtype).eps
    assert ((back.double() - exact).abs() <= step * 1.001 + rounding).all()
    assert not torch.equal(back, given)


@pytest.mark.parametrize("compression", SCALED)
def test_a_loud_channel_does_not_drown_a_quiet_one(compression: Compression) -> None:
    given = rows()
    stored, scales = compress(given, compression)
    back = restore(stored, scales, torch.float32)
    error = (back - given).norm(dim=1) / given.norm(dim=1)
    assert error.max() <= 0.04
    one_scale = given.abs().max() / (448 if compression == "fp8" else 127)
    assert scales is not None and scales.min() < one_scale / 100


@pytest.mark.parametrize("compression", SCALED)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_rows_that_are_no_numbers_stay_as_they_are(compression: Compression, bad: float) -> None:
    given = rows()
    given[1, 3, 5] = bad
    stored, scales = compress(given, compression)
    assert scales is None and stored is given


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rows_at_the_very_end_of_float32_do_not_become_infinite(compression: Compression) -> None:
    given = torch.full((1, 3, 2), torch.finfo(torch.float32).max)
    assert torch.equal(restore(*compress(given, compression), torch.float32), given)
    assert restore(*compress(given.double() * 2, compression), torch.float64).isfinite().all()


@pytest.mark.parametrize("compression", SCALED)
def test_empty_and_silent_rows_survive(compression: Compression) -> None:
    stored, scales = compress(torch.empty(2, 0, 16), compression)
    assert scales is None and restore(stored, scales, torch.float32).shape == (2, 0, 16)
    given = rows()
    given[:, :, 3] = 0
    given[:, :, 4] = 1e-42
    stored, scales = compress(given, compression)
    back = restore(stored, scales, torch.float32)
    assert (back[:, :, 3] == 0).all() and back.isfinite().all()
    assert (back[:, :, 4] - given[:, :, 4]).abs().max() <= 1e-38


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    st.sampled_from(COMPRESSIONS),
)
def test_any_finite_rows_come_back_finite_and_hardly_larger(numbers: list[float], compression: Compression) -> None:
    given = torch.tensor(numbers)[None, :, None]
    stored, scales = compress(given, compression)
    back = restore(stored, scales, torch.float32)
    assert back.isfinite().all()
    assert back.abs().max() <= given.abs().max() * (1 + 2**-8) + 1e-38
    assert (back * given >= 0).all(), "no sign turns"


@pytest.mark.parametrize("codes", [range(256), [*range(127), *range(128, 255)]], ids=["all", "numbers"])
def test_every_fp8_code_is_converted_as_torch_does(codes: Sequence[int]) -> None:
    stored = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(fp8_to_float32(stored).view(torch.int32), stored.float().view(torch.int32))


def test_names_are_checked() -> None:
    assert [check_compression(name) for name in COMPRESSIONS] == ["none", "bf16", "fp8", "int8"]
    with pytest.raises(StoreError, match="unknown compression 'zip': choose none, bf16, fp8, int8"):
        check_compression("zip")
