"""Taken rows, relocated and patched, written into the table: a rotation and a small product per layer, no forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from emblema.errors import LoadError, PlanError
from emblema.kv.artifacts import Artifact, KeyFactors, ResidualStream
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows
from emblema.kv.patch import Factors, Patch
from emblema.kv.rotation import PhaseBook, RotaryTable, rotate
from emblema.link.cost import features_read
from emblema.link.plan import ChunkOrigin, LinkPlan, PrefixOrigin, RowRange, Source
from emblema.link.prompt import Prompt
from emblema.models.adapter import Adapter
from emblema.store.keys import ArtifactKind, PatchKey


class ModelGeometry(Protocol):
    """What relocation has to know of a model: an adapter knows it, and so does a plugin of another engine."""

    @property
    def layouts(self) -> tuple[LayerLayout, ...]: ...

    @property
    def tables(self) -> Mapping[str, RotaryTable]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


class RowSink(Protocol):
    """Where taken rows are written; `rows` lies on the sink's device."""

    @property
    def rows(self) -> Tensor: ...

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None: ...


SlotFactors = tuple[Factors | None, Factors | None]
"""One layer's factors for the keys and for the values; None where there are none."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The stored pieces that a plan names.

    Attributes:
        artifacts: patches, key factors and residual streams, by key.
        prefixes: rows of kept prompts, by entry.
        rows: canonical rows by chunk id; a chunk that is not named here brings its own.
    """

    artifacts: Mapping[PatchKey, Artifact]
    prefixes: Mapping[str, KVRows]
    rows: Mapping[str, KVRows] = field(default_factory=dict)

    def chunk_rows(self, chunk: Chunk) -> KVRows:
        """The canonical rows of a chunk; those under way are waited for layer by layer."""
        return self.rows.get(chunk.id, chunk.rows)

    def residual_rows(self, key: PatchKey) -> Tensor | None:
        """The residual stream [tokens, hidden] of a key, or None.

        Raises:
            PlanError: the artifact of the key is something else.
        """
        held = self.artifacts.get(key)
        if held is not None and not isinstance(held, ResidualStream):
            raise PlanError(f"a {type(held).__name__} was handed over in place of a residual stream")
        return None if held is None else held.rows


@dataclass(frozen=True, slots=True)
class _Placed:
    """Taken ranges that hold in the same layers, side by side, with their source and target phases.

    Rows that are not to be relocated have their source as their target.
    """

    ranges: tuple[RowRange, ...]
    rows: Tensor
    source: PhaseBook
    target: PhaseBook
    relocated: bool


class TakenRows:
    """The taken rows of one plan, written into a table a layer at a time, as each layer is needed.

    Args:
        slots: [rows] physical slot of each logical row; -1 where the table has none.
        reused_rows: rows that stand in the table already, from the front; they are left as they are.

    Raises:
        PlanError: the plan names a chunk or prefix that was not handed over.
    """

    def __init__(
        self,
        adapter: ModelGeometry,
        table: RowSink,
        slots: Tensor,
        plan: LinkPlan,
        prompt: Prompt,
        resources: Resources,
        reused_rows: int = 0,
    ) -> None:
        self.adapter, self.table, self.slots, self.resources = adapter, table, slots, resources
        self.bytes_read = self.patch_bytes = 0
        self._chunks = {chunk.id: chunk for _, chunk in prompt.chunk_segments}
        taken = [part for part in plan.ranges if part.source is Source.TAKEN and part.start >= reused_rows]
        self._prefixes = [part for part in taken if isinstance(part.origin, PrefixOrigin)]
        for part in self._prefixes:
            self._entry(part)
        groups: dict[tuple[tuple[int, int], bool], list[RowRange]] = {}
        for part in taken:
            if isinstance(part.origin, ChunkOrigin):
                if part.origin.chunk not in self._chunks:
                    raise PlanError(f"the plan takes chunk {part.origin.chunk[:12]}, which the prompt does not hold")
                groups.setdefault((part.layers, part.origin.relocated), []).append(part)
        self._placed = [(layers, _place(adapter, prompt, self._chunks, parts)) for (layers, _), parts in groups.items()]

    def write(self, layer: int) -> None:
        """Write one layer's taken rows, relocated and patched.

        Raises:
            PlanError: a patch that the plan names was not handed over.
            LoadError: rows under way did not come.
        """
        layout = self.adapter.layouts[layer]
        for part in self._prefixes:
            if part.layers[0] <= layer < part.layers[1]:
                rows = self._entry(part)[layer].slice(part.start, part.stop)
                self.table.write(layer, self.slots[part.start : part.stop].to(self.table.rows.device), rows)
                self.bytes_read += rows.bytes
        dtype = self.adapter.dtype
        for (first, last), placed in self._placed:
            if first <= layer < last:
                rows = _relocated(layout, layer, placed, self._chunks, self.resources)
                numbers = sum(part.rows * features_read(part, layout) for part in placed.ranges)
                self.bytes_read += numbers * dtype.itemsize
                rows, added = _patched(rows, layout, layer, placed, self.resources.artifacts)
                self.patch_bytes += added
                where = _where(self.slots[placed.rows], self.adapter.device)
                self.table.write(layer, where, LayerRows(rows.keys.to(dtype), rows.values.to(dtype)))

    def _entry(self, part: RowRange) -> KVRows:
        origin = part.origin
        if not isinstance(origin, PrefixOrigin) or origin.entry not in self.resources.prefixes:
            raise PlanError(f"rows {part.start} to {part.stop} name a prefix that was not handed over")
        return self.resources.prefixes[origin.entry]


def _where(slots: Tensor, device: torch.device) -> Tensor | slice:
    """Slots to write to; a slice where they follow one another, which is several times faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((slots.diff() == 1).all()):
        return slice(first, last + 1)
    return slots.to(device)


def relocated(
    adapter: Adapter, plan: LinkPlan, prompt: Prompt, resources: Resources, layer: int, rows: Tensor
) -> LayerRows:
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
    every = _relocated(adapter.layouts[layer], layer, placed, chunks, resources)
    chosen = torch.tensor([order[int(row)] for row in rows], device=every.keys.device)
    kept = every.select(chosen)
    return LayerRows(kept.keys.to(adapter.dtype), kept.values.to(adapter.dtype))


def _place(adapter: ModelGeometry, prompt: Prompt, chunks: Mapping[str, Chunk], parts: list[RowRange]) -> _Placed:
    rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    source = torch.cat([_canonical(part, chunks) for part in parts], dim=1).to(adapter.device)
    source_book = PhaseBook(adapter.tables, source)
    if not _origin(parts[0]).relocated:
        return _Placed(tuple(parts), rows, source_book, source_book, False)
    target = prompt.positions[:, rows].to(adapter.device)
    return _Placed(tuple(parts), rows, source_book, PhaseBook(adapter.tables, target), True)


def _canonical(part: RowRange, chunks: Mapping[str, Chunk]) -> Tensor:
    origin = _origin(part)
    if origin.offset < 0 or origin.offset + part.rows > chunks[origin.chunk].tokens:
        raise PlanError(f"rows {part.start} to {part.stop} are taken from beyond the end of chunk {origin.chunk[:12]}")
    chunk = chunks[origin.chunk]
    return chunk.encoded.positions[:, origin.offset : origin.offset + part.rows] + chunk.base


def _origin(part: RowRange) -> ChunkOrigin:
    if not isinstance(part.origin, ChunkOrigin):
        raise PlanError(f"rows {part.start} to {part.stop} are not taken from a chunk")
    return part.origin


def _relocated(
    layout: LayerLayout, layer: int, placed: _Placed, chunks: Mapping[str, Chunk], resources: Resources
) -> LayerRows:
    device = placed.target.positions.device
    pieces = []
    for part in placed.ranges:
        origin = _origin(part)
        rows = _fitting(resources, chunks[origin.chunk], layout, layer)
        pieces.append(rows.slice(origin.offset, origin.offset + part.rows).to(device))
    keys = torch.cat([piece.keys for piece in pieces], dim=1)
    values = torch.cat([piece.values for piece in pieces], dim=1)
    band = layout.rotary
    if band is None or not placed.relocated:
        return LayerRows(keys, values)
    turn = placed.source(band).inverse().then(placed.target(band))
    if band.slot == "keys":
        return LayerRows(rotate(keys, band, turn), values)
    return LayerRows(keys, rotate(values, band, turn))


def _fitting(resources: Resources, chunk: Chunk, layout: LayerLayout, layer: int) -> LayerRows:
    """A chunk's rows of a layer; LoadError where they are not what this model writes for so many tokens."""
    held = resources.chunk_rows(chunk)
    rows = held[layer] if layer < len(held) else None
    shapes = [(heads, chunk.tokens, width) for heads, width in (layout.keys, layout.values)]
    if rows is None or [tuple(rows.keys.shape), tuple(rows.values.shape)] != shapes:
        raise LoadError(chunk.id, f"its rows of layer {layer} have other shapes than the model's")
    return rows


def _patched(
    rows: LayerRows, layout: LayerLayout, layer: int, placed: _Placed, artifacts: Mapping[PatchKey, Artifact]
) -> tuple[LayerRows, int]:
    """The rows with `R(p) U V` added wherever a range names a patch; the rotation is linear, so the order is free.

    Where a range names factors of its keys, their product takes the keys' place. Also the bytes of all factors.
    """
    if all(part.patch is None for part in placed.ranges):
        return rows, 0
    held = [_layer_factors(part, layer, artifacts) for part in placed.ranges]
    device = placed.target.positions.device
    keys = _shifts([keys for keys, _ in held], placed.ranges, layout.keys, device)
    values = _shifts([values for _, values in held], placed.ranges, layout.values, device)
    band = layout.rotary
    if band is not None and band.slot == "keys":
        keys = rotate(keys, band, placed.target(band))
    elif band is not None:
        values = rotate(values, band, placed.target(band))
    read = sum(_bytes(part, slots) for part, slots in zip(placed.ranges, held, strict=True))
    own = rows.keys.float()
    if any(map(_replaces, placed.ranges)):
        own = own * torch.cat(
            [torch.full((part.rows, 1), not _replaces(part), device=device) for part in placed.ranges]
        )
    return LayerRows(own + keys, rows.values.float() + values), read


def _replaces(part: RowRange) -> bool:
    return part.patch is not None and part.patch.key.kind is ArtifactKind.KEYS


def _bytes(part: RowRange, slots: SlotFactors) -> int:
    """Bytes of the factors read for a range; directions that a whole model shares are no item's."""
    shared = part.patch is not None and part.patch.key.kind is ArtifactKind.BASIS
    offset = _origin(part).offset
    return sum(
        one.left[offset : offset + part.rows].nbytes + (0 if shared else one.right.nbytes)
        for one in slots
        if one is not None
    )


def _shifts(
    factors: Sequence[Factors | None], ranges: Sequence[RowRange], shape: tuple[int, int], device: torch.device
) -> Tensor:
    """What patches add to the ranges' rows, [heads, rows, width] float32; zero where a range has none."""
    pieces = []
    for part, one in zip(ranges, factors, strict=True):
        if one is None:
            pieces.append(torch.zeros(part.rows, shape[0] * shape[1], device=device))
        else:
            offset = _origin(part).offset
            left = one.left[offset : offset + part.rows].to(device)
            pieces.append(left.float() @ one.right.to(device).float())
    shifts: Tensor = torch.cat(pieces).unflatten(1, shape).transpose(0, 1)
    return shifts


def _layer_factors(part: RowRange, layer: int, artifacts: Mapping[PatchKey, Artifact]) -> SlotFactors:
    if part.patch is None:
        return None, None
    artifact = artifacts.get(part.patch.key)
    if isinstance(artifact, KeyFactors):
        return artifact.layers[layer].slice(part.patch.rank), None
    held = artifact.layers[layer] if isinstance(artifact, Patch) else None
    if held is None:
        raise PlanError(f"rows {part.start} to {part.stop} name a patch that was not handed over for layer {layer}")
    return held.keys.slice(part.patch.rank), held.values.slice(part.patch.rank)
