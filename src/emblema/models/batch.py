"""Rows to run through the decoder, and what a layer is given of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emblema.models.attention import AttendedRows


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows to run through the decoder, in the order of their places in the prompt.

    Attributes:
        embeds: [rows, hidden].
        positions: [axes, rows] int64.
        slots: [rows] int64, the table's slots they are written to.
        visual: [rows] bool, rows that carry media features.
        deepstack: per early layer, [visual rows, hidden] added after that layer; empty for most families.
        hidden_from: [rows, table.length] bool, True may not be attended; None hides nothing.
    """

    embeds: Tensor
    positions: Tensor
    slots: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...] = ()
    hidden_from: Tensor | None = None

    def slice(self, start: int, stop: int) -> "RowBatch":
        """Return rows `start` to `stop`."""
        before, within = int(self.visual[:start].sum()), int(self.visual[start:stop].sum())
        return RowBatch(
            self.embeds[start:stop],
            self.positions[:, start:stop],
            self.slots[start:stop],
            self.visual[start:stop],
            tuple(layer[before : before + within] for layer in self.deepstack),
            None if self.hidden_from is None else self.hidden_from[start:stop],
        )

    def blocks(self, rows: Tensor, groups: Tensor, size: int) -> list["RowBatch"]:
        """Return runs of about `size` rows at most, to be run one after another; no bidirectional group is cut.

        Args:
            rows: [rows] int64, each row's place in the prompt; unless it rises, the batch stays whole.
            groups: [rows] int64, each row's bidirectional group, -1 for none.
            size: rows a run should have.
        """
        total = rows.shape[0]
        if total <= size or not bool((rows[1:] > rows[:-1]).all()):
            return [self]
        inside = (groups[1:] == groups[:-1]) & (groups[1:] >= 0)
        cuts = [0]
        while cuts[-1] + size < total:
            stop = cuts[-1] + size
            while stop < total and bool(inside[stop - 1]):
                stop += 1
            cuts.append(stop)
        if cuts[-1] < total:
            cuts.append(total)
        return [self.slice(start, stop) for start, stop in zip(cuts, cuts[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class LayerInput:
    """The rows that a layer is about to run, with all that goes with them.

    Attributes:
        hidden: [1, rows, hidden], the residual stream.
        ids: position ids as the rotary module takes them; rows are the last axis.
        visual: [rows] bool, rows that carry media features.
        deepstack: per early layer, [visual rows, hidden] added after that layer.
        seen: the slots of the table that they are written to, and what the rows attend.
        turns: per layer type, cosines and sines [..., rows, width].
    """

    hidden: Tensor
    ids: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    seen: AttendedRows
    turns: dict[str, Any]

    @property
    def rows(self) -> int:
        return int(self.hidden.shape[1])

    def on(self, device: torch.device) -> "LayerInput":
        """Return the input of a layer on a device; itself where it is there."""
        if device == self.hidden.device:
            return self
        return LayerInput(
            self.hidden.to(device),
            self.ids.to(device),
            self.visual.to(device),
            tuple(layer.to(device) for layer in self.deepstack),
            self.seen.on(device),
            turns_on(self.turns, device),
        )

    def after(self, layer: int, hidden: Tensor) -> "LayerInput":
        """Return the next layer's input, after a layer that put out `hidden`; deepstack features are added."""
        if layer < len(self.deepstack) and bool(self.visual.any()):
            hidden = hidden.clone()
            hidden[0, self.visual] += self.deepstack[layer].to(hidden.dtype)
        return LayerInput(hidden, self.ids, self.visual, self.deepstack, self.seen, self.turns)

    def select(self, rows: Tensor) -> "LayerInput":
        """Return some of the rows, in the order given."""
        order = (self.visual.long().cumsum(0) - 1)[rows]
        visual = self.visual[rows]
        return LayerInput(
            self.hidden[:, rows],
            self.ids[..., rows],
            visual,
            tuple(layer.index_select(0, order[visual]) for layer in self.deepstack),
            self.seen.select(rows),
            {kind: tuple(part[..., rows, :] for part in turn) for kind, turn in self.turns.items()},
        )


def turns_on(turns: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return cosines and sines by layer type on a device; types that share them still do."""
    known: dict[int, Any] = {}
    for turn in turns.values():
        if id(turn) not in known:
            known[id(turn)] = turn.to(device) if isinstance(turn, Tensor) else tuple(part.to(device) for part in turn)
    return {kind: known[id(turn)] for kind, turn in turns.items()}
