"""Hold the attention kernel, as Triton's interpreter runs it, to attention with whole masks; a process of its own."""

import itertools
import sys

import torch

from emblema.kv.layout import LayerLayout
from emblema.models import attention
from emblema.models.attention_triton import attend
from emblema.models.masks import TableOrder, attention_masks
from emblema.models.tables import KVTable
from tests.families import loaded
from tests.families.running import joint, run_all

SHAPES = {"grouped": (6, 2, 16, 16), "one key a head": (3, 3, 32, 32), "uneven": (4, 1, 24, 40)}
"""Heads, key heads, width, width of values."""


def worst(shape: str, dtype: torch.dtype, kind: str, count: int, length: int) -> float:
    """Return the largest difference from attention by mask in float64, over what the dtype allows."""
    heads, key_heads, width, out = SHAPES[shape]
    generator = torch.Generator().manual_seed(count * length)
    rows = torch.randperm(2 * length, generator=generator)[:length]
    rows = rows if kind == "out of order" else rows.sort().values
    groups = torch.full((length,), -1)
    if kind == "groups":
        groups[length // 3 : length // 2] = 1
    table = KVTable((LayerLayout((1, 1), (1, 1), None),), length, torch.float64, "cpu")
    table.allocate(rows, groups)
    slots = torch.randperm(length, generator=generator)[:count].sort().values
    hidden = None
    if kind == "hidden":
        hidden = torch.rand(count, length, generator=generator) < 0.4
        hidden[torch.arange(count), slots] = False
    window = max(1, length // 2) if kind in ("window", "groups") else None
    query = torch.randn(count, heads, width, generator=generator).to(dtype).transpose(0, 1)
    key = torch.randn(key_heads, length + 3, width, generator=generator).to(dtype)[:, :length]
    value = torch.randn(key_heads, length + 3, out, generator=generator).to(dtype)[:, :length]
    mask = attention_masks(table, slots, (window,), hidden)[window][0]
    keys, values = (each.double().repeat_interleave(heads // key_heads, 0) for each in (key, value))
    expected = (query.double() @ keys.transpose(1, 2) * 0.3 + mask).softmax(-1) @ values
    order = TableOrder(rows[slots], groups[slots], rows, groups, hidden, window)
    found = attend(query, key, value, order, 0.3)
    allowed = 4e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    return float((found.double() - expected).abs().max() / expected.abs().max()) / allowed


def forwards_apart(name: str) -> float:
    """Return the largest difference of a model's logits where its layers attend by the kernel, over what is allowed."""
    item = loaded(name)
    prompt, *_ = joint(item)
    _, expected = run_all(item.adapter, prompt)
    called: list[int] = []

    def counted(*given: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return attend(*given)

    own = attention.row_kernel
    attention.row_kernel = lambda device: counted
    try:
        _, found = run_all(item.adapter, prompt)
    finally:
        attention.row_kernel = own
    if len(called) != len(item.adapter.layers):
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max()) / 1e-5


def main() -> None:
    kinds = ("plain", "out of order", "groups", "window", "hidden")
    sizes = ((1, 1), (1, 700), (5, 130), (70, 90))
    cases = [*itertools.product(SHAPES, (torch.float32,), kinds, sizes)]
    cases += [("grouped", dtype, "plain", (5, 130)) for dtype in (torch.float16, torch.bfloat16)]
    apart = {case: worst(*case[:3], *case[3]) for case in cases}
    apart |= {("model", name): forwards_apart(name) for name in ("qwen2_5_vl", "gemma3")}
    wrong = [f"{case}: {found:g}" for case, found in apart.items() if not found <= 1]
    print("\n".join(wrong))
    print(len(apart), "cases")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
