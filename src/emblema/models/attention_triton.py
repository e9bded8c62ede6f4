"""Attention of chosen rows of a prompt over a table as a Triton kernel: it reads rows and groups in place of a mask.

Queries of the heads that share a key head are packed into one axis (grouped queries). A few queries are split over the
table, and their parts joined by their sums (Flash-Decoding). The algorithm is that of FlashAttention-2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from emblema.kv.device import launching_on
from emblema.models.masks import TableOrder

BLOCK_QUERIES = 64
BLOCK_ROWS = 32
WARPS = 8
PROGRAMS = 128
"""Programs that a launch should have at least: fewer are split over the table."""


@triton.jit
def attend_rows(
    queries,
    keys,
    values,
    sums,
    highs,
    totals,
    query_rows,
    query_groups,
    table_rows,
    table_groups,
    hidden,
    scale,
    window,
    count,
    length,
    query_head,
    query_step,
    key_head,
    key_step,
    value_head,
    value_step,
    hidden_step,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    HIDES: tl.constexpr,
    CAST: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    tile, key_number, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    packed = tile * QUERIES + tl.arange(0, QUERIES)
    # Neighbouring places of the packed axis are heads of one row.
    row, head = packed // SHARED, packed % SHARED
    inside = packed < count * SHARED
    features, outs = tl.arange(0, WIDTH_BLOCK), tl.arange(0, VALUE_BLOCK)
    asked = tl.load(
        queries + (key_number * SHARED + head)[:, None] * query_head + row[:, None] * query_step + features[None, :],
        mask=inside[:, None] & (features[None, :] < WIDTH),
        other=0.0,
    )
    own_row = tl.load(query_rows + row, mask=inside, other=-1).to(tl.int32)
    own_group = tl.load(query_groups + row, mask=inside, other=-1).to(tl.int32)
    high = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    summed = tl.zeros((QUERIES, VALUE_BLOCK), tl.float32)
    for step in range(0, STEPS):
        slots = (split * STEPS + step) * ROWS + tl.arange(0, ROWS)
        held = slots < length
        their_row = tl.load(table_rows + slots, mask=held, other=0).to(tl.int32)
        their_group = tl.load(table_groups + slots, mask=held, other=-2).to(tl.int32)
        distance = own_row[:, None] - their_row[None, :]
        together = (own_group[:, None] == their_group[None, :]) & (own_group[:, None] >= 0)
        seen = (distance >= 0) | together
        if WINDOWED:
            seen = seen & (distance < window)
        seen = seen & held[None, :] & inside[:, None]
        if HIDES:
            away = tl.load(hidden + row[:, None] * hidden_step + slots[None, :], mask=seen, other=0)
            seen = seen & (away == 0)
        # Rows that no query of the tile sees are not read.
        if tl.max(seen.to(tl.int32)) > 0:
            key = tl.load(
                keys + key_number * key_head + slots[:, None] * key_step + features[None, :],
                mask=held[:, None] & (features[None, :] < WIDTH),
                other=0.0,
            )
            value = tl.load(
                values + key_number * value_head + slots[:, None] * value_step + outs[None, :],
                mask=held[:, None] & (outs[None, :] < VALUE_WIDTH),
                other=0.0,
            )
            if CAST:
                scores = tl.dot(asked.to(tl.float32), tl.trans(key.to(tl.float32)), input_precision="ieee")
            else:
                scores = tl.dot(asked, tl.trans(key), input_precision="ieee")
            scores = tl.where(seen, scores * scale, -1e30)
            risen = tl.maximum(high, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp(scores - risen[:, None]), 0.0)
            kept = tl.exp(high - risen)
            total = total * kept + tl.sum(weights, 1)
            summed = summed * kept[:, None]
            if CAST:
                summed += tl.dot(weights, value.to(tl.float32), input_precision="ieee")
            else:
                summed += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            high = risen
    place = (split * tl.num_programs(1) + key_number) * count * SHARED + packed
    tl.store(highs + place, high, mask=inside)
    tl.store(totals + place, total, mask=inside)
    tl.store(
        sums + place[:, None] * VALUE_WIDTH + outs[None, :],
        summed,
        mask=inside[:, None] & (outs[None, :] < VALUE_WIDTH),
    )


def attend(query: Tensor, key: Tensor, value: Tensor, order: TableOrder, scale: float) -> Tensor:
    """Return attention [heads, queries, value width] in the queries' dtype; nothing waits for the device.

    Args:
        query: [heads, queries, width]; the last axis lies in one piece, as in `key` and `value`.
        key: [key heads, slots, width].
        value: [key heads, slots, value width].
        order: which rows they are.
        scale: of the scores.
    """
    query, key, value = (each if each.stride(-1) == 1 else each.contiguous() for each in (query, key, value))
    heads, count, width = query.shape
    key_heads, length, out = key.shape[0], key.shape[1], value.shape[2]
    shared, device = heads // key_heads, query.device
    constants = kernel_constants(query, value, shared, order)
    tiles = triton.cdiv(count * shared, constants["QUERIES"])
    splits = max(1, min(triton.cdiv(length, 4 * BLOCK_ROWS), PROGRAMS // (tiles * key_heads)))
    # A number of steps is compiled in: powers of two are few.
    steps = triton.next_power_of_2(triton.cdiv(triton.cdiv(length, splits), BLOCK_ROWS))
    splits = triton.cdiv(length, steps * BLOCK_ROWS)
    shape = (splits, key_heads, count * shared)
    sums = torch.empty(*shape, out, dtype=torch.float32, device=device)
    highs, totals = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
    hidden = order.hidden_from
    if hidden is not None:
        hidden = hidden.to(torch.uint8)
    with launching_on(device):
        attend_rows[(tiles, key_heads, splits)](
            query, key, value, sums, highs, totals,
            order.query_rows, order.query_groups, order.table_rows, order.table_groups,
            order.query_rows if hidden is None else hidden,
            scale, order.window or 0, count, length,
            query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            0 if hidden is None else hidden.stride(0),
            **constants, STEPS=steps, num_warps=WARPS,
        )  # fmt: skip
    weights = (highs - highs.amax(dim=0)).exp()
    joined = (sums * weights[..., None]).sum(dim=0) / (totals * weights).sum(dim=0)[..., None]
    return joined.view(key_heads, count, shared, out).transpose(1, 2).reshape(heads, count, out).to(query.dtype)


def kernel_constants(query: Tensor, value: Tensor, shared: int, order: TableOrder) -> dict[str, int | bool]:
    """Return what a launch is compiled for."""
    width, out = query.shape[-1], value.shape[-1]
    return {
        "SHARED": shared,
        "WIDTH": width,
        "VALUE_WIDTH": out,
        "WIDTH_BLOCK": max(16, triton.next_power_of_2(width)),
        "VALUE_BLOCK": max(16, triton.next_power_of_2(out)),
        "WINDOWED": order.window is not None,
        "HIDES": order.hidden_from is not None,
        # The interpreter multiplies bfloat16 wrongly (triton issue 11584).
        "CAST": query.device.type == "cpu",
        # Wider rows would not fit the registers.
        "QUERIES": BLOCK_QUERIES if max(width, out) <= 256 else BLOCK_QUERIES // 2,
        "ROWS": BLOCK_ROWS,
    }
