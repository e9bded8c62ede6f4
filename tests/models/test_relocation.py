"""Relocation on every family: canonical rows turned to a later place, against arithmetic and a prefill there."""

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, relocate
from emblema.models.adapter import Adapter
from emblema.models.pretrained import PRETRAINED
from tests import families as matrix

CASES = list(matrix.CASES)
SHIFTS = (1, 40, 1000, 4096)


def exact(rows: LayerRows, layout: LayerLayout, adapter: Adapter, source: Tensor, target: Tensor) -> LayerRows:
    """The same rotation in float64 on the model's own float32 tables, pair by pair, written out on its own."""
    band = layout.rotary
    assert band is not None
    table = adapter.tables[band.table]
    keys = rows.keys if band.slot == "keys" else rows.values
    result = keys.double().clone()
    half = band.width // 2
    for pair in range(half):
        if band.pairing == "half":
            first, second = band.start + pair, band.start + pair + half
        else:
            first, second = band.start + 2 * pair, band.start + 2 * pair + 1
        axis, column = band.axes[pair], band.frequencies[pair]
        turns = []
        for positions in (source, target):
            cos, sin = table(positions[axis])
            turns.append(torch.complex(cos[:, column].double(), sin[:, column].double()))
        turn = turns[0].conj() * turns[1]
        value = torch.complex(keys[..., first].double(), keys[..., second].double()) * turn
        result[..., first], result[..., second] = value.real, value.imag
    return LayerRows(result, rows.values) if band.slot == "keys" else LayerRows(rows.keys, result)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_chunk_relocated(name: str, shift: int) -> None:
    item = matrix.loaded(name)
    adapter = item.adapter
    chunk = adapter.encode(item.preparer.image(matrix.picture(*item.case.sizes[0])))
    canonical, _ = adapter.prefill(chunk)
    native, _ = adapter.prefill(chunk, shift)
    source, target = chunk.positions, chunk.positions + shift
    books = PhaseBook(adapter.tables, source), PhaseBook(adapter.tables, target)
    for index, (rows, layout) in enumerate(zip(canonical, adapter.layouts, strict=True)):
        moved = relocate(rows, layout, *books)
        if layout.rotary is not None:
            truth = exact(rows, layout, adapter, source, target)
            largest = float(max(truth.keys.abs().max(), truth.values.abs().max()))
            assert float((moved.keys.double() - truth.keys).abs().max()) < 1e-5 * largest
            assert float((moved.values.double() - truth.values).abs().max()) < 1e-5 * largest
        # Later layers carry the rounding of the model's own float32 angles at the far position.
        bound = 1e-5 if index == 0 else 3e-4
        for ours, theirs in ((moved.keys, native[index].keys), (moved.values, native[index].values)):
            assert float((ours - theirs).abs().max()) < bound * float(theirs.abs().max())


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(PRETRAINED))
def test_real_weights_relocated(name: str) -> None:
    """Downloads and builds the model the first time. Bounds are shares of a layer's largest |k|."""
    engine = Engine.load(name)
    adapter = engine.adapter
    chunk = engine.add(text="The white shed is near the town of Prague. Nobody was there on Sunday.\n" * 4)
    source = chunk.encoded.positions
    for shift in SHIFTS:
        books = PhaseBook(adapter.tables, source), PhaseBook(adapter.tables, source + shift)
        for rows, layout in zip(chunk.rows, adapter.layouts, strict=True):
            moved = relocate(rows, layout, *books)
            truth = exact(rows, layout, adapter, source, source + shift)
            assert float((moved.keys.double() - truth.keys).abs().max()) < 1e-5 * float(truth.keys.abs().max())
            assert torch.equal(moved.values, rows.values)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "glm4v", "kimi_k25_yarn", "gemma3"])
def test_bfloat16_rows_within_one_ulp(name: str) -> None:
    """Rows stored in bfloat16 and relocated lie within 1 ULP of the exact rotation of what was stored, or within
    2**-20 of the pair's norm where the two terms cancel."""
    item = matrix.loaded(name)
    adapter = item.adapter
    chunk = adapter.encode(item.preparer.image(matrix.picture(*item.case.sizes[0])))
    stored = [LayerRows(x.keys.bfloat16(), x.values.bfloat16()) for x in adapter.capture(chunk)]
    for shift in SHIFTS:
        source, target = chunk.positions, chunk.positions + shift
        books = PhaseBook(adapter.tables, source), PhaseBook(adapter.tables, target)
        for rows, layout in zip(stored, adapter.layouts, strict=True):
            moved = relocate(rows, layout, *books)
            truth = exact(rows, layout, adapter, source, target)
            assert layout.rotary is not None
            slot = layout.rotary.slot
            ours, right = getattr(moved, slot), getattr(truth, slot)
            assert ours.dtype == torch.bfloat16
            _, exponent = torch.frexp(right)
            ulp = torch.ldexp(torch.ones_like(right), exponent - 8)
            slack = 2.0**-20 * pair_norms(right, layout)
            assert bool(((ours.double() - right).abs() <= torch.maximum(ulp, slack)).all())


def pair_norms(rows: Tensor, layout: LayerLayout) -> Tensor:
    """Norm of the rotated pair that each feature belongs to; its own size for features that are not rotated."""
    band = layout.rotary
    assert band is not None
    norms = rows.abs().clone()
    half = band.width // 2
    for pair in range(half):
        first = band.start + (pair if band.pairing == "half" else 2 * pair)
        second = first + (half if band.pairing == "half" else 1)
        norms[..., first] = norms[..., second] = torch.hypot(rows[..., first], rows[..., second])
    return norms


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "kimi_k25"])
def test_selfcheck_passes_and_names_figures(name: str) -> None:
    from emblema.models.selfcheck import selfcheck

    report = selfcheck(matrix.loaded(name).adapter)
    assert report.passed
    assert {check.name for check in report.checks} >= {"calibration", "select-all", "full-rank patch"}
    assert "relocation by 4096" in str(report)
