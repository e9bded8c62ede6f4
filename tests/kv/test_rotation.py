"""Rotation: composition, inverse, norm; relocation against complex numbers, of the same tables."""

from math import cos, sin

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows, Pairing, RotaryBand
from emblema.kv.rotation import PhaseBook, Phases, phases, place, relocate, rotate, rotate_into, unplace
from tests.kv.tables import BANDS, table, table_turns, turned_pairs

TOKENS = 6
offsets = st.integers(0, 4096)
seeds = st.integers(0, 2**31)
bands = pytest.mark.parametrize("band", BANDS.values(), ids=BANDS.keys())


def double(turn: Phases) -> Phases:
    """The same phases in float64, for a reference."""
    return Phases(turn.cos.double(), turn.sin.double())


def positions_at(start: int) -> Tensor:
    """Three axes that run apart, as inside a picture."""
    line = torch.arange(TOKENS)
    return torch.stack([torch.zeros_like(line), line // 3, line % 3]) + start


def keys(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, TOKENS, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)


def book(start: int) -> PhaseBook:
    return PhaseBook({"": table}, positions_at(start))


def layout(band: RotaryBand) -> LayerLayout:
    return LayerLayout((2, 16), (2, 16), band)


def exact_relocation(rows: Tensor, band: RotaryBand, source: int, target: int) -> Tensor:
    """The reference: back and there in complex numbers of float64, on the float32 tables."""
    there = table_turns(band, positions_at(target)) * table_turns(band, positions_at(source)).conj()
    return torch.from_numpy(turned_pairs(rows, band, there))


@bands
@given(seed=seeds, start=offsets)
def test_a_turn_is_a_product_with_a_complex_number(band: RotaryBand, seed: int, start: int) -> None:
    rows = keys(seed)
    turned = rotate(rows, band, phases(table, band, positions_at(start)))
    expected = turned_pairs(rows, band, table_turns(band, positions_at(start)))
    assert np.abs(turned.numpy() - expected).max() <= 1e-6 * float(rows.abs().max())


@pytest.mark.parametrize("pairing", ["half", "pairs"])
def test_the_first_feature_of_a_pair_turns_towards_the_second(pairing: Pairing) -> None:
    """By an angle of position times frequency, written out for one token: (1, 0) becomes (cos, sin)."""
    band = RotaryBand("keys", pairing, 2, 4, "", (0, 0), (0, 3))
    row = torch.zeros(1, 1, 8)
    row[..., [2, 3]] = torch.tensor([1.0, 2.0])
    turned = rotate(row, band, phases(table, band, torch.tensor([[5]])))[0, 0]
    fast, slow = 5.0, 5.0 * 10_000 ** (-3 / 8)
    if pairing == "half":
        # Pairs (2, 4) and (3, 5).
        wanted = [0, 0, cos(fast), 2 * cos(slow), sin(fast), 2 * sin(slow), 0, 0]
    else:
        # One pair (2, 3); the other, (4, 5), is zero.
        wanted = [0, 0, cos(fast) - 2 * sin(fast), 2 * cos(fast) + sin(fast), 0, 0, 0, 0]
    assert torch.allclose(turned, torch.tensor(wanted), atol=1e-6)


@bands
@given(seed=seeds, first=offsets, second=offsets)
def test_turning_twice_is_turning_by_both(band: RotaryBand, seed: int, first: int, second: int) -> None:
    rows = keys(seed).double()
    one, two = (double(phases(table, band, positions_at(at))) for at in (first, second))
    assert torch.allclose(rotate(rotate(rows, band, one), band, two), rotate(rows, band, one.then(two)), atol=1e-6)


@bands
@given(seed=seeds, start=offsets)
def test_turning_back_restores_and_norms_stay(band: RotaryBand, seed: int, start: int) -> None:
    rows = keys(seed)
    turn = phases(table, band, positions_at(start))
    turned = rotate(rows, band, turn)
    assert torch.allclose(rotate(turned, band, turn.inverse()), rows, atol=1e-5)
    assert torch.allclose(turned.norm(dim=-1), rows.norm(dim=-1), rtol=1e-5)


@bands
def test_rotation_moves_only_its_band(band: RotaryBand) -> None:
    rows = keys(0)
    turned = rotate(rows, band, phases(table, band, positions_at(77)))
    outside = [i for i in range(16) if not band.start <= i < band.start + band.width]
    assert torch.equal(turned[..., outside], rows[..., outside])
    assert not torch.allclose(turned, rows, atol=0.1)


@bands
@given(seed=seeds, source=offsets, target=offsets)
def test_relocation_in_float32_is_exact_to_1e_5(band: RotaryBand, seed: int, source: int, target: int) -> None:
    rows = keys(seed)
    moved = relocate(LayerRows(rows, rows), layout(band), book(source), book(target))
    expected = exact_relocation(rows, band, source, target)
    assert float((moved.keys - expected).abs().max()) <= 1e-5 * float(rows.abs().max())
    assert torch.equal(moved.values, rows)


@bands
@given(seed=seeds, source=offsets, target=offsets)
def test_relocation_in_bfloat16_is_within_one_ulp(band: RotaryBand, seed: int, source: int, target: int) -> None:
    rows = keys(seed, torch.bfloat16)
    moved = relocate(LayerRows(rows, rows), layout(band), book(source), book(target)).keys
    expected = exact_relocation(rows, band, source, target)
    ulp = torch.ldexp(torch.ones_like(expected), torch.frexp(expected).exponent - 8)
    cancelled = 2.0**-20 * rows.double().norm(dim=-1, keepdim=True)
    assert bool(((moved.double() - expected).abs() <= torch.maximum(ulp, cancelled)).all())


@bands
@given(seed=seeds, places=st.lists(offsets, min_size=20, max_size=20))
def test_twenty_places_do_not_drift(band: RotaryBand, seed: int, places: list[int]) -> None:
    """Every relocation starts from the rows as first written, so the last is as exact as the first."""
    rows = LayerRows(keys(seed, torch.bfloat16), keys(seed, torch.bfloat16))
    before = rows.keys.clone()
    for target in places:
        moved = relocate(rows, layout(band), book(0), book(target))
    assert torch.equal(rows.keys, before)
    assert torch.equal(moved.keys, relocate(rows, layout(band), book(0), book(places[-1])).keys)


@bands
def test_position_free_rows_go_back_to_where_they_were(band: RotaryBand) -> None:
    rows = LayerRows(keys(3), keys(4))
    free = unplace(rows, layout(band), book(500))
    again = place(free, layout(band), book(500), torch.float32)
    assert torch.allclose(again.keys, rows.keys, atol=1e-5)
    assert torch.equal(again.values, rows.values)


def test_latent_rows_turn_in_the_values_slot() -> None:
    band = RotaryBand("values", "half", 0, 16, "", (0,) * 8, tuple(range(8)))
    rows = LayerRows(keys(1), keys(2))
    moved = relocate(rows, LayerLayout((2, 16), (2, 16), band), book(0), book(9))
    assert torch.equal(moved.keys, rows.keys)
    assert not torch.allclose(moved.values, rows.values, atol=0.1)


def test_layers_without_a_band_are_left_alone() -> None:
    rows = LayerRows(keys(1), keys(2))
    assert relocate(rows, LayerLayout((2, 16), (2, 16), None), book(0), book(9)) is rows


def test_phases_read_each_frequency_from_its_own_axis() -> None:
    band = BANDS["interleaved axes"]
    turn: Phases = phases(table, band, positions_at(10))
    for pair, axis in enumerate(band.axes):
        cos, _ = table(positions_at(10)[axis])
        assert torch.equal(turn.cos[:, pair], cos[:, pair])


@bands
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("step", [1, 2])
def test_a_turn_is_the_same_however_rows_lie_in_memory(band: RotaryBand, add: bool, shift: int, step: int) -> None:
    """Where neighbours cannot be read as one complex number, they are turned feature by feature."""
    rows, turn = keys(5), phases(table, band, positions_at(40))
    held = torch.zeros(2, TOKENS, 16 * step + shift)[..., shift::step]
    held.copy_(rows)
    out = torch.ones(2, TOKENS, 16 * step + shift)[..., shift::step]
    rotate_into(out, held, band, turn, add=add)
    wanted = turned_pairs(rows, band, table_turns(band, positions_at(40)))
    assert np.abs(out.numpy() - (wanted + add)).max() <= 2e-6 * float(rows.abs().max())
