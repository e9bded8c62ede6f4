"""Taken rows, relocated and patched, written into the table: a rotation and a small product per layer, no forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.kv.rotation import PhaseBook, rotate
from emblema.link.plan import ChunkOrigin, LinkPlan, PrefixOrigin, RowRange, Source
from emblema.link.prompt import Prompt
from emblema.models.adapter import Adapter
from emblema.models.table import KVTable
from emblema.store.keys import PatchKey


@dataclass(frozen=True, slots=True)
class _Placed:
    """Taken ranges that hold in the same layers, side by side, with their source and target phases."""

    ranges: tuple[RowRange, ...]
    rows: Tensor
    source: PhaseBook
    target: PhaseBook


def assemble(
    adapter: Adapter,
    table: KVTable,
    slots: Tensor,
    plan: LinkPlan,
    prompt: Prompt,
    patches: Mapping[PatchKey, Patch],
    prefixes: Mapping[str, KVRows],
) -> tuple[int, int]:
    """Write every taken row of the plan.

    Args:
        slots: [rows] physical slot of each logical row.

    Returns:
        Bytes of KV read and bytes of patches added.

    Raises:
        PlanError: the plan names a chunk, patch or prefix that was not handed over.
    """
    chunks = {chunk.id: chunk for _, chunk in prompt.chunk_segments}
    bytes_read = patch_bytes = 0
    for part in plan.ranges:
        if part.source is Source.TAKEN and isinstance(part.origin, PrefixOrigin):
            bytes_read += _copy_prefix(table, slots, part, prefixes)
    groups: dict[tuple[int, int], list[RowRange]] = {}
    for part in plan.ranges:
        if part.source is Source.TAKEN and isinstance(part.origin, ChunkOrigin):
            if part.origin.chunk not in chunks:
                raise PlanError(f"the plan takes chunk {part.origin.chunk[:12]}, which the prompt does not hold")
            groups.setdefault(part.layers, []).append(part)
    for (first, last), parts in groups.items():
        placed = _place(adapter, prompt, chunks, parts)
        where = _where(slots[placed.rows], adapter.device)
        for layer in range(first, last):
            rows = _relocated(adapter.layouts[layer], layer, placed, chunks)
            bytes_read += rows.tokens * adapter.layouts[layer].features * adapter.dtype.itemsize
            rows, added = _patched(rows, adapter.layouts[layer], layer, placed, patches)
            patch_bytes += added
            table.write(layer, where, LayerRows(rows.keys.to(adapter.dtype), rows.values.to(adapter.dtype)))
    return bytes_read, patch_bytes


def _where(slots: Tensor, device: torch.device) -> Tensor | slice:
    """Slots to write to; a slice where they follow one another, which is several times faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((slots.diff() == 1).all()):
        return slice(first, last + 1)
    return slots.to(device)


def relocated(adapter: Adapter, plan: LinkPlan, prompt: Prompt, layer: int, rows: Tensor) -> LayerRows:
    """What some logical rows would be taken as in a layer: their chunks' rows, relocated, in the model's dtype.

    Raises:
        PlanError: the plan takes one of the rows from no chunk in any layer.
    """
    chunks = {chunk.id: chunk for _, chunk in prompt.chunk_segments}
    wanted = set(rows.tolist())
    parts = {
        (part.start, part.stop): part
        for part in plan.ranges
        if isinstance(part.origin, ChunkOrigin) and wanted.intersection(range(part.start, part.stop))
    }
    if not parts:
        raise PlanError("the plan takes none of the selector's candidates from a chunk")
    placed = _place(adapter, prompt, chunks, list(parts.values()))
    order = {int(row): index for index, row in enumerate(placed.rows)}
    if not wanted <= order.keys():
        raise PlanError("the plan takes some of the selector's candidates from no chunk")
    every = _relocated(adapter.layouts[layer], layer, placed, chunks)
    chosen = torch.tensor([order[int(row)] for row in rows], device=every.keys.device)
    kept = every.select(chosen)
    return LayerRows(kept.keys.to(adapter.dtype), kept.values.to(adapter.dtype))


def _copy_prefix(table: KVTable, slots: Tensor, part: RowRange, prefixes: Mapping[str, KVRows]) -> int:
    origin = part.origin
    if not isinstance(origin, PrefixOrigin) or origin.entry not in prefixes:
        raise PlanError(f"rows {part.start} to {part.stop} name a prefix that was not handed over")
    where = slots[part.start : part.stop].to(table.rows.device)
    read = 0
    for layer in range(*part.layers):
        rows = prefixes[origin.entry][layer].slice(part.start, part.stop)
        table.write(layer, where, rows)
        read += rows.bytes
    return read


def _place(adapter: Adapter, prompt: Prompt, chunks: Mapping[str, Chunk], parts: list[RowRange]) -> _Placed:
    rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    source = torch.cat([_canonical(part, chunks) for part in parts], dim=1).to(adapter.device)
    target = prompt.positions[:, rows].to(adapter.device)
    return _Placed(tuple(parts), rows, PhaseBook(adapter.tables, source), PhaseBook(adapter.tables, target))


def _canonical(part: RowRange, chunks: Mapping[str, Chunk]) -> Tensor:
    origin = _origin(part)
    if origin.offset < 0 or origin.offset + part.rows > chunks[origin.chunk].tokens:
        raise PlanError(f"rows {part.start} to {part.stop} are taken from beyond the end of chunk {origin.chunk[:12]}")
    return chunks[origin.chunk].encoded.positions[:, origin.offset : origin.offset + part.rows]


def _origin(part: RowRange) -> ChunkOrigin:
    if not isinstance(part.origin, ChunkOrigin):
        raise PlanError(f"rows {part.start} to {part.stop} are not taken from a chunk")
    return part.origin


def _relocated(layout: LayerLayout, layer: int, placed: _Placed, chunks: Mapping[str, Chunk]) -> LayerRows:
    pieces = []
    for part in placed.ranges:
        origin = _origin(part)
        pieces.append(chunks[origin.chunk].rows[layer].slice(origin.offset, origin.offset + part.rows))
    keys = torch.cat([piece.keys for piece in pieces], dim=1)
    values = torch.cat([piece.values for piece in pieces], dim=1)
    band = layout.rotary
    if band is None:
        return LayerRows(keys, values)
    turn = placed.source(band).inverse().then(placed.target(band))
    if band.slot == "keys":
        return LayerRows(rotate(keys, band, turn), values)
    return LayerRows(keys, rotate(values, band, turn))


def _patched(
    rows: LayerRows, layout: LayerLayout, layer: int, placed: _Placed, patches: Mapping[PatchKey, Patch]
) -> tuple[LayerRows, int]:
    """The rows with `R(p) U V` added wherever a range names a patch; the rotation is linear, so the order is free."""
    if all(part.patch is None for part in placed.ranges):
        return rows, 0
    held = [_layer_patch(part, layer, patches) for part in placed.ranges]
    keys = _shifts([None if patch is None else patch.keys for patch in held], placed.ranges, layout.keys)
    values = _shifts([None if patch is None else patch.values for patch in held], placed.ranges, layout.values)
    band = layout.rotary
    if band is not None and band.slot == "keys":
        keys = rotate(keys, band, placed.target(band))
    elif band is not None:
        values = rotate(values, band, placed.target(band))
    added = sum(patch.bytes for patch in held if patch is not None)
    return LayerRows(rows.keys.float() + keys, rows.values.float() + values), added


def _shifts(factors: Sequence[Factors | None], ranges: Sequence[RowRange], shape: tuple[int, int]) -> Tensor:
    """What patches add to the ranges' rows, [heads, rows, width] float32; zero where a range has none."""
    device = next(one.left.device for one in factors if one is not None)
    pieces = []
    for part, one in zip(ranges, factors, strict=True):
        if one is None:
            pieces.append(torch.zeros(part.rows, shape[0] * shape[1], device=device))
        else:
            offset = _origin(part).offset
            pieces.append(one.left[offset : offset + part.rows].float() @ one.right.float())
    shifts: Tensor = torch.cat(pieces).unflatten(1, shape).transpose(0, 1)
    return shifts


def _layer_patch(part: RowRange, layer: int, patches: Mapping[PatchKey, Patch]) -> LayerPatch | None:
    if part.patch is None:
        return None
    patch = patches.get(part.patch.key)
    held = None if patch is None else patch.layers[layer]
    if held is None:
        raise PlanError(f"rows {part.start} to {part.stop} name a patch that was not handed over for layer {layer}")
    return LayerPatch(held.keys.slice(part.patch.rank), held.values.slice(part.patch.rank))
