"""The placing pass in torch's own operations, for every device: large runs of rows, written where they stay."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from emblema.kv.patch import Factors
from emblema.kv.placing import PlacedSegment, RowPlacement, SlotRows
from emblema.kv.rotation import rotate_into

RUN_ROWS = 2048
"""Rows of short segments that are gathered and worked on at once; a longer segment is one run."""


class TorchPlacer:
    """A `Placer` without code of its own: the reference of the others, and the quickest that was found on CPUs."""

    takes_layers_together = False

    def place(self, placement: RowPlacement, slots: Sequence[SlotRows]) -> None:
        """Write rows: turned, with what is added, in float32 and cast once."""
        runs = list(_runs(placement.segments))
        for slot in slots:
            for first, last in runs:
                _place_run(placement, slot, first, last)


def _runs(segments: Sequence[PlacedSegment]) -> Iterator[tuple[int, int]]:
    """Yield ranges of segments that are worked on together."""
    first, rows = 0, 0
    for index, segment in enumerate(segments):
        if rows and rows + segment.rows > RUN_ROWS:
            yield first, index
            first, rows = index, 0
        rows += segment.rows
    yield first, len(segments)


def _place_run(placement: RowPlacement, slot: SlotRows, first: int, last: int) -> None:
    segments = placement.segments[first:last]
    start, stop = segments[0].first, segments[-1].stop
    pieces = [
        source if segment.rows == source.shape[1] else source[:, segment.source : segment.source + segment.rows]
        for segment, source in zip(segments, slot.sources[first:last], strict=True)
    ]
    place = _direct(placement, slot.memory, start, stop)
    factors = slot.factors[first:last]
    if slot.band is None and all(held is None for held in factors):
        if place is None:
            _scatter(placement, slot.memory, start, stop, _joined(pieces))
        elif len(pieces) == 1:
            place.copy_(pieces[0])
        elif all(piece.dtype == place.dtype for piece in pieces):
            torch.cat(pieces, dim=1, out=place)
        else:
            place.copy_(_joined(pieces))
        return
    own = _joined(pieces).float()
    in_place = place is not None and place.dtype == torch.float32
    made = place if place is not None and in_place else torch.empty_like(own)
    if slot.band is None:
        made.copy_(own)
    else:
        rotate_into(made, own, slot.band, placement.turn(slot.band, start, stop))
    for run in _added(segments, factors):
        _add(placement, slot, run, made[:, run[0][0].first - start : run[-1][0].stop - start])
    if place is None:
        _scatter(placement, slot.memory, start, stop, made)
    elif not in_place:
        place.copy_(made)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)


def _direct(placement: RowPlacement, memory: Tensor, start: int, stop: int) -> Tensor | None:
    """Return the memory of rows of a placement as [heads, rows, width]; None where it is in several pieces."""
    if not isinstance(placement.slots, slice):
        return None
    first, last = placement.slots.start + start, placement.slots.start + stop
    size = memory.shape[1]
    if first // size != (last - 1) // size:
        return None
    return memory[first // size, first % size : (last - 1) % size + 1].transpose(0, 1)


def _scatter(placement: RowPlacement, memory: Tensor, start: int, stop: int, rows: Tensor) -> None:
    """Write rows [heads, rows, width] of a placement to their slots."""
    slots = placement.slot_indices[start:stop]
    size = memory.shape[1]
    memory[slots // size, slots % size] = rows.transpose(0, 1).to(memory.dtype)


Added = list[tuple[PlacedSegment, Factors]]
"""Segments one after another, with their factors."""


def _added(segments: Sequence[PlacedSegment], factors: Sequence[Factors | None]) -> Iterator[Added]:
    """Yield segments that something is added to. Those with the same directions are one product."""
    for directions, run in groupby(zip(segments, factors, strict=True), lambda pair: pair[1] and id(pair[1].right)):
        if directions is not None:
            yield [(segment, held) for segment, held in run if held is not None]


def _add(placement: RowPlacement, slot: SlotRows, run: Added, made: Tensor) -> None:
    """Add `R(p) U V` to rows [heads, rows, width] float32; the rotation is linear, so the order is free."""
    start, stop = run[0][0].first, run[-1][0].stop
    heads, _, width = made.shape
    left = torch.cat([held.left for _, held in run]) if len(run) > 1 else run[0][1].left
    left = left.float().expand(heads, -1, -1)
    right = run[0][1].right.float().unflatten(1, (heads, width)).transpose(0, 1)
    if slot.band is None:
        made.baddbmm_(left, right)
        return
    rotate_into(made, left @ right, slot.band, placement.home(slot.band, start, stop), add=True)
