"""What the rows of a forward see in one layer beside one another: rows set in their places, and who sees which."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, place, relocate
from emblema.models.adapter import Adapter
from emblema.stream.method import Found, Means, StreamRows
from emblema.stream.phases import PhaseTables
from emblema.stream.positions import Places


@dataclass(frozen=True, slots=True)
class Part:
    """Rows set in their places: [heads, rows, width] each, and what is added to their logits, [groups, rows]."""

    rows: LayerRows
    bias: Tensor


class Composer:
    """Sets rows of every layer in front of a forward's own.

    Args:
        adapter: whose rotary tables are used.
        places: of the stream.
        positions: [axes, rows] of what is always seen, as first written.
        frames: [rows] int64, rising, whose rows these are; the opening and the sinks stay where they were written.
        end: the position at which the forward's own rows begin.
        phases: kept for the stream; by default they are worked out anew.
    """

    def __init__(
        self,
        adapter: Adapter,
        places: Places,
        positions: Tensor,
        frames: Tensor,
        end: int,
        phases: PhaseTables | None = None,
    ) -> None:
        self.adapter, self.places, self.end = adapter, places, end
        self.phases = PhaseTables(adapter.tables) if phases is None else phases
        self.packed = places.zone is not None
        moving = frames >= places.sinks
        self.frames = torch.unique_consecutive(frames[moving])
        self.start = end - self.frames.shape[0] * places.span
        target = positions
        if self.packed:
            target = positions.clone()
            target[:, moving] = places.packed(positions[:, moving], frames[moving], end)
        self._still = torch.equal(positions, target)
        self._local = self._book(positions), self._book(target)

    def _book(self, positions: Tensor) -> PhaseBook:
        return self.phases.book(positions)

    def local(self, layout: LayerLayout, rows: LayerRows) -> Part:
        """What is always seen, and by all."""
        bias = torch.zeros(1, rows.tokens, device=self.adapter.device)
        return Part(rows if self._still else relocate(rows, layout, *self._local), bias)

    def found(self, layout: LayerLayout, found: Found) -> list[Part]:
        """What a memory handed out.

        Packed, a row's place depends on what else its group sees: every group then has rows of its own.
        """
        groups = 1 if found.shown is None else found.shown.shape[0]
        if found.placed or not self.packed or groups == 1:
            return self._found(layout, found)
        parts = []
        for group in range(groups):
            for part in self._found(layout, _of_group(found, group)):
                bias = torch.full((groups, part.rows.tokens), hidden(part.bias), device=part.bias.device)
                bias[group] = part.bias[0]
                parts.append(Part(part.rows, bias))
        return parts

    def _found(self, layout: LayerLayout, found: Found) -> list[Part]:
        parts, seen = [], self.frames
        if found.rows is not None:
            rows, shown = found.rows, found.shown
            seen = torch.cat((torch.unique_consecutive(rows.frames), seen))
            kv = rows.kv
            if self.packed and not found.placed:
                target = self.places.packed(rows.positions, rows.frames, self.start)
                kv = relocate(kv, layout, self._book(rows.positions), self._book(target))
            bias = torch.zeros(1, kv.tokens, device=self.adapter.device)
            parts.append(Part(kv, bias if shown is None else bias.masked_fill(~shown, hidden(bias))))
        if found.means is not None and found.means.when.shape[0]:
            parts.append(self._means(layout, found.means, seen))
        return parts

    def _means(self, layout: LayerLayout, means: Means, seen: Tensor) -> Part:
        target = self.places.means(means.when, seen, self.end)
        rows = place(LayerRows(means.keys, means.values), layout, self._book(target), self.adapter.dtype)
        weight = means.weight[None].expand(means.shown.shape)
        return Part(rows, weight.masked_fill(~means.shown, hidden(weight)))


def hidden(like: Tensor) -> float:
    """What is added to a logit that may not be seen."""
    return float(torch.finfo(like.dtype).min)


def _of_group(found: Found, group: int) -> Found:
    rows, means = found.rows, found.means
    if rows is not None and found.shown is not None:
        own = found.shown[group].nonzero().squeeze(1)
        rows = StreamRows(rows.kv.select(own), rows.positions[:, own], rows.frames[own])
    if means is not None:
        own = means.shown[group].nonzero().squeeze(1)
        kept = (means.keys[:, own], means.values[:, own], means.when[own], means.weight[own])
        means = Means(*kept, means.shown[group : group + 1, own])
    return Found(rows, None, means)
