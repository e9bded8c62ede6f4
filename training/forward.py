"""The forward pass in training: the vision tower once for each distinct cell, the decoder on rows laid out before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from training.batches import Batch

if TYPE_CHECKING:
    from training.families.base import Recipe


Given = tuple[list[torch.Tensor], torch.Tensor]


@dataclass
class Output:
    """What a forward pass gives.

    hidden: [B, L, width] before the first layer, after each layer, and after the last norm. words: the word table.
    cells: [n, width] features of the cells, first what is embedded, then what is added after each early layer.
    """

    hidden: list[torch.Tensor]
    words: torch.Tensor
    cells: list[torch.Tensor]

    @property
    def last(self) -> torch.Tensor:
        """[B * L, width] decoder output."""
        return self.hidden[-1].reshape(-1, self.hidden[-1].shape[-1])


def run_layers(
    decoder: nn.Module,
    embeds: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    added: list[torch.Tensor],
    given: Given | None = None,
) -> list[torch.Tensor]:
    """The decoder's layers in turn, as its own forward runs them.

    added: [B, L, width] added after each of the first layers (deepstack). given: the input of every layer but the
    first, and the rows [B, L] where it stands in place of the output of the one before: so each learns by itself.
    """
    turns = decoder.rotary_emb(embeds, positions)
    hidden, state = [embeds], embeds
    for number, layer in enumerate(decoder.layers):
        if given is not None and number:
            state = torch.where(given[1][:, :, None], given[0][number], state.detach())
        state = layer(state, attention_mask=mask, position_embeddings=turns, position_ids=None)
        state = state[0] if isinstance(state, tuple) else state
        state = state + added[number] if number < len(added) else state
        hidden.append(state)
    return [*hidden, decoder.norm(state)]


def decode(recipe: Recipe, model: nn.Module, tiles: np.ndarray, batch: Batch, given: Given | None = None) -> Output:
    """The forward pass of a batch. tiles: [variants, TILE_COUNT, 2, 28, 28, 3] uint8."""
    decoder = model.model.language_model
    flat = tiles.reshape(-1, *tiles.shape[2:])
    cells = recipe.cells(model, recipe.inputs(flat))
    words = decoder.embed_tokens.weight
    table = torch.cat([words, cells[0], *recipe.extra(model, flat, batch.views)])
    embeds = nn.functional.embedding(batch.table, table)
    added = []
    for features in cells[1:]:
        rest = features.new_zeros(1, features.shape[1])
        chosen = (batch.table - len(words) + 1).clamp(0, len(features))
        chosen = torch.where(batch.table < len(words) + len(features), chosen, 0)
        added.append(nn.functional.embedding(chosen, torch.cat([rest, features])))
    positions = batch.positions if recipe.axes == 3 else batch.line
    return Output(run_layers(decoder, embeds, positions, batch.mask, added, given), words, cells)
