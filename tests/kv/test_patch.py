"""Patches: rank is monotone, forming and adding are linear, shares of bytes are kept."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.patch import (
    LEAST_KEPT,
    LayerPatch,
    Patch,
    deficit,
    form_faithful_patch,
    form_patch,
    kept_energy,
    rank_for_share,
)

seeds = st.integers(0, 2**31)


def remaining(deficits: Sequence[LayerRows | None], patch: Patch) -> list[LayerRows | None]:
    """What of deficits a patch leaves."""
    found: list[LayerRows | None] = []
    for rows, layer in zip(deficits, patch.layers, strict=True):
        if rows is None or layer is None:
            found.append(rows)
            continue
        heads = rows.keys.shape[0]
        found.append(LayerRows(rows.keys - layer.keys.dense(heads), rows.values - layer.values.dense(heads)))
    return found


def rows(seed: int, tokens: int = 20, heads: int = 2, width: int = 8) -> LayerRows:
    generator = torch.Generator().manual_seed(seed)
    return LayerRows(*(torch.randn(heads, tokens, width, generator=generator) for _ in range(2)))


@given(seed=seeds)
def test_more_rank_never_fits_worse(seed: int) -> None:
    wanted = rows(seed)
    errors = []
    for rank in range(1, 17):
        left = remaining([wanted], form_patch([wanted], rank, torch.float32))[0]
        assert left is not None
        errors.append(float(torch.cat([left.keys, left.values]).norm()))
    assert all(later <= earlier + 1e-5 for earlier, later in zip(errors, errors[1:], strict=False))
    assert errors[-1] <= 1e-5 * float(wanted.keys.norm())


@given(seed=seeds, scale=st.floats(-4, 4).filter(lambda value: abs(value) > 1e-3))
def test_forming_and_adding_are_linear(seed: int, scale: float) -> None:
    canonical, lack = rows(seed), rows(seed + 1)
    for rank in (3, 16):
        patch = form_patch([lack], rank, torch.float32).layers[0]
        scaled = form_patch([LayerRows(lack.keys * scale, lack.values * scale)], rank, torch.float32).layers[0]
        assert patch is not None and scaled is not None
        # Which directions are kept is open where singular values nearly tie; how much of the deficit is left is not.
        left = (lack.keys - patch.keys.dense(2)).norm()
        assert torch.isclose((scale * lack.keys - scaled.keys.dense(2)).norm(), abs(scale) * left, rtol=1e-4, atol=1e-4)
        if rank == 16:
            assert torch.allclose(scaled.keys.dense(2), scale * patch.keys.dense(2), atol=1e-5 * (1 + abs(scale) * 4))
        once = patch.apply(canonical)
        assert torch.allclose(once.keys - canonical.keys, patch.keys.dense(2), atol=1e-5)
        assert torch.allclose(patch.apply(once).values - once.values, patch.values.dense(2), atol=1e-5)


@given(seed=seeds)
def test_full_rank_restores_the_conditioned_rows(seed: int) -> None:
    canonical, conditioned = rows(seed), rows(seed + 7)
    patch = form_patch([deficit(conditioned, canonical)], 10_000, torch.float32)
    layer = patch.layers[0]
    assert layer is not None and patch.rank == 16
    restored = layer.apply(canonical)
    assert float((restored.keys - conditioned.keys).abs().max()) <= 1e-4 * float(conditioned.keys.abs().max())
    assert float((restored.values - conditioned.values).abs().max()) <= 1e-4 * float(conditioned.values.abs().max())


@given(seed=seeds, rank=st.integers(1, 15))
def test_slicing_equals_forming_at_the_lower_rank(seed: int, rank: int) -> None:
    lack = rows(seed)
    sliced = form_patch([lack], 16, torch.float32).slice(rank).layers[0]
    formed = form_patch([lack], rank, torch.float32).layers[0]
    assert sliced is not None and formed is not None
    assert torch.allclose(sliced.keys.dense(2), formed.keys.dense(2), atol=1e-5)


def test_a_copy_has_memory_of_its_own() -> None:
    patch = form_patch([None, rows(1, 12)], 3, torch.float32)
    copied = patch.copy()
    assert copied.layers[0] is None
    held, own = patch.layers[1], copied.layers[1]
    assert held is not None and own is not None
    kept = own.keys.left.clone()
    held.keys.left.zero_()
    assert torch.equal(own.keys.left, kept) and torch.equal(own.values.right, held.values.right)


def test_kept_layers_and_the_others() -> None:
    patch = form_patch([rows(1), None, rows(2)], 4, torch.float32)
    assert patch.covers({0, 2}) and not patch.covers({1})


@given(seed=seeds, rank=st.integers(1, 12), weak=st.floats(0.01, 1))
def test_directions_go_to_the_layers_that_lack_most(seed: int, rank: int, weak: float) -> None:
    """Within the numbers of a rank for all layers, and leaving no more energy than the same rank in each."""
    lacks: list[LayerRows | None] = [rows(seed), LayerRows(rows(seed + 1).keys * weak, rows(seed + 2).values * weak)]
    patch = form_patch(lacks, rank, torch.float32)
    even = [form_patch([lack], 16, torch.float32).layers[0] for lack in lacks]
    assert patch.rank == rank and sum(slot.rank for slot in patch.slots) <= 4 * rank

    def energy_left(left: list[LayerRows | None]) -> float:
        return sum(float(slot.square().sum()) for rows in left if rows is not None for slot in (rows.keys, rows.values))

    uniform = Patch(tuple(LayerPatch(layer.keys.slice(rank), layer.values.slice(rank)) for layer in even if layer))
    assert energy_left(remaining(lacks, patch)) <= energy_left(remaining(lacks, uniform)) * (1 + 1e-4) + 1e-6
    strong, faint = patch.layers
    assert strong is not None and faint is not None
    assert weak > 0.2 or strong.keys.rank + strong.values.rank >= faint.keys.rank + faint.values.rank


def test_a_patch_without_some_layers_moves_and_is_cut_and_measured_all_the_same() -> None:
    patch = Patch((None, *form_patch([LayerRows(rows(1).keys, rows(2, width=3).values)], 16, torch.float32).layers))
    moved, cut = patch.to(torch.device("meta")), patch.slice(2)
    assert moved.layers[0] is None and cut.layers[0] is None
    for before, after, short in zip(patch.layers[1:], moved.layers[1:], cut.layers[1:], strict=True):
        assert before is not None and after is not None and short is not None
        for slot in ("keys", "values"):
            old, new, thin = (getattr(layer, slot) for layer in (before, after, short))
            assert new.left.is_meta and new.right.is_meta
            assert (new.left.shape, new.right.shape) == (old.left.shape, old.right.shape)
            assert torch.equal(thin.left, old.left[:, : thin.rank]) and torch.equal(thin.right, old.right[: thin.rank])
    assert 4 * 2 * (20 + 16 + 20 + 6) - 4 * 36 < cut.bytes <= 4 * 2 * (20 + 16 + 20 + 6)
    assert patch.rank == 16 and cut.rank == 2 and form_patch([None], 4, torch.float32).rank == 0
    # 20 rows, 2 heads: keys 8 wide of rank 16, values 3 wide of rank 6; float32.
    assert patch.bytes == 4 * (16 * (20 + 16) + 6 * (20 + 6))


@given(tokens=st.integers(16, 300), share=st.floats(0.01, 1.0))
def test_the_rank_of_a_share_is_the_largest_that_fits(tokens: int, share: float) -> None:
    layouts = [LayerLayout((4, 32), (4, 32), None), LayerLayout((1, 96), (1, 32), None)]
    chunk = sum(layout.features for layout in layouts) * tokens
    rank = rank_for_share(share, tokens, layouts, range(2))

    def weight(rank: int) -> int:
        widths = (128, 128, 96, 32)
        return sum(min(rank, tokens, width) * (tokens + width) for width in widths)

    assert weight(rank) <= share * chunk
    assert rank == min(tokens, 128) or weight(rank + 1) > share * chunk


def spectrum(kind: str, size: int) -> torch.Tensor:
    places = torch.arange(1, size + 1, dtype=torch.float32)
    return {"harmonic": 1 / places, "geometric": 0.9**places, "steep": 0.5**places, "even": torch.ones(size)}[kind]


@pytest.mark.parametrize("kind", ["harmonic", "geometric", "steep", "even", "chance"])
@settings(max_examples=8)
@given(seed=seeds, tokens=st.integers(70, 300), heads=st.sampled_from([1, 4]), rank=st.integers(4, 20))
def test_a_patch_leaves_no_more_than_the_best_of_its_rank(
    kind: str, seed: int, tokens: int, heads: int, rank: int
) -> None:
    """Than a full SVD leaves, and 3 %: of deficits with spectra that fall slowly, quickly, or hardly."""
    own = rows(seed, tokens, heads, 128 // heads)
    matrix = own.keys.transpose(0, 1).reshape(tokens, -1)
    if kind != "chance":
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        matrix = left * spectrum(kind, left.shape[1]) @ right
    keys = matrix.unflatten(1, (heads, -1)).transpose(0, 1)
    layer = form_patch([LayerRows(keys, own.values)], rank, torch.float32).layers[0]
    assert layer is not None and layer.keys.rank + layer.values.rank == 2 * rank
    rank = layer.keys.rank
    best = float(torch.linalg.svdvals(matrix.double())[rank:].norm())
    assert float((layer.keys.dense(heads) - keys).norm()) <= 1.03 * best + 1e-5 * float(matrix.norm())
    turned = layer.keys.right @ layer.keys.right.T
    assert torch.allclose(turned, torch.eye(rank), atol=1e-4)
    weights = layer.keys.left.norm(dim=0)
    assert bool((weights[1:] <= weights[:-1] * (1 + 1e-3) + 1e-6).all())


@pytest.mark.parametrize("held", [0, 1, 5])
def test_a_deficit_of_a_lower_rank_is_held_whole(held: int) -> None:
    """Of nothing at all too: rows that lack nothing."""
    generator = torch.Generator().manual_seed(held)
    matrix = torch.randn(200, held, generator=generator) @ torch.randn(held, 96, generator=generator)
    keys = matrix.unflatten(1, (2, -1)).transpose(0, 1)
    layer = form_patch([LayerRows(keys, keys)], 12, torch.float32).layers[0]
    assert layer is not None
    assert bool(layer.keys.left.isfinite().all()) and bool(layer.keys.right.isfinite().all())
    assert torch.allclose(layer.keys.dense(2), keys, atol=1e-4)


def test_a_patch_that_holds_too_little_is_none() -> None:
    """Of ten equal directions a patch of rank nine holds nine tenths, and one of rank five a half."""
    rows = torch.eye(10)[None]
    deficits = [LayerRows(rows, rows)]
    for rank, share in ((9, 0.9), (5, 0.5), (10, 1.0)):
        patch = form_patch(deficits, rank, torch.float32)
        assert kept_energy(deficits, patch) == pytest.approx(share, abs=0.06)
        assert (form_faithful_patch(deficits, rank, torch.float32) is None) == (share < LEAST_KEPT)
    nothing = [LayerRows(torch.zeros(1, 10, 10), torch.zeros(1, 10, 10))]
    assert kept_energy(nothing, form_patch(nothing, 2, torch.float32)) == 1
