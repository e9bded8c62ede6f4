"""What the rows of a forward attend in one layer besides one another: rows at their positions, and who sees which."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import place, relocate
from emblema.stream.method import Centroids, Method, Query, Selection, VisibleRange
from emblema.stream.recent import RecentWindow


@dataclass(frozen=True, slots=True)
class ContextRows:
    """Rows at their positions, [heads, rows, width] each, and what is added to their logits, [groups, rows]."""

    rows: LayerRows
    bias: Tensor


class MemoryContext:
    """Hands out the recent window and what a memory selects, layer by layer, for one block or one question.

    Args:
        method: the memory.
        recent: the recent window.
        visible: frames that may be seen.
        end: the position at which the forward's own rows begin.
        question: for a question, whose rows come after the block under way and see the same in every forward; the
            rows of a block see one another through its table instead.
    """

    def __init__(self, method: Method, recent: RecentWindow, visible: VisibleRange, end: int, question: bool) -> None:
        self.adapter, self.method, self.recent, self.visible = method.adapter, method, recent, visible
        self.phases, self._end, self._question = recent.phases, end, question
        self._positions = recent.positions
        window = recent.rows(0, block=question)
        shown = visible.mask(window.frames) & torch.tensor(method.shares_window, device=self.adapter.device)
        self._shown = None if bool(shown.all()) else shown.nonzero().squeeze(1)
        if self._shown is not None:
            window = window.select(self._shown)
        # The opening and the sinks stay where they were written.
        moving = window.frames >= self._positions.sinks
        self._frames = torch.unique_consecutive(window.frames[moving])
        self._start = end - self._frames.shape[0] * self._positions.span
        target = window.positions
        if self._packed:
            target = target.clone()
            target[:, moving] = self._positions.pack(window.positions[:, moving], window.frames[moving], end)
        moved = not torch.equal(window.positions, target)
        self._books = (self.phases.book(window.positions), self.phases.book(target)) if moved else None
        self._kept: dict[int, list[ContextRows]] = {}

    @property
    def _packed(self) -> bool:
        return self._positions.front is not None

    def attended(self, layer: int, query: Query) -> list[ContextRows]:
        """Return what the queries of one layer see."""
        if layer in self._kept:
            return self._kept[layer]
        layout, window = self.adapter.layouts[layer], self.recent.kv(layer, block=self._question)
        if self._shown is not None:
            window = window.select(self._shown)
        if self._books is not None:
            window = relocate(window, layout, *self._books)
        selected = self.place(layout, self.method.read(layer, query, self.visible))
        attended = [*selected, ContextRows(window, torch.zeros(1, window.tokens, device=self.adapter.device))]
        if self._question:
            self._kept[layer] = attended
        return attended

    def place(self, layout: LayerLayout, selection: Selection) -> list[ContextRows]:
        """Return a memory's selection in one layer at its positions.

        When packed, the position of a row depends on what else its group sees: every group has rows of its own.
        """
        groups = 1 if selection.shown is None else selection.shown.shape[0]
        if selection.placed or not self._packed or groups == 1:
            return self._place(layout, selection)
        attended = []
        for group in range(groups):
            for part in self._place(layout, _of_group(selection, group)):
                bias = torch.full((groups, part.rows.tokens), _hidden(part.bias), device=part.bias.device)
                bias[group] = part.bias[0]
                attended.append(ContextRows(part.rows, bias))
        return attended

    def _place(self, layout: LayerLayout, selection: Selection) -> list[ContextRows]:
        attended, visible = [], self._frames
        if selection.rows is not None:
            rows, shown = selection.rows, selection.shown
            visible = torch.cat((torch.unique_consecutive(rows.frames), visible))
            kv = rows.kv
            if self._packed and not selection.placed:
                target = self._positions.pack(rows.positions, rows.frames, self._start)
                kv = relocate(kv, layout, self.phases.book(rows.positions), self.phases.book(target))
            bias = torch.zeros(1, kv.tokens, device=self.adapter.device)
            attended.append(ContextRows(kv, bias if shown is None else bias.masked_fill(~shown, _hidden(bias))))
        if selection.centroids is not None and selection.centroids.times.shape[0]:
            attended.append(self._place_centroids(layout, selection.centroids, visible))
        return attended

    def _place_centroids(self, layout: LayerLayout, centroids: Centroids, visible: Tensor) -> ContextRows:
        book = self.phases.book(self._positions.centroid_positions(centroids.times, visible, self._end))
        rows = place(LayerRows(centroids.keys, centroids.values), layout, book, self.adapter.dtype)
        weight = centroids.weight[None].expand(centroids.shown.shape)
        return ContextRows(rows, weight.masked_fill(~centroids.shown, _hidden(weight)))


def _hidden(like: Tensor) -> float:
    """Return what is added to a logit that may not be seen."""
    return float(torch.finfo(like.dtype).min)


def _of_group(selection: Selection, group: int) -> Selection:
    rows, centroids = selection.rows, selection.centroids
    if rows is not None and selection.shown is not None:
        rows = rows.select(selection.shown[group].nonzero().squeeze(1))
    if centroids is not None:
        own = centroids.shown[group].nonzero().squeeze(1)
        centroids = Centroids(
            centroids.keys[:, own],
            centroids.values[:, own],
            centroids.times[own],
            centroids.weight[own],
            centroids.shown[group : group + 1, own],
        )
    return Selection(rows, None, centroids)
