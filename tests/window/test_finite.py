"""Rows of a window that hold NaN or infinite numbers: dropped and computed anew with the first answer they spoil."""

import math
from dataclasses import replace

import pytest
import torch

from emblema import Engine
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Patch
from emblema.window.parts import PartHandle, WrittenRows
from emblema.window.window import Window
from tests.engine.engines import largest_error
from tests.window.windows import QUESTION, filled, settled


def _rows(window: Window, part: PartHandle) -> WrittenRows:
    rows = next(each.rows for each in window._state.parts if each.handle == part)
    assert rows is not None
    return rows


def _spoil(window: Window, part: PartHandle, number: float, repair: bool = False) -> None:
    """Put a number in place of one of a part's values, or of its repair's."""
    rows = _rows(window, part)
    if repair:
        patch = rows.repairs[0]
        assert patch is not None
        spoilt: WrittenRows = replace(rows, repairs=(_spoilt_patch(patch, number), *rows.repairs[1:]))
    else:
        piece = rows.pieces[0]
        layers = [LayerRows(layer.keys.clone(), layer.values.clone()) for layer in piece.rows]
        layers[0].values[0, 1, 1] = number
        spoilt = replace(rows, pieces=(replace(piece, rows=tuple(layers)), *rows.pieces[1:]))
    window._state = window._state.rewrite({part.number: spoilt})


def _spoilt_patch(patch: Patch, number: float) -> Patch:
    layer, *others = patch.layers
    assert layer is not None
    left = layer.values.left.clone()
    left[0, 0] = number
    return replace(patch, layers=(replace(layer, values=replace(layer.values, left=left)), *others))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_computed_anew_once(made: Engine, number: float) -> None:
    window, (first, second, third) = filled(made, 0, 1, 2)
    before, kept = settled(window), _rows(window, third)
    _spoil(window, second, number)
    reply = window.ask(QUESTION, max_new_tokens=1)
    assert not reply.usage.finite and window.log[-1].refreshed == (second.number,)
    again = window.prefill(QUESTION)
    assert again.usage.finite and again.usage.computed_tokens == len(QUESTION)
    assert largest_error(again.logits, before) < 1e-4
    assert _rows(window, third) is kept, "what is whole stays as it was written"


def test_they_are_dropped_where_nothing_is_kept(made: Engine) -> None:
    window, (_, second, _) = filled(made, 0, 1, 2)
    before = settled(window)
    _spoil(window, second, math.nan)
    assert not window.prefill(QUESTION, keep=False).usage.finite
    assert window.forming() == (second.number,)
    again = window.prefill(QUESTION, keep=False)
    assert again.usage.finite and largest_error(again.logits, before) < 1e-4


def test_a_repair_that_is_not_finite_goes_with_its_rows(made: Engine) -> None:
    window, (_, second, third) = filled(made, 0, 1, 2)
    settled(window)
    window.slide()
    window.repair()
    _spoil(window, third, math.nan, repair=True)
    assert not window.prefill(QUESTION).usage.finite
    assert window.prefill(QUESTION).usage.finite
    assert _rows(window, third).repairs == ()


def test_rows_that_are_not_finite_are_not_repaired_but_replaced(made: Engine) -> None:
    window, (_, second, _) = filled(made, 0, 1, 2)
    settled(window)
    window.slide()
    _spoil(window, second, math.nan)
    window.repair()
    assert _rows(window, second).finite and _rows(window, second).repairs == (None,)
    assert bool(torch.isfinite(window.prefill(QUESTION).logits).all())
