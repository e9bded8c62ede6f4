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
from emblema.kv.rotation import PhaseBook, RotaryTable, turn_rows
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
        self._model, self._table, self._slots, self._resources = model, table, slots, job.resources
        taken = [part for part in job.plan.ranges if part.source is RowSource.TAKEN and part.start >= job.reused_rows]
        self._prefixes = [part for part in taken if isinstance(part.origin, PrefixOrigin)]
        for part in self._prefixes:
            job.resources.prefix_rows(part)
        groups: dict[tuple[tuple[int, int], bool], list[RowRange]] = {}
        for part in taken:
            if isinstance(part.origin, ChunkOrigin):
                groups.setdefault((part.layers, part.origin.relocated), []).append(part)
        self._groups = [(layers, _RelocatedGroup.of(model, job, parts)) for (layers, _), parts in groups.items()]

    def write(self, layer: int) -> None:
        """Write one layer's taken rows, relocated and patched.

        Raises:
            PlanError: a patch that the plan names was not handed over.
            LoadError: rows that were being loaded did not come.
        """
        for part in self._prefixes:
            if part.layers[0] <= layer < part.layers[1]:
                rows = self._resources.prefix_rows(part)[layer].slice(part.start, part.stop)
                self._table.write(layer, self._slots[part.start : part.stop].to(self._table.rows.device), rows)
                self.bytes_read += rows.bytes
        dtype, layout = self._model.dtype, self._model.layouts[layer]
        for (first, last), group in self._groups:
            if first <= layer < last:
                rows = group.relocated(layer, layout)
                numbers = sum(part.rows * part.features_read(layout) for part in group.ranges)
                self.bytes_read += numbers * dtype.itemsize
                rows, factor_bytes = group.patched(rows, layer, layout)
                self.patch_bytes += factor_bytes
                where = _contiguous(self._slots[group.rows], self._model.device)
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
    group = _RelocatedGroup.of(model, job, list(parts.values()))
    order = {int(row): index for index, row in enumerate(group.rows)}
    if not wanted <= order.keys():
        raise PlanError("the plan takes some of the selector's candidates from no chunk")
    every = group.relocated(layer, model.layouts[layer])
    kept = every.select(torch.tensor([order[int(row)] for row in rows], device=every.keys.device))
    return LayerRows(kept.keys.to(model.dtype), kept.values.to(model.dtype))


@dataclass(frozen=True, slots=True)
class _RelocatedGroup:
    """Taken ranges that hold in the same layers, side by side.

    Attributes:
        ranges: the ranges.
        chunks: the chunk of each.
        rows: [n] logical rows.
        source: phases of the positions that the rows were written at.
        target: phases of their positions in the prompt; the source's where rows are not relocated.
        resources: where canonical rows and patches are.
    """

    ranges: tuple[RowRange, ...]
    chunks: tuple[Chunk, ...]
    rows: Tensor
    source: PhaseBook
    target: PhaseBook
    resources: Resources

    @classmethod
    def of(cls, model: ModelGeometry, job: LinkJob, parts: Sequence[RowRange]) -> "_RelocatedGroup":
        """Return the group of some ranges, all of which are relocated or none.

        Raises:
            PlanError: the prompt does not hold a chunk, or a range ends after its chunk.
        """
        known = {chunk.id: chunk for _, chunk in job.prompt.chunk_segments}
        chunks, positions, relocated = [], [], False
        for part in parts:
            origin = part.origin
            if not isinstance(origin, ChunkOrigin) or origin.chunk not in known:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from no chunk that the prompt holds")
            chunk, span, relocated = known[origin.chunk], _chunk_rows(part), origin.relocated
            if span.start < 0 or span.stop > chunk.tokens:
                raise PlanError(f"rows {part.start} to {part.stop} are taken from beyond the end of {chunk!r}")
            chunks.append(chunk)
            positions.append(chunk.encoded.positions[:, span] + chunk.base)
        rows = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        source = PhaseBook(model.tables, torch.cat(positions, dim=1).to(model.device))
        target = PhaseBook(model.tables, job.prompt.positions[:, rows].to(model.device)) if relocated else source
        return cls(tuple(parts), tuple(chunks), rows, source, target, job.resources)

    def relocated(self, layer: int, layout: LayerLayout) -> LayerRows:
        """Return the chunks' rows of a layer, turned to their positions in the prompt.

        Raises:
            LoadError: they are not what this model writes for so many tokens, or did not come.
        """
        device = self.target.positions.device
        pieces = []
        for part, chunk in zip(self.ranges, self.chunks, strict=True):
            held = self.resources.chunk_rows(chunk)
            rows = held[layer] if layer < len(held) else None
            shapes = [(heads, chunk.tokens, width) for heads, width in (layout.keys, layout.values)]
            if rows is None or [tuple(rows.keys.shape), tuple(rows.values.shape)] != shapes:
                raise LoadError(chunk.id, f"its rows of layer {layer} have other shapes than the model's")
            span = _chunk_rows(part)
            pieces.append(rows.slice(span.start, span.stop).to(device))
        keys = torch.cat([piece.keys for piece in pieces], dim=1)
        values = torch.cat([piece.values for piece in pieces], dim=1)
        band = layout.rotary
        if band is None or self.source is self.target:
            return LayerRows(keys, values)
        return turn_rows(LayerRows(keys, values), band, self.source(band).inverse().then(self.target(band)))

    def patched(self, rows: LayerRows, layer: int, layout: LayerLayout) -> tuple[LayerRows, int]:
        """Return relocated rows with `R(p) U V` added wherever a range names a patch, and the bytes of all factors.

        The rotation is linear, so the order is free. Where a range names factors of its keys, their product replaces
        the keys.

        Raises:
            PlanError: a patch was not handed over.
        """
        if all(part.patch is None for part in self.ranges):
            return rows, 0
        factors = [self.resources.factors(part, layer) for part in self.ranges]
        device = self.target.positions.device
        shifts = LayerRows(
            self._shifts([keys for keys, _ in factors], layout.keys, device),
            self._shifts([values for _, values in factors], layout.values, device),
        )
        if layout.rotary is not None:
            shifts = turn_rows(shifts, layout.rotary, self.target(layout.rotary))
        own = rows.keys.float()
        if any(part.replaces_keys for part in self.ranges):
            kept = [torch.full((part.rows, 1), not part.replaces_keys, device=device) for part in self.ranges]
            own = own * torch.cat(kept)
        read = sum(_bytes(part, slots) for part, slots in zip(self.ranges, factors, strict=True))
        return LayerRows(own + shifts.keys, rows.values.float() + shifts.values), read

    def _shifts(self, factors: Sequence[Factors | None], shape: tuple[int, int], device: torch.device) -> Tensor:
        """Return what patches add to the rows, [heads, rows, width] float32; zero where a range has none."""
        pieces = [
            torch.zeros(part.rows, shape[0] * shape[1], device=device)
            if slot is None
            else slot.left.to(device).float() @ slot.right.to(device).float()
            for part, slot in zip(self.ranges, factors, strict=True)
        ]
        shifts: Tensor = torch.cat(pieces).unflatten(1, shape).transpose(0, 1)
        return shifts


def _chunk_rows(part: RowRange) -> slice:
    """Return the rows of its chunk that a range is taken from."""
    if not isinstance(part.origin, ChunkOrigin):
        raise PlanError(f"rows {part.start} to {part.stop} are not taken from a chunk")
    return slice(part.origin.offset, part.origin.offset + part.rows)


def _cut(factors: Factors, rows: slice, rank: int) -> Factors:
    return Factors(factors.left[rows, :rank], factors.right[:rank])


def _bytes(part: RowRange, slots: SlotFactors) -> int:
    """Return the bytes of factors read for a range; directions that a whole model shares are not counted."""
    shared = part.patch is not None and part.patch.key.kind in SHARED_DIRECTIONS
    return sum(slot.left.nbytes + (0 if shared else slot.right.nbytes) for slot in slots if slot is not None)


def _contiguous(slots: Tensor, device: torch.device) -> Tensor | slice:
    """Return slots to write to; a slice where they follow one another, which is several times faster."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((slots.diff() == 1).all()):
        return slice(first, last + 1)
    return slots.to(device)
