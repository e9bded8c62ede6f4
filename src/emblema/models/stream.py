"""Rows on their way through the decoder one layer at a time: some stay behind, others join."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emblema.models.batch import RowBatch


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows that a layer is about to run, with all that goes along with them.

    Attributes:
        hidden: [1, rows, hidden], the residual stream.
        ids: position ids as the rotary module takes them; rows are the last axis.
        slots: [rows] int64, the table's slots they are written to.
        visual: [rows] bool, rows that carry media features.
        deepstack: per early layer, [visual rows, hidden] added after that layer.
        masks: per window, [1, 1, rows, length] additive.
        turns: per layer type, cosines and sines [..., rows, width].
    """

    hidden: Tensor
    ids: Tensor
    slots: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    masks: dict[int | None, Tensor]
    turns: dict[str, Any]

    @classmethod
    def of(cls, batch: RowBatch, ids: Tensor, masks: dict[int | None, Tensor], turns: dict[str, Any]) -> "Stream":
        """The stream that a batch begins with."""
        return cls(batch.embeds[None], ids, batch.slots, batch.visual, batch.deepstack, masks, turns)

    @property
    def rows(self) -> int:
        return int(self.hidden.shape[1])

    def after(self, layer: int, hidden: Tensor) -> "Stream":
        """The stream behind a layer that put out `hidden`, its deepstack features added."""
        if layer < len(self.deepstack) and bool(self.visual.any()):
            hidden = hidden.clone()
            hidden[0, self.visual] += self.deepstack[layer].to(hidden.dtype)
        return Stream(hidden, self.ids, self.slots, self.visual, self.deepstack, self.masks, self.turns)

    def select(self, rows: Tensor) -> "Stream":
        """Some of the rows, in the order given."""
        order = (self.visual.long().cumsum(0) - 1)[rows]
        visual = self.visual[rows]
        return Stream(
            self.hidden[:, rows],
            self.ids[..., rows],
            self.slots[rows],
            visual,
            tuple(layer.index_select(0, order[visual]) for layer in self.deepstack),
            {window: mask[:, :, rows] for window, mask in self.masks.items()},
            {kind: tuple(part[..., rows, :] for part in turn) for kind, turn in self.turns.items()},
        )

    def joined(self, other: "Stream", places: Tensor) -> "Stream":
        """Both streams' rows, in the order of their places in the prompt; `places` [slots] gives each slot's."""
        depth = max(len(self.deepstack), len(other.deepstack))
        together = Stream(
            torch.cat((self.hidden, other.hidden), dim=1),
            torch.cat((self.ids, other.ids), dim=-1),
            torch.cat((self.slots, other.slots)),
            torch.cat((self.visual, other.visual)),
            tuple(torch.cat((self._features(layer), other._features(layer))) for layer in range(depth)),
            {window: torch.cat((mask, other.masks[window]), dim=2) for window, mask in self.masks.items()},
            {
                kind: tuple(torch.cat(pair, dim=-2) for pair in zip(turn, other.turns[kind], strict=True))
                for kind, turn in self.turns.items()
            },
        )
        return together.select(places[together.slots].argsort())

    def _features(self, layer: int) -> Tensor:
        return self.deepstack[layer] if layer < len(self.deepstack) else self.hidden.new_empty(0, self.hidden.shape[2])
