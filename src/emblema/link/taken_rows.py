"""Taken rows, relocated and patched, written into the table: a rotation and a small product per layer, no forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from emblema.errors import LoadError, PlanError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, MappedRows, layer_is_here
from emblema.kv.patch import Factors, Patch
from emblema.kv.placers import placer_for
from emblema.kv.placing import LayerMemory, PlacedSegment, Placer, RowPlacement, SlotRows, band_of, scratch_memory
from emblema.kv.rotation import PhaseBook, RotaryTable
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, PrefixOrigin, RowRange, RowSource
from emblema.link.prompt import Prompt


class ModelGeometry(Protocol):
    """What relocation needs of a model; an adapter has it, and so has another engine's plugin."""

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


@runtime_checkable
class OpenSink(RowSink, Protocol):
    """A sink whose memory rows may be written to without its help."""

    def memory(self, layer: int) -> LayerMemory | None:
        """Return where a layer's rows are kept, on any device; None for no memory with strides, or not in numbers."""
        ...


@runtime_checkable
class StateSink(RowSink, Protocol):
    """A sink whose layers of linear attention take maps of their state."""

    def write_mapped(self, layer: int, first: int, rows: MappedRows, skip: int = 0) -> None: ...


@dataclass(frozen=True, slots=True)
class Resources:
    """The stored pieces that a plan names.

    Attributes:
        patches: by key.
        prefixes: rows of kept prompts, by entry.
        rows: canonical rows by chunk id; a chunk that is not named here brings its own.
    """

    patches: Mapping[ArtifactKey, Patch] = field(default_factory=dict)
    prefixes: Mapping[str, KVRows] = field(default_factory=dict)
    rows: Mapping[str, KVRows] = field(default_factory=dict)
    # Patches that a plan asks for at a lower rank than they have; cut once for all layers.
    _cut: dict[PatchUse, Patch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def chunk_rows(self, chunk: Chunk) -> KVRows:
        """Return the canonical rows of a chunk; reading a layer waits for it where they are being loaded."""
        return self.rows.get(chunk.id, chunk.rows)

    def prefix_rows(self, part: RowRange) -> KVRows:
        """Return the rows of the kept prompt that a range is taken from.

        Raises:
            PlanError: they were not handed over.
        """
        origin = part.origin
        if not isinstance(origin, PrefixOrigin) or origin.entry not in self.prefixes:
            raise PlanError(f"rows {part.start} to {part.stop} name a prefix that was not handed over")
        return self.prefixes[origin.entry]

    def factors(self, part: RowRange, layer: int) -> "SlotFactors":
        """Return one layer's factors of the patch of a range, for its rows and cut to its rank.

        Raises:
            PlanError: the patch was not handed over, or lacks the layer.
        """
        if part.patch is None:
            return None, None
        patch, rows = self.patches.get(part.patch.key), _chunk_rows(part)
        held = None if patch is None else self._patch(patch, part.patch).layers[layer]
        if held is None:
            raise PlanError(f"rows {part.start} to {part.stop} name a patch that was not handed over for layer {layer}")
        return _rows_of(held.keys, rows), _rows_of(held.values, rows)

    def _patch(self, patch: Patch, use: PatchUse) -> Patch:
        if use not in self._cut:
            self._cut[use] = patch.slice_evenly(use.rank) if use.even else patch.slice(use.rank)
        return self._cut[use]


SlotFactors = tuple[Factors | None, Factors | None]
"""One layer's factors for the keys and for the values; None where there are none."""


@dataclass(frozen=True, slots=True)
class LinkJob:
    """A prompt with the plan to link it by.

    Attributes:
        plan: the plan.
        prompt: the prompt that it was made for.
        resources: the stored pieces that the plan names.
        reused_rows: rows at the front that are in the table already and are left as they are.
    """

    plan: LinkPlan
    prompt: Prompt
    resources: Resources = Resources()
    reused_rows: int = 0


class TakenRows:
    """The taken rows of one plan, written into a table a layer at a time, as each layer is needed.

    Where a placer takes layers together, a call writes the later layers too whose rows are there.

    Args:
        model: the model's geometry.
        table: where the rows are written.
        slots: [rows] physical slot of each logical row; -1 where the table has none.
        job: the plan, its prompt and its resources.
        placer: who writes; by default the quickest for the model's device.

    Attributes:
        bytes_read: bytes of KV read so far.
        patch_bytes: bytes of patch factors read so far.

    Raises:
        PlanError: the plan names a chunk or prefix that was not handed over.
    """

    def __init__(
        self, model: ModelGeometry, table: RowSink, slots: Tensor, job: LinkJob, placer: Placer | None = None
    ) -> None:
        self.bytes_read = self.patch_bytes = 0
        self._model, self._table = model, table
        self._placer = placer_for(model.device) if placer is None else placer
        taken = [part for part in job.plan.ranges if part.source is RowSource.TAKEN and part.start >= job.reused_rows]
        self._prefixes = [
            (part, job.resources.prefix_rows(part), _contiguous(slots[part.start : part.stop], table.rows.device))
            for part in taken
            if isinstance(part.origin, PrefixOrigin)
        ]
        groups: dict[tuple[int, int], list[RowRange]] = {}
        for part in taken:
            if isinstance(part.origin, ChunkOrigin):
                groups.setdefault(part.layers, []).append(part)
        self._groups = [_RelocatedGroup(model, job, parts, slots) for parts in groups.values()]
        self._written: set[int] = set()

    def write(self, layer: int) -> None:
        """Write one layer's taken rows, relocated and patched.

        Raises:
            PlanError: a patch that the plan names was not handed over.
            LoadError: rows that were being loaded did not come.
        """
        for part, kept, where in self._prefixes:
            if part.layers[0] <= layer < part.layers[1]:
                rows = kept[layer].slice(part.start, part.stop)
                self._table.write(layer, where, rows)
                self.bytes_read += rows.bytes
        if layer in self._written:
            self._written.discard(layer)
            return
        layers = [layer]
        if self._placer.takes_layers_together and isinstance(self._table, OpenSink):
            later = range(layer + 1, len(self._model.layouts))
            layers += takewhile(lambda index: all(group.here(index) for group in self._groups), later)
        for group in self._groups:
            self._place(group, [index for index in layers if group.layers[0] <= index < group.layers[1]])
        self._written.update(layers[1:])

    def _place(self, group: "_RelocatedGroup", layers: Sequence[int]) -> None:
        slots: dict[torch.device, list[SlotRows]] = {}
        for layer in layers:
            layout = self._model.layouts[layer]
            if layout.mapped_from is not None and any(group.mapped(layer)):
                self._place_maps(group, layer)
                continue
            self.bytes_read += group.placement.rows * layout.features * self._model.dtype.itemsize
            memory = self._table.memory(layer) if isinstance(self._table, OpenSink) else None
            device = self._model.device if memory is None else memory.keys.device
            factors, read = group.factors(layer, device)
            self.patch_bytes += read
            if memory is not None:
                slots.setdefault(device, []).extend(group.slots(layer, factors, memory))
                continue
            # The sink writes in its own way, from rows of its dtype in order.
            self._table.write(layer, group.placement.slots, group.in_order(layer, factors, self._placer))
        for device, held in slots.items():
            placer = self._placer if device == self._model.device else placer_for(device)
            placer.place(group.placement.on(device), held)

    def _place_maps(self, group: "_RelocatedGroup", layer: int) -> None:
        """Write a layer's rows where those of some chunks are kept as maps of its state; it has no positions.

        Raises:
            PlanError: the table takes no maps.
            LoadError: a chunk's map is not of this model's shapes.
        """
        if not isinstance(self._table, StateSink):
            raise PlanError("rows that are kept as maps of a state cannot be written to this table")
        layout, rest = self._model.layouts[layer], []
        for part, (first, rows) in zip(group.parts, group.maps(layer), strict=True):
            if rows is None:
                rest.append(part)
                continue
            self._table.write_mapped(layer, first, rows, _chunk_rows(part).start)
            self.bytes_read += part.numbers_read(layout, rows.tokens) * self._model.dtype.itemsize
        if rest:
            self._place(group.only(rest), [layer])


def relocated(model: ModelGeometry, job: LinkJob, layer: int, rows: Tensor) -> LayerRows:
    """Return what some logical rows would be taken as in a layer: their chunks' rows, relocated, in the model's dtype.

    Raises:
        PlanError: the plan takes one of the rows from no chunk in any layer.
    """
    wanted = set(rows.tolist())
    parts = {
        (part.start, part.stop): part
        for part in job.plan.ranges
        if isinstance(part.origin, ChunkOrigin) and wanted.intersection(range(part.start, part.stop))
    }
    if not parts:
        raise PlanError("the plan takes none of the selector's candidates from a chunk")
    group = _RelocatedGroup(model, job, list(parts.values()), torch.arange(job.plan.rows))
    order = {
        row: index for index, row in enumerate(row for part in group.parts for row in range(part.start, part.stop))
    }
    if not wanted <= order.keys():
        raise PlanError("the plan takes some of the selector's candidates from no chunk")
    every = group.in_order(layer, [(None, None)] * len(parts), placer_for(model.device))
    return every.select(torch.tensor([order[int(row)] for row in rows], device=model.device))


class _RelocatedGroup:
    """Taken ranges that hold in the same layers, side by side.

    Attributes:
        parts: the ranges.
        layers: the first layer that they hold in, and the one after the last.
        placement: of their rows into the table.
        dense: of their rows one after another.

    Raises:
        PlanError: the prompt does not hold a chunk, or a range ends after its chunk.
    """

    def __init__(self, model: ModelGeometry, job: LinkJob, parts: Sequence[RowRange], slots: Tensor) -> None:
        self.parts, self.layers, self._model, self._resources = parts, parts[0].layers, model, job.resources
        self._job, self._slots = job, slots
        self._held: list[tuple[Chunk, KVRows]] = []
        known = {part.changed.base.id: part.changed.base for part in job.prompt.chunk_parts if part.changed is not None}
        known |= {chunk.id: chunk for _, chunk in job.prompt.chunk_segments}
        positions, segments, count = [], [], 0
        for part in parts:
            origin = part.origin
            if not isinstance(origin, ChunkOrigin) or origin.chunk not in known:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from no chunk that the prompt holds")
            chunk, span = known[origin.chunk], _chunk_rows(part)
            if span.start < 0 or span.stop > chunk.tokens:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from beyond the end of {chunk!r}")
            positions.append(chunk.encoded.positions[:, span] + chunk.base)
            segments.append(PlacedSegment(span.start, count, part.rows))
            count += part.rows
            self._held.append((chunk, job.resources.chunk_rows(chunk)))
        rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        source = PhaseBook(model.tables, _moved(torch.cat(positions, dim=1), model.device))
        target = PhaseBook(model.tables, _moved(job.prompt.positions[:, rows], model.device))
        self.placement = RowPlacement(tuple(segments), _contiguous(slots[rows], model.device), source, target)
        self.dense = replace(self.placement, slots=slice(0, count))

    def only(self, parts: Sequence[RowRange]) -> "_RelocatedGroup":
        """Return the group of some of the ranges."""
        return _RelocatedGroup(self._model, self._job, parts, self._slots)

    def mapped(self, layer: int) -> list[bool]:
        """Return of each range whether its chunk keeps a map of the layer's state in place of its rows."""
        return [layer < len(held) and isinstance(held[layer], MappedRows) for _, held in self._held]

    def maps(self, layer: int) -> list[tuple[int, MappedRows | None]]:
        """Return of each range the slot of its chunk's first row, and the chunk's rows where a map is among them.

        Raises:
            PlanError: such a chunk's slots are apart.
            LoadError: a map is not of this model's shapes.
        """
        found: list[tuple[int, MappedRows | None]] = []
        for part, (chunk, held) in zip(self.parts, self._held, strict=True):
            rows = held[layer] if layer < len(held) else None
            if not isinstance(rows, MappedRows):
                found.append((0, None))
                continue
            _check_map(chunk, rows, self._model.layouts[layer], layer)
            first = part.start - _chunk_rows(part).start
            slots = self._slots[max(0, first) : first + chunk.tokens]
            if len(slots) < chunk.tokens or bool((slots.diff() != 1).any()):
                raise PlanError(f"rows {part.start} to {part.stop} are a part of what {chunk!r} keeps as a map")
            found.append((int(slots[0]), rows))
        return found

    def here(self, layer: int) -> bool:
        """Return whether a layer's rows can be read without waiting, and without an error."""
        return not self.layers[0] <= layer < self.layers[1] or all(layer_is_here(held, layer) for _, held in self._held)

    def in_order(self, layer: int, factors: Sequence[SlotFactors], placer: Placer) -> LayerRows:
        """Return a layer's rows one after another, relocated and patched, in the model's dtype on its device."""
        scratch = scratch_memory(self._model.layouts[layer], self.placement.rows, self._model.dtype, self._model.device)
        placer.place(self.dense, self.slots(layer, factors, scratch))
        return LayerRows(scratch.keys[0].transpose(0, 1), scratch.values[0].transpose(0, 1))

    def slots(self, layer: int, factors: Sequence[SlotFactors], memory: LayerMemory) -> list[SlotRows]:
        """Return what is placed in both slots of a layer, with the chunks' rows on the device of its memory.

        Raises:
            LoadError: the chunks' rows are not what this model writes for so many tokens, or did not come.
        """
        layout, keys, values = self._model.layouts[layer], [], []
        for chunk, held in self._held:
            rows = held[layer] if layer < len(held) else None
            if (
                rows is None
                or rows.keys.shape != (layout.keys[0], chunk.tokens, layout.keys[1])
                or rows.values.shape != (layout.values[0], chunk.tokens, layout.values[1])
            ):
                raise LoadError(chunk.id, f"its rows of layer {layer} have other shapes than the model's")
            keys.append(_moved(rows.keys, memory.keys.device))
            values.append(_moved(rows.values, memory.keys.device))
        added = [tuple(slot[index] for slot in factors) for index in range(2)]
        return [
            SlotRows(tuple(keys), added[0], band_of(layout, "keys"), memory.keys),
            SlotRows(tuple(values), added[1], band_of(layout, "values"), memory.values),
        ]

    def factors(self, layer: int, device: torch.device) -> tuple[list[SlotFactors], int]:
        """Return what is added to each range in a layer, for keys and values, on a device, and the bytes of all of it.

        Raises:
            PlanError: a patch was not handed over.
        """
        layout = self._model.layouts[layer]
        found: list[SlotFactors] = [
            (None, None) if layout.is_mapped(chunk.tokens) else self._resources.factors(part, layer)
            for part, (chunk, _) in zip(self.parts, self._held, strict=True)
        ]
        read = sum(slot.bytes for slots in found for slot in slots if slot is not None)
        return _moved_factors(found, device), read


def _check_map(chunk: Chunk, rows: MappedRows, layout: LayerLayout, layer: int) -> None:
    """Raise LoadError where a chunk's map is not what this model makes of so many tokens."""
    held, state = layout.front + layout.edge, layout.state
    shapes = None
    if state is not None and layout.is_mapped(chunk.tokens) and len(rows.maps) == 1:
        shapes = [
            (layout.keys[0], held, layout.keys[1]),
            (layout.values[0], held, layout.values[1]),
            *rows.maps[0].shapes(state, len(rows.maps[0].heads)),
        ]
    spans = [(each.start, each.stop) for each in rows.maps]
    heads = rows.maps[0].heads if rows.maps else None
    if (
        [tuple(tensor.shape) for tensor in rows.tensors] != shapes
        or (spans, rows.edge) != ([(layout.front, chunk.tokens)], layout.edge)
        or state is None
        or heads is None
        or not all(0 <= head < state.heads for head in heads.tolist())
        or bool((heads.diff() <= 0).any())
    ):
        raise LoadError(chunk.id, f"its map of layer {layer} has other shapes than the model's")


def _chunk_rows(part: RowRange) -> slice:
    """Return the rows of its chunk that a range is taken from."""
    if not isinstance(part.origin, ChunkOrigin):
        raise PlanError(f"rows {part.start} to {part.stop} are not taken from a chunk")
    return slice(part.origin.offset, part.origin.offset + part.rows)


def _rows_of(factors: Factors, rows: slice) -> Factors:
    if rows.start == 0 and rows.stop >= len(factors.left):
        return factors
    return Factors(factors.left[rows], factors.right)


def _moved_factors(factors: Sequence[SlotFactors], device: torch.device) -> list[SlotFactors]:
    """Return factors on a device; those that share directions still do."""
    rights: dict[int, Tensor] = {}

    def moved(slot: Factors | None) -> Factors | None:
        if slot is None or slot.left.device == slot.right.device == device:
            return slot
        right = rights.setdefault(id(slot.right), _moved(slot.right, device))
        return Factors(_moved(slot.left, device), right)

    return [(moved(keys), moved(values)) for keys, values in factors]


def _contiguous(slots: Tensor, device: torch.device) -> Tensor | slice:
    """Return slots to write to; a slice where they follow one another, which is several times faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((slots.diff() == 1).all()):
        return slice(first, last + 1)
    return _moved(slots, device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. One that goes to a GPU is copied as the GPU comes to it: nothing here waits."""
    return tensor.to(device, non_blocking=device.type != "cpu")
