"""Taken rows, relocated and patched, written into the table: a rotation and a small product per layer, no forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from emblema.errors import LoadError, PlanError
from emblema.kv.artifacts import Artifact, KeyFactors, ResidualStream
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, RotaryBand
from emblema.kv.patch import Factors, Patch
from emblema.kv.rotation import PhaseBook, Phases, RotaryTable, turn_rows
from emblema.link.plan import SHARED_DIRECTIONS, ChunkOrigin, LinkPlan, PrefixOrigin, RowRange, RowSource
from emblema.link.prompt import Prompt
from emblema.store.keys import ArtifactKey


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


@dataclass(frozen=True, slots=True)
class Resources:
    """The stored pieces that a plan names.

    Attributes:
        artifacts: patches, key factors and residual streams, by key.
        prefixes: rows of kept prompts, by entry.
        rows: canonical rows by chunk id; a chunk that is not named here brings its own.
    """

    artifacts: Mapping[ArtifactKey, Artifact] = field(default_factory=dict)
    prefixes: Mapping[str, KVRows] = field(default_factory=dict)
    rows: Mapping[str, KVRows] = field(default_factory=dict)

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

    def residual_rows(self, part: RowRange) -> Tensor:
        """Return the rows of a residual stream [rows, hidden] that a range begins from.

        Raises:
            PlanError: it was not handed over, or is something else.
        """
        use = part.residual
        stream = None if use is None else self.artifacts.get(use.key)
        if use is None or stream is None:
            raise PlanError(f"rows {part.start} to {part.stop} name a residual stream that was not handed over")
        if not isinstance(stream, ResidualStream):
            raise PlanError(f"a {type(stream).__name__} was handed over in place of a residual stream")
        return stream.rows[use.offset : use.offset + part.rows]

    def factors(self, part: RowRange, layer: int) -> "SlotFactors":
        """Return one layer's factors of the patch of a range, for its rows and cut to its rank.

        Raises:
            PlanError: the patch was not handed over, or lacks the layer.
        """
        if part.patch is None:
            return None, None
        artifact, rows = self.artifacts.get(part.patch.key), _chunk_rows(part)
        if isinstance(artifact, KeyFactors):
            return _cut(artifact.layers[layer], rows, part.patch.rank), None
        held = artifact.layers[layer] if isinstance(artifact, Patch) else None
        if held is None:
            raise PlanError(f"rows {part.start} to {part.stop} name a patch that was not handed over for layer {layer}")
        return _cut(held.keys, rows, part.patch.rank), _cut(held.values, rows, part.patch.rank)


BLOCK_ROWS = 640
"""Rows that are turned and patched at once, so that what is worked on stays in a core's cache."""

SlotFactors = tuple[Factors | None, Factors | None]
"""One layer's factors for the keys and for the values; None where there are none."""


@dataclass(frozen=True, slots=True)
class ShareSample:
    """How many computed rows of chunks have noted what they attend; `seed` chooses them where there are more."""

    rows: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LinkJob:
    """A prompt with the plan to link it by.

    Attributes:
        plan: the plan.
        prompt: the prompt that it was made for.
        resources: the stored pieces that the plan names.
        reused_rows: rows at the front that are in the table already and are left as they are.
        sample: rows of chunks whose attention is noted in the last forward; None for none.
    """

    plan: LinkPlan
    prompt: Prompt
    resources: Resources = Resources()
    reused_rows: int = 0
    sample: ShareSample | None = None


class TakenRows:
    """The taken rows of one plan, written into a table a layer at a time, as each layer is needed.

    Args:
        model: the model's geometry.
        table: where the rows are written.
        slots: [rows] physical slot of each logical row; -1 where the table has none.
        job: the plan, its prompt and its resources.

    Attributes:
        bytes_read: bytes of KV read so far.
        patch_bytes: bytes of patch factors read so far.

    Raises:
        PlanError: the plan names a chunk or prefix that was not handed over.
    """

    def __init__(self, model: ModelGeometry, table: RowSink, slots: Tensor, job: LinkJob) -> None:
        self.bytes_read = self.patch_bytes = 0
        self._model, self._table = model, table
        taken = [part for part in job.plan.ranges if part.source is RowSource.TAKEN and part.start >= job.reused_rows]
        self._prefixes = [
            (part, job.resources.prefix_rows(part), _contiguous(slots[part.start : part.stop], table.rows.device))
            for part in taken
            if isinstance(part.origin, PrefixOrigin)
        ]
        groups: dict[tuple[tuple[int, int], bool], list[RowRange]] = {}
        for part in taken:
            if isinstance(part.origin, ChunkOrigin):
                groups.setdefault((part.layers, part.origin.relocated), []).append(part)
        made = [
            (layers, group)
            for (layers, _), parts in groups.items()
            for group in _RelocatedGroup.of(model, job, parts, BLOCK_ROWS)
        ]
        self._groups = [(layers, group, _contiguous(slots[group.rows], model.device)) for layers, group in made]

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
        dtype, layout = self._model.dtype, self._model.layouts[layer]
        for (first, last), group, where in self._groups:
            if first <= layer < last:
                rows = group.relocated(layer, layout)
                numbers = sum(part.rows * part.features_read(layout) for part in group.ranges)
                self.bytes_read += numbers * dtype.itemsize
                rows, factor_bytes = group.patched(rows, layer, layout)
                self.patch_bytes += factor_bytes
                self._table.write(layer, where, LayerRows(rows.keys.to(dtype), rows.values.to(dtype)))


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
    (group,) = _RelocatedGroup.of(model, job, list(parts.values()))
    order = {int(row): index for index, row in enumerate(group.rows)}
    if not wanted <= order.keys():
        raise PlanError("the plan takes some of the selector's candidates from no chunk")
    every = group.relocated(layer, model.layouts[layer])
    kept = every.select(torch.tensor([order[int(row)] for row in rows], device=every.keys.device))
    return LayerRows(kept.keys.to(model.dtype), kept.values.to(model.dtype))


@dataclass(frozen=True, slots=True)
class _TakenRange:
    """A range with the chunk that it is taken from.

    Attributes:
        part: the range.
        chunk: the chunk.
        held: the chunk's canonical rows.
        span: the rows of it that are taken.
        start, stop: of the range among the rows of its group.
    """

    part: RowRange
    chunk: Chunk
    held: KVRows
    span: slice
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _RelocatedGroup:
    """Taken ranges that hold in the same layers, side by side.

    Attributes:
        taken: the ranges.
        rows: [n] logical rows.
        source: phases of the positions that the rows were written at.
        target: phases of their positions in the prompt; the source's where rows are not relocated.
        resources: where patches are.
        turns: by band, phases from the source to the target, as they are first needed.
        placed: by band and rows, phases of the target, likewise.
    """

    taken: tuple[_TakenRange, ...]
    rows: Tensor
    source: PhaseBook
    target: PhaseBook
    resources: Resources
    turns: dict[RotaryBand, Phases]
    placed: dict[tuple[RotaryBand, int, int], Phases]

    @property
    def ranges(self) -> list[RowRange]:
        return [taken.part for taken in self.taken]

    @classmethod
    def of(
        cls, model: ModelGeometry, job: LinkJob, parts: Sequence[RowRange], most: int | None = None
    ) -> "list[_RelocatedGroup]":
        """Return some ranges, all of which are relocated or none, in groups of `most` rows or of one range.

        Raises:
            PlanError: the prompt does not hold a chunk, or a range ends after its chunk.
        """
        known = {chunk.id: chunk for _, chunk in job.prompt.chunk_segments}
        positions, blocks, relocated, count = [], [list[_TakenRange]()], False, 0
        for part in parts:
            origin = part.origin
            if not isinstance(origin, ChunkOrigin) or origin.chunk not in known:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from no chunk that the prompt holds")
            chunk, span, relocated = known[origin.chunk], _chunk_rows(part), origin.relocated
            if span.start < 0 or span.stop > chunk.tokens:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from beyond the end of {chunk!r}")
            positions.append(chunk.encoded.positions[:, span] + chunk.base)
            if most is not None and count and count + part.rows > most:
                blocks.append([])
                count = 0
            held = job.resources.chunk_rows(chunk)
            blocks[-1].append(_TakenRange(part, chunk, held, span, count, count + part.rows))
            count += part.rows
        rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        source = PhaseBook(model.tables, _moved(torch.cat(positions, dim=1), model.device))
        target = PhaseBook(model.tables, _moved(job.prompt.positions[:, rows], model.device)) if relocated else source
        groups, first = [], 0
        for block in blocks:
            last = first + block[-1].stop
            old = source.slice(first, last)
            new = target.slice(first, last) if relocated else old
            groups.append(cls(tuple(block), rows[first:last], old, new, job.resources, {}, {}))
            first = last
        return groups

    def relocated(self, layer: int, layout: LayerLayout) -> LayerRows:
        """Return a copy of the chunks' rows of a layer, turned to their positions in the prompt.

        Raises:
            LoadError: they are not what this model writes for so many tokens, or did not come.
        """
        device = self.target.positions.device
        pieces = []
        for taken in self.taken:
            rows = taken.held[layer] if layer < len(taken.held) else None
            tokens = taken.chunk.tokens
            if (
                rows is None
                or rows.keys.shape != (layout.keys[0], tokens, layout.keys[1])
                or rows.values.shape != (layout.values[0], tokens, layout.values[1])
            ):
                raise LoadError(taken.chunk.id, f"its rows of layer {layer} have other shapes than the model's")
            pieces.append(rows if taken.part.rows == tokens else rows.slice(taken.span.start, taken.span.stop))
        keys = torch.cat([_moved(piece.keys, device) for piece in pieces], dim=1)
        values = torch.cat([_moved(piece.values, device) for piece in pieces], dim=1)
        band = layout.rotary
        if band is None or self.source is self.target:
            return LayerRows(keys, values)
        if band not in self.turns:
            self.turns[band] = self.source(band).inverse().then(self.target(band))
        return turn_rows(LayerRows(keys, values), band, self.turns[band])

    def patched(self, rows: LayerRows, layer: int, layout: LayerLayout) -> tuple[LayerRows, int]:
        """Return relocated rows with `R(p) U V` added wherever a range names a patch, and the bytes of all factors.

        The rotation is linear, so the order is free. Where a range names factors of its keys, their product replaces
        the keys.

        Raises:
            PlanError: a patch was not handed over.
        """
        if all(taken.part.patch is None for taken in self.taken):
            return rows, 0
        keys, values, read = rows.keys.float(), rows.values.float(), 0
        factors = [self.resources.factors(taken.part, layer) for taken in self.taken]
        # Patches on directions that a model shares are one product.
        for directions, run in groupby(zip(self.taken, factors, strict=True), lambda pair: _directions(pair[1])):
            if directions is None:
                continue
            patches = list(run)
            start, stop = patches[0][0].start, patches[-1][0].stop
            count = stop - start
            shift = LayerRows(
                self._shift([slots[0] for _, slots in patches], count, layout.keys),
                self._shift([slots[1] for _, slots in patches], count, layout.values),
            )
            if layout.rotary is not None:
                shift = turn_rows(shift, layout.rotary, self._placed(layout.rotary, start, stop))
            for taken, slots in patches:
                read += _bytes(taken.part, slots)
                if taken.part.replaces_keys:
                    keys[:, taken.start : taken.stop] = 0
            keys[:, start:stop] += shift.keys
            values[:, start:stop] += shift.values
        return LayerRows(keys, values), read

    def _placed(self, band: RotaryBand, start: int, stop: int) -> Phases:
        """Return phases of the positions in the prompt of rows `start` to `stop`."""
        if (band, start, stop) not in self.placed:
            self.placed[band, start, stop] = self.target(band).slice(start, stop)
        return self.placed[band, start, stop]

    def _shift(self, factors: Sequence[Factors | None], rows: int, shape: tuple[int, int]) -> Tensor:
        """Return what factors with the same directions add to rows one after another, [heads, rows, width] float32.

        It is zero where there are none.
        """
        device = self.target.positions.device
        found = [slot for slot in factors if slot is not None]
        if not found:
            return torch.zeros(shape[0], 1, shape[1], device=device).expand(-1, rows, -1)
        left = _moved(torch.cat([slot.left for slot in found]), device).float()
        product: Tensor = (left @ _moved(found[0].right, device).float()).unflatten(1, shape).transpose(0, 1)
        return product


def _chunk_rows(part: RowRange) -> slice:
    """Return the rows of its chunk that a range is taken from."""
    if not isinstance(part.origin, ChunkOrigin):
        raise PlanError(f"rows {part.start} to {part.stop} are not taken from a chunk")
    return slice(part.origin.offset, part.origin.offset + part.rows)


def _cut(factors: Factors, rows: slice, rank: int) -> Factors:
    if rank >= factors.rank and rows.start == 0 and rows.stop >= len(factors.left):
        return factors
    return Factors(factors.left[rows, :rank], factors.right[:rank])


def _directions(slots: SlotFactors) -> tuple[int, ...] | None:
    """Return what names the directions of a range's factors while they are held; None where it has none."""
    return tuple(id(slot.right) for slot in slots if slot is not None) or None


def _bytes(part: RowRange, slots: SlotFactors) -> int:
    """Return the bytes of factors read for a range; directions that a whole model shares are not counted."""
    shared = part.patch is not None and part.patch.key.kind in SHARED_DIRECTIONS
    return sum(slot.left.nbytes + (0 if shared else slot.right.nbytes) for slot in slots if slot is not None)


def _contiguous(slots: Tensor, device: torch.device) -> Tensor | slice:
    """Return slots to write to; a slice where they follow one another, which is several times faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((slots.diff() == 1).all()):
        return slice(first, last + 1)
    return _moved(slots, device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. One that goes to a GPU is copied as the GPU comes to it: nothing here waits."""
    return tensor.to(device, non_blocking=device.type != "cpu")
