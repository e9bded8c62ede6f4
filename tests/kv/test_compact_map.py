"""Maps of a state in eight bits a number, beside the same maps whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

from emblema.kv.compact_map import CompactMap, to_int8
from emblema.kv.layout import LayerLayout, LayerRows, MappedRows, StateMap, StateShape

HEADS, KEYS, VALUES = 3, 32, 24


def drawn(kept: list[int], near: float = 0.8, seed: int = 0, dtype: torch.dtype = torch.float32) -> StateMap:
    """A map whose decay is near a multiple of the identity, as that of a run of rows is."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(HEADS, KEYS, VALUES, generator=generator)
    decay = near * torch.eye(KEYS) + 0.05 * torch.randn(len(kept), KEYS, KEYS, generator=generator)
    return StateMap(2, 9, own.to(dtype), decay.to(dtype), torch.tensor(kept, dtype=torch.int64))


def state(seed: int = 7) -> Tensor:
    return torch.randn(1, HEADS, KEYS, VALUES, generator=torch.Generator().manual_seed(seed))


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("kept", [[0, 1, 2], [0, 2], []])
def test_a_compact_map_does_to_a_state_what_the_whole_one_does(kept: list[int]) -> None:
    whole = drawn(kept)
    compact = CompactMap.of(whole)
    assert isinstance(compact, CompactMap) and compact.own.dtype == compact.decay.dtype == torch.int8
    found = compact.apply(state())
    assert found.dtype == torch.float32 and difference(found, whole.apply(state())) < 0.01
    assert torch.equal(compact.heads, whole.heads) and (compact.at(5).start, compact.at(5).stop) == (5, 12)


def test_the_diagonal_of_the_decay_leaves_all_steps_to_the_other_numbers() -> None:
    whole = drawn([0, 1, 2])
    found = CompactMap.of(whole).matrices(torch.float32)[1]
    codes = to_int8(whole.decay)
    assert codes is not None
    plain = codes[0] * codes[1][:, None]
    assert torch.equal(found.diagonal(dim1=1, dim2=2), whole.decay.diagonal(dim1=1, dim2=2))
    assert difference(found, whole.decay) < 0.3 * difference(plain, whole.decay)


def test_compact_maps_of_neighbours_compose_with_each_other_and_with_whole_ones() -> None:
    first, second = drawn([0, 2], seed=1), drawn([1, 2], seed=2)
    expected = second.after(first)
    for one in (first, CompactMap.of(first)):
        for other in (second, CompactMap.of(second)):
            both = other.after(one)
            assert both.heads.tolist() == [2] and difference(both.apply(state()), expected.apply(state())) < 0.01


def test_a_map_that_is_not_finite_stays_whole_and_is_noticed() -> None:
    whole = drawn([0])
    whole.own[1, 2, 3] = torch.nan
    assert CompactMap.of(whole) is whole
    assert to_int8(torch.full((1, 2, 3), torch.inf)) is None


def test_a_layout_knows_the_bytes_of_compact_maps_and_rows_keep_all_of_their_tensors() -> None:
    shape = StateShape(HEADS, KEYS, VALUES)
    layout = LayerLayout((1, 8), (1, 10), None, taps=2, state=shape, mapped_from=5, compact=True)
    compact = CompactMap.of(drawn([0, 1, 2], dtype=torch.bfloat16))
    assert tuple(tuple(tensor.shape) for tensor in compact.tensors) == compact.shapes(shape, 3)
    held = layout.front + layout.edge
    keys, values = (torch.zeros(1, held, width, dtype=torch.bfloat16) for width in (8, 10))
    rows: Any = MappedRows(keys, values, (compact, drawn([1]).at(20)), layout.edge)
    one = MappedRows(keys, values, (compact,), layout.edge)
    assert isinstance(one, LayerRows) and one.bytes - compact.heads.nbytes == 2 * layout.map_numbers
    again = rows.with_tensors([tensor + 1 for tensor in rows.tensors])
    assert isinstance(again.maps[0], CompactMap) and type(again.maps[1]) is StateMap
    assert all(torch.equal(new, old + 1) for new, old in zip(again.tensors, rows.tensors, strict=True))
