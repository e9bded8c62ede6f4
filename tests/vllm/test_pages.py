"""Pages of any layout, without vLLM: what is written is read again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.vllm.pages import Pages

BLOCKS, SIZE = 5, 4


def pages_in(order: torch.Tensor, layout: LayerLayout, dtype: torch.dtype, first: bool) -> Pages:
    """Pages whose features lie in some order, with room to spare."""
    shape = (BLOCKS, len(order) + 3)
    cache = torch.randn(shape if first else shape[::-1]).to(dtype)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for row, slot in enumerate(slots.tolist()):
            block, inside = divmod(slot, SIZE)
            numbers = torch.full((len(order),), float("nan"))
            half = SIZE * layout.keys[0] * layout.keys[1]
            for part, start in ((keys, 0), (values, half)):
                width = part[row].numel()
                numbers[start + inside * width : start + (inside + 1) * width] = part[row].flatten().float()
            known = ~numbers.isnan()
            page = cache[block] if first else cache[:, block]
            page[order[known]] = numbers[known].to(dtype)

    return Pages([(cache, 0 if first else 1)], [write], [layout], SIZE)


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
def test_rows_are_found_in_whatever_layout(seed: int, dtype: torch.dtype, first: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    layout = LayerLayout((2, 6), (2, 4), None)
    order = torch.randperm(SIZE * 20, generator=generator)
    pages = pages_in(order, layout, dtype, first)
    slots = pages.slots([3, 1, 4], 10)
    rows = LayerRows(torch.randn(2, 10, 6).to(dtype), torch.randn(2, 10, 4).to(dtype))
    pages.write(0, slots, rows)
    found = pages.read(0, slots[2:7])
    assert torch.equal(found.keys, rows.keys[:, 2:7]) and torch.equal(found.values, rows.values[:, 2:7])


def test_measuring_leaves_the_page_as_it_was_and_refuses_what_it_cannot_read() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    cache = torch.arange(BLOCKS * SIZE * 4.0).reshape(BLOCKS, -1)
    before = cache.clone()

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        cache[0] = torch.cat([keys.flatten(), values.flatten()])

    Pages([(cache, 0)], [write], [layout], SIZE)
    assert torch.equal(cache, before)
    with pytest.raises(EmblemaError, match="give back"):
        Pages([(cache, 0)], [lambda keys, values, slots: cache[0].copy_(keys.sum())], [layout], SIZE)


def test_the_first_layer_alone_is_written_to_when_a_page_is_measured() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    caches = [torch.randn(BLOCKS, SIZE * 4) for _ in range(2)]

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        caches[0][0] = torch.cat([keys.flatten(), values.flatten()])

    def not_written(*given: torch.Tensor) -> None:
        raise AssertionError("a layer was written to that is not measured")

    pages = Pages([(cache, 0) for cache in caches], [write, not_written], [layout] * 2, SIZE)
    assert torch.equal(pages.read(1, torch.tensor([SIZE])).keys[0, 0], caches[1][1, :2])
