"""Pages of any layout, without vLLM: what is written is read again."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.vllm.pages import FeatureStrides, LayerPages, PageCodes, Pages
from tests.one_device import META, OneDevice

BLOCKS, SIZE = 5, 4
LAYOUTS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
"""vLLM's `KVCacheLayout`s: the axes layer, page, head, row and feature, from the slowest in memory to the quickest."""
CODES = (torch.float8_e4m3fn, torch.float8_e5m2)
Round = Callable[[Tensor], Tensor]


def in_order(shape: Sequence[int], order: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of noise whose axes lie in memory in an order."""
    memory = torch.randint(0, 120, [shape[axis] for axis in order], dtype=torch.uint8).to(dtype)
    return memory.permute([list(order).index(axis) for axis in range(len(shape))])


def write_heads(cache: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write as vLLM's backends for GPUs do: pages [page, head, row, feature], keys before values."""
    rows = torch.cat([keys, values], -1).to(cache.dtype)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        cache[slot // cache.shape[2], :, slot % cache.shape[2]] = row


def write_codes(cache: Tensor, codes: PageCodes, cut: bool, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """The same in codes of 8 bits; with `cut`, digits are cut off, as vLLM's kernel for CPUs does."""
    coded = []
    for rows, scale in ((keys, codes.keys), (values, codes.values)):
        numbers = (rows.float() / scale).to(codes.dtype)
        if cut:
            away = numbers.float().abs() > (rows.float() / scale).abs()
            numbers = (numbers.view(torch.uint8) - away.to(torch.uint8)).view(codes.dtype)
        coded.append(numbers.view(torch.uint8))
    write_heads(cache, coded[0], coded[1], slots)


def pages_in(order: torch.Tensor, layout: LayerLayout, dtype: torch.dtype) -> Pages:
    """Pages whose features lie in some order, with room to spare."""
    cache = torch.randn(BLOCKS, len(order) + 3).to(dtype)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for row, slot in enumerate(slots.tolist()):
            block, inside = divmod(slot, SIZE)
            numbers = torch.full((len(order),), float("nan"))
            half = SIZE * layout.keys[0] * layout.keys[1]
            for part, start in ((keys, 0), (values, half)):
                width = part[row].numel()
                numbers[start + inside * width : start + (inside + 1) * width] = part[row].flatten().float()
            known = ~numbers.isnan()
            cache[block][order[known]] = numbers[known].to(dtype)

    return Pages([LayerPages(cache, SIZE, write)], [layout], SIZE, dtype)


def noise(layout: LayerLayout, rows: int, dtype: torch.dtype = torch.float32) -> LayerRows:
    return LayerRows(*(torch.randn(heads, rows, width).to(dtype) for heads, width in (layout.keys, layout.values)))


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16]))
def test_rows_are_found_in_whatever_layout(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    layout = LayerLayout((2, 6), (2, 4), None)
    pages = pages_in(torch.randperm(SIZE * 20, generator=generator), layout, dtype)
    slots = pages.slots([3, 1, 4], 10)
    rows = noise(layout, 10, dtype)
    pages.write(0, slots, rows)
    found = pages.read(0, slots[2:7])
    assert torch.equal(found.keys, rows.keys[:, 2:7]) and torch.equal(found.values, rows.values[:, 2:7])
    found = pages.read(0, pages.locate_prompt([3, 1, 4], 9))
    assert torch.equal(found.keys, rows.keys[:, :9]) and torch.equal(found.values, rows.values[:, :9])


@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.tuples(*(st.integers(1, most) for most in (3, 3, 5, 6))),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, *CODES]),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_every_layout_of_vllm(
    name: str, sizes: tuple[int, int, int, int], dtype: torch.dtype, split: int, random
) -> None:
    """Layers, heads, rows of a page, width; one page of vLLM may be two of the backend's."""
    layers, heads, size, width = sizes
    order, layout = LAYOUTS[name], LayerLayout((heads, width), (heads, width), None)
    codes = PageCodes(dtype, random.uniform(0.01, 4), random.uniform(0.01, 4)) if dtype in CODES else None
    own = torch.float32 if codes else dtype
    whole = in_order((layers, BLOCKS * split, heads, size, 2 * width), order, torch.uint8 if codes else dtype)
    given = [
        LayerPages(
            whole[layer],
            size,
            partial(write_codes, whole[layer], codes, random.random() < 0.5)
            if codes
            else partial(write_heads, whole[layer]),
            codes,
        )
        for layer in range(layers)
    ]
    before = whole.clone()
    pages = Pages(given, [layout] * layers, size * split, own)
    assert torch.equal(whole, before), "measuring leaves the page as it was"
    blocks = random.sample(range(1, BLOCKS), 3)
    slots = pages.slots(blocks, 2 * size * split + 1)
    picked = torch.tensor(random.sample(range(len(slots)), random.randint(1, len(slots))))
    layer = random.randrange(layers)
    first = pages.read(layer, slots[picked])
    rows = noise(layout, len(picked), own)
    pages.write(layer, slots[picked], rows)
    count = random.randint(1, len(slots))
    prompt, one_by_one = pages.read(layer, pages.locate_prompt(blocks, count)), pages.read(layer, slots[:count])
    assert torch.equal(prompt.keys, one_by_one.keys) and torch.equal(prompt.values, one_by_one.values)
    found = pages.read(layer, pages.locate(slots[picked]))
    if codes is None:
        assert torch.equal(found.keys, rows.keys) and torch.equal(found.values, rows.values)
    else:
        near = torch.finfo(dtype).eps / 2 * 1.01
        for own_rows, back, scale in ((rows.keys, found.keys, codes.keys), (rows.values, found.values, codes.values)):
            limit = torch.finfo(dtype).max * scale
            wanted = own_rows.clamp(-limit, limit)
            smallest = torch.finfo(dtype).smallest_normal * scale
            assert bool(((wanted - back).abs() <= near * wanted.abs().clamp_min(smallest)).all())
    pages.write(layer, slots[picked], first)
    assert torch.equal(whole, before), "what was read is written as it was, and nothing else is written to"


def test_latents_are_one_row_of_one_head() -> None:
    """vLLM's latents (MLA): pages [page, row, latent and rotary key]."""
    cache, layout = torch.randn(BLOCKS, SIZE, 12), LayerLayout((1, 8), (1, 4), None)

    def write(latents: Tensor, keys: Tensor, slots: Tensor) -> None:
        cache.view(-1, 12)[slots] = torch.cat([latents, keys], -1).squeeze(1)

    pages = Pages([LayerPages(cache, SIZE, write)], [layout], SIZE, torch.float32)
    slots, rows = pages.slots([2, 4], 7), noise(layout, 7)
    pages.write(0, slots, rows)
    found = pages.read(0, slots)
    assert torch.equal(found.keys, rows.keys) and torch.equal(found.values, rows.values)
    assert torch.equal(cache[4, 1], torch.cat([rows.keys[0, 5], rows.values[0, 5]]))


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 0.037, 3.3])
def test_every_code_is_written_again_as_it_was(kind: torch.dtype, dtype: torch.dtype, scale: float) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    finite = codes[codes.view(kind).float().isfinite()]
    if dtype == torch.float16:
        # Half precision ends at 65,504, and cuts digits below 6e-5.
        sizes = finite.view(kind).float().abs() * scale
        finite = finite[(sizes == 0) | ((sizes < 65_000) & (sizes > 6.2e-5))]
    layout, page = LayerLayout((1, 4), (1, 4), None), 64
    cache = torch.zeros(2, 1, page, 8, dtype=torch.uint8)
    cache[1].view(-1)[: len(finite)] = finite
    given = PageCodes(kind, scale, scale)
    pages = Pages([LayerPages(cache, page, partial(write_codes, cache, given, False), given)], [layout], page, dtype)
    rows, before = pages.read(0, pages.slots([1], page)), cache.clone()
    cache[1].zero_()
    pages.write(0, pages.slots([1], page), rows)
    assert torch.equal(cache, before)


def test_measuring_refuses_what_it_cannot_read() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    cache = torch.arange(BLOCKS * SIZE * 4.0).reshape(BLOCKS, -1)
    before = cache.clone()

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        cache[0] = torch.cat([keys.flatten(), values.flatten()])

    Pages([LayerPages(cache, SIZE, write)], [layout], SIZE, torch.float32)
    assert torch.equal(cache, before)
    for wrong in (
        lambda keys, values, slots: cache[0].copy_(keys.sum()),
        # Every feature has a place, but a number of its own making.
        lambda keys, values, slots: write(keys * 2, values, slots),
    ):
        with pytest.raises(EmblemaError, match="give back"):
            Pages([LayerPages(cache, SIZE, wrong)], [layout], SIZE, torch.float32)
        assert torch.equal(cache, before)


def test_codes_of_another_scale_are_refused() -> None:
    layout, cache = LayerLayout((1, 4), (1, 4), None), torch.zeros(2, 1, SIZE, 8, dtype=torch.uint8)
    real, told = (PageCodes(torch.float8_e4m3fn, scale, scale) for scale in (1.0, 2.0))
    with pytest.raises(EmblemaError, match="give back the numbers"):
        Pages([LayerPages(cache, SIZE, partial(write_codes, cache, real, False), told)], [layout], SIZE, torch.float32)


def test_the_first_layer_alone_is_written_to_when_a_page_is_measured() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    caches = [torch.randn(BLOCKS, SIZE * 4) for _ in range(2)]

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        caches[0].view(-1)[: prod(caches[0][0].shape)] = torch.cat([keys.flatten(), values.flatten()])

    def not_written(*given: torch.Tensor) -> None:
        raise AssertionError("a layer was written to that is not measured")

    layers = [LayerPages(cache, SIZE, one) for cache, one in zip(caches, (write, not_written), strict=True)]
    pages = Pages(layers, [layout] * 2, SIZE, torch.float32)
    assert torch.equal(pages.read(1, torch.tensor([SIZE])).keys[0, 0], caches[1][1, :2])


def test_layers_that_keep_pages_in_different_forms_are_refused() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    layers = [LayerPages(torch.zeros(BLOCKS, size), SIZE, lambda *given: None) for size in (16, 24)]
    with pytest.raises(EmblemaError, match="different forms"):
        Pages(layers, [layout] * 2, SIZE, torch.float32)


def test_the_layouts_are_those_of_vllm() -> None:
    kinds = pytest.importorskip("vllm.v1.kv_cache_layout")
    assert {kind.name: kind.stride_order for kind in kinds.KVCacheLayout} == LAYOUTS


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_no_row_is_waited_for(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the device `meta`, on which whatever looks at a number raises, stand for a GPU's.

    Places of rows go there once for all layers; a run of slots, and what is read, does not move at all.
    """
    device, size, heads, width, layers = META, 16, 2, 8, 3
    layout, coded = LayerLayout((heads, width), (heads, width), None), kind != torch.bfloat16
    codes, written = PageCodes(kind, 0.5, 2.0) if coded else None, []

    def write(keys: Tensor, values: Tensor, slots: Tensor) -> None:
        written.append({keys.device, values.device, slots.device})

    def measured(pages: Pages) -> None:
        pages._places = (torch.zeros(size, heads, width, dtype=torch.int64, device=device),) * 2
        pages._strides = [
            FeatureStrides((size, heads, width), part, 2 * width, 2 * width * size, 1) for part in (0, width)
        ]

    monkeypatch.setattr(Pages, "_measure", measured)
    caches = [torch.zeros(BLOCKS, heads, size, 2 * width, dtype=torch.uint8 if coded else kind, device=device)] * layers
    given = [LayerPages(cache, size, write, codes) for cache in caches]
    pages = Pages(given, [layout] * layers, size, torch.bfloat16)
    slots = pages.slots([1, 3], 20)
    with OneDevice() as seen:
        places = pages.locate(slots)
        assert len(seen.moved) == 1
        for layer in range(layers):
            rows = pages.read(layer, places)
            assert rows.keys.shape == (heads, 20, width) and rows.keys.dtype == torch.bfloat16
            assert {rows.keys.device, rows.values.device, pages.rows.device} == {device}
            pages.write(layer, slice(16, 36), rows)
        assert len(seen.moved) == 1
        prompt = pages.locate_prompt([1, 3], 20)
        assert len(seen.moved) == 2
        for layer in range(layers):
            rows = pages.read(layer, prompt)
            assert rows.keys.shape == (heads, 20, width) and rows.keys.dtype == torch.bfloat16
            assert {rows.keys.device, rows.values.device} == {device}
        assert len(seen.moved) == 2
    assert written == [] if coded else written == [{device}] * layers
