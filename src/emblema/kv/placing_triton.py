"""The placing pass as one Triton kernel over rows, layers and heads: each number is read and written once.

Grid: tiles of rows, layers, heads. A tile is rows of one segment: (segment, source row, destination row, rows). What
differs by layer and segment (addresses and strides) is a table of integers that is uploaded with the launch.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from emblema.kv.device import launching_on
from emblema.kv.placing import RowPlacement, SlotRows
from emblema.kv.placing_torch import TorchPlacer

TILE_ROWS = 32
WARPS = 8
RANK_BLOCK = 32
PIECE_FIELDS = 8
"""Integers of a segment in a layer: source, from head to head, from row to row; left, its row; right, its row; rank."""
ALIGNED_BYTES = 16

KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def place_rows(
    tiles,
    slots,
    pieces,
    memories,
    turn_cos,
    turn_sin,
    home_cos,
    home_sin,
    segments,
    page_rows,
    page,
    row,
    head_step,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
    START: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    FEATURE: tl.constexpr,
    PAIRS: tl.constexpr,
    ADDS: tl.constexpr,
    ALIGNED: tl.constexpr,
    CAST: tl.constexpr,
    TILE: tl.constexpr,
    RANKS: tl.constexpr,
    FIELDS: tl.constexpr,
):
    tile, layer, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    segment = tl.load(tiles + tile * 4)
    source_row = tl.load(tiles + tile * 4 + 1)
    first = tl.load(tiles + tile * 4 + 2)
    count = tl.load(tiles + tile * 4 + 3)
    piece = pieces + (layer * segments + segment) * FIELDS
    source = tl.cast(tl.load(piece), tl.pointer_type(KIND))
    source_head = tl.load(piece + 1)
    source_step = tl.load(piece + 2)
    memory = tl.cast(tl.load(memories + layer), tl.pointer_type(KIND))
    if ALIGNED:
        source = tl.multiple_of(source, 16)
        memory = tl.multiple_of(memory, 16)
        source_head = tl.multiple_of(source_head, 16)
        source_step = tl.multiple_of(source_step, 16)
        page = tl.multiple_of(page, 16)
        row = tl.multiple_of(row, 16)
        head_step = tl.multiple_of(head_step, 16)
    i = tl.arange(0, TILE)
    held = (i < count)[:, None]
    slot = tl.load(slots + first + i, mask=i < count, other=0)
    out = memory + ((slot // page_rows) * page + (slot % page_rows) * row + head * head_step)[:, None]
    own = source + (head * source_head + (source_row + i) * source_step)[:, None]
    if ADDS:
        left = tl.cast(tl.load(piece + 3), tl.pointer_type(KIND))
        left_step = tl.load(piece + 4)
        right = tl.cast(tl.load(piece + 5), tl.pointer_type(KIND))
        right_step = tl.load(piece + 6)
        rank = tl.load(piece + 7)
        if ALIGNED:
            left = tl.multiple_of(left, 16)
            right = tl.multiple_of(right, 16)
            right_step = tl.multiple_of(right_step, 16)
        lines = left + ((source_row + i) * left_step)[:, None]
        right += head * WIDTH
    if HALF > 0:
        j = tl.arange(0, HALF_BLOCK)
        both = tl.arange(0, 2 * HALF_BLOCK)
        inside = (j < HALF)[None]
        if PAIRS:
            rows = tl.load(own + START + both[None], mask=held & (both < 2 * HALF)[None], other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(rows, (TILE, HALF_BLOCK, 2)))
        else:
            a = tl.load(own + START + j[None], mask=held & inside, other=0.0).to(tl.float32)
            b = tl.load(own + START + HALF + j[None], mask=held & inside, other=0.0).to(tl.float32)
        phase = ((first + i) * HALF)[:, None] + j[None]
        cos = tl.load(turn_cos + phase, mask=held & inside, other=0.0)
        sin = tl.load(turn_sin + phase, mask=held & inside, other=0.0)
        one = a * cos - b * sin
        two = b * cos + a * sin
        if ADDS:  # noqa: SIM102 - without ADDS there is no rank
            if rank > 0:
                more = tl.zeros((TILE, HALF_BLOCK), dtype=tl.float32)
                most = tl.zeros((TILE, HALF_BLOCK), dtype=tl.float32)
                for begin in range(0, rank, RANKS):
                    k = begin + tl.arange(0, RANKS)
                    u = tl.load(lines + k[None], mask=held & (k < rank)[None], other=0.0)
                    known = (k < rank)[:, None]
                    at = right + (k * right_step)[:, None] + START
                    if PAIRS:
                        w = tl.load(at + both[None], mask=known & (both < 2 * HALF)[None], other=0.0)
                        v, w = tl.split(tl.reshape(w, (RANKS, HALF_BLOCK, 2)))
                    else:
                        v = tl.load(at + j[None], mask=known & inside, other=0.0)
                        w = tl.load(at + HALF + j[None], mask=known & inside, other=0.0)
                    if CAST:
                        u, v, w = u.to(tl.float32), v.to(tl.float32), w.to(tl.float32)
                    more = tl.dot(u, v, more, input_precision="ieee")
                    most = tl.dot(u, w, most, input_precision="ieee")
                cos = tl.load(home_cos + phase, mask=held & inside, other=0.0)
                sin = tl.load(home_sin + phase, mask=held & inside, other=0.0)
                one += more * cos - most * sin
                two += most * cos + more * sin
        if PAIRS:
            made = tl.reshape(tl.join(one, two), (TILE, 2 * HALF_BLOCK)).to(KIND)
            tl.store(out + (START + both[None]) * FEATURE, made, mask=held & (both < 2 * HALF)[None])
        else:
            tl.store(out + (START + j[None]) * FEATURE, one.to(KIND), mask=held & inside)
            tl.store(out + (START + HALF + j[None]) * FEATURE, two.to(KIND), mask=held & inside)
    if WIDTH > 2 * HALF:
        # What does not turn lies before and after the band.
        r = tl.arange(0, REST_BLOCK)
        rest = (r < WIDTH - 2 * HALF)[None]
        column = r
        if HALF > 0:
            column = tl.where(r < START, r, r + 2 * HALF)
        kept = tl.load(own + column[None], mask=held & rest, other=0.0)
        if ADDS:
            total = kept.to(tl.float32)
            for begin in range(0, rank, RANKS):
                k = begin + tl.arange(0, RANKS)
                u = tl.load(lines + k[None], mask=held & (k < rank)[None], other=0.0)
                w = tl.load(
                    right + (k * right_step)[:, None] + column[None], mask=(k < rank)[:, None] & rest, other=0.0
                )
                if CAST:
                    u, w = u.to(tl.float32), w.to(tl.float32)
                total = tl.dot(u, w, total, input_precision="ieee")
            kept = total.to(KIND)
        tl.store(out + column[None] * FEATURE, kept, mask=held & rest)


class TritonPlacer:
    """A `Placer` for GPUs. What the kernel has no form for, torch's own operations place."""

    takes_layers_together = True

    def __init__(self) -> None:
        self._others = TorchPlacer()

    def place(self, placement: RowPlacement, slots: Sequence[SlotRows]) -> None:
        """Write rows: turned, with what is added, in float32 and cast once. Layers that are alike are one launch."""
        alike: dict[Hashable, list[SlotRows]] = {}
        for slot in slots:
            if _fits(slot):
                alike.setdefault(_form(slot), []).append(slot)
            else:
                self._others.place(placement, [slot])
        for group in alike.values():
            _launch(placement, group)


def _fits(slot: SlotRows) -> bool:
    """Return whether the kernel has a form for a slot: all numbers of one kind, rows whole in memory."""
    kind = slot.memory.dtype
    tensors = [*slot.sources, *(side for held in slot.factors if held is not None for side in (held.left, held.right))]
    return kind in KINDS and all(tensor.dtype == kind and tensor.stride(-1) == 1 for tensor in tensors)


def _form(slot: SlotRows) -> Hashable:
    memory = slot.memory
    adds = any(held is not None for held in slot.factors)
    return slot.band, adds, memory.shape, memory.stride(), memory.dtype


def constants(slot: SlotRows, *, aligned: bool, interpreted: bool) -> dict[str, Any]:
    """Return what the kernel is compiled for, to place a slot and all that are alike."""
    band, width = slot.band, slot.memory.shape[3]
    half = 0 if band is None else band.width // 2
    return {
        "KIND": KINDS[slot.memory.dtype],
        "WIDTH": width,
        "START": 0 if band is None else band.start,
        "HALF": half,
        # A product's sides are 16 or more.
        "HALF_BLOCK": max(16, triton.next_power_of_2(max(1, half))),
        "REST_BLOCK": max(16, triton.next_power_of_2(max(1, width - 2 * half))),
        "FEATURE": slot.memory.stride(3),
        "PAIRS": band is not None and band.pairing == "pairs",
        "ADDS": any(held is not None for held in slot.factors),
        "ALIGNED": aligned,
        # The interpreter multiplies codes of bfloat16 as whole numbers (triton#11584).
        "CAST": interpreted,
        "TILE": TILE_ROWS,
        "RANKS": RANK_BLOCK,
        "FIELDS": PIECE_FIELDS,
    }


def _launch(placement: RowPlacement, slots: Sequence[SlotRows]) -> None:
    first = slots[0]
    memory, device = first.memory, first.memory.device
    pieces = [_piece(slot, index, placement) for slot in slots for index in range(len(placement.segments))]
    addresses = [slot.memory.data_ptr() for slot in slots]
    # Without a band no phases are read.
    sides = [torch.zeros(1, device=device)] * 4
    if first.band is not None:
        turn, home = placement.turn(first.band), placement.home(first.band)
        sides = [side.contiguous() for side in (turn.cos, turn.sin, home.cos, home.sin)]
    heads = memory.shape[2]
    tiles = placement.tiles(TILE_ROWS)
    interpreted = not isinstance(place_rows, triton.JITFunction)
    aligned = _aligned(first, pieces, addresses)
    known = constants(first, aligned=aligned, interpreted=interpreted)
    with launching_on(device):
        place_rows[(len(tiles), len(slots), heads)](
            tiles,
            placement.slot_indices,
            _uploaded(pieces, device),
            _uploaded(addresses, device),
            *sides,
            len(placement.segments),
            *(memory.shape[1], memory.stride(0), memory.stride(1), memory.stride(2)),
            **known,
            num_warps=WARPS,
        )


def _piece(slot: SlotRows, index: int, placement: RowPlacement) -> list[int]:
    """Return what the kernel has to know of a segment in a layer: `PIECE_FIELDS` integers.

    Factors are of the segment's own rows, sources of the whole chunk; the kernel counts both from the chunk's first.
    """
    source, held, segment = slot.sources[index], slot.factors[index], placement.segments[index]
    fields = [source.data_ptr(), source.stride(0), source.stride(1)]
    if held is None:
        return [*fields, 0, 0, 0, 0, 0]
    left = held.left.data_ptr() - segment.source * held.left.stride(0) * held.left.itemsize
    return [*fields, left, held.left.stride(0), held.right.data_ptr(), held.right.stride(0), held.rank]


def _aligned(slot: SlotRows, pieces: Sequence[Sequence[int]], addresses: Sequence[int]) -> bool:
    """Return whether all addresses and strides allow loads of 16 bytes, and strides divide by 16 as the kernel says."""
    strides = [step for piece in pieces for step in (piece[1], piece[2], piece[6])]
    held = [address for piece in pieces for address in (piece[0], piece[3], piece[5])]
    steps = [*strides, *slot.memory.stride()[:3]]
    return all(address % ALIGNED_BYTES == 0 for address in (*held, *addresses)) and all(
        step % 16 == 0 for step in steps
    )


def _uploaded(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Return integers on a device; the copy is made when the device comes to it."""
    made = torch.tensor(numbers, dtype=torch.int64)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)
