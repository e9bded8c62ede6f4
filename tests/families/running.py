"""A model of the matrix with its adapter, prompts for it, and its own forward over the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from emblema.kv.device import default_device
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.families.base import Prepared
from emblema.models.prepare import Preparer
from tests.families.cases import CASES
from tests.families.parts import Bundle, Case, picture, words


@dataclass
class Loaded:
    """A case's model with adapter and preparer."""

    case: Case
    model: Any
    bundle: Bundle
    adapter: Adapter
    preparer: Preparer


@cache
def loaded(name: str, seed: int = 0) -> Loaded:
    """A case's model, built once per test run; tests must not change it."""
    case = CASES[name]
    model, bundle = case.build(seed)
    model = model.to(default_device())
    return Loaded(case, model, bundle, Adapter(model), Preparer(bundle, model.config))


@dataclass
class Prompt:
    """A joint prompt: per row its embedding, position, group, and what the stock forward needs."""

    token_ids: Tensor
    embeds: Tensor
    positions: Tensor
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    groups: Tensor
    starts: list[int]
    offsets: list[int]

    def batch(self, rows: Tensor) -> RowBatch:
        order = (self.visual.long().cumsum(0) - 1)[rows]
        visual = self.visual[rows]
        deepstack = tuple(layer[order[visual]] for layer in self.deepstack)
        ids = self.token_ids[rows]
        return RowBatch(self.embeds[rows], self.positions[:, rows], rows, visual, deepstack, token_ids=ids)


def compose(adapter: Adapter, parts: Sequence[Any]) -> Prompt:
    """Join encoded chunks into one prompt: each starts where the one before ends."""
    starts, offsets, start, offset = [], [], 0, 0
    groups, shift = [], 0
    for part in parts:
        starts.append(start)
        offsets.append(offset)
        groups.append(torch.where(part.groups >= 0, part.groups + shift, -1))
        shift = max(shift, int(groups[-1].max()) + 1)
        start, offset = start + part.tokens, offset + part.span
    layers = max(len(part.deepstack) for part in parts)
    return Prompt(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.embeds for part in parts]),
        torch.cat([part.positions + offset for part, offset in zip(parts, offsets, strict=True)], dim=1),
        torch.cat([part.visual for part in parts]),
        tuple(torch.cat([part.deepstack[layer] for part in parts if part.deepstack]) for layer in range(layers)),
        torch.cat(groups),
        starts,
        offsets,
    )


def joint(item: Loaded, seed: int = 0) -> tuple[Prompt, list[Prepared], list[Image.Image], list[Any]]:
    """Text, picture, text, picture, text: the prompt, what was prepared, the pictures and the encoded parts."""
    pictures = [picture(*size, seed=seed + index) for index, size in enumerate(item.case.sizes)]
    prepared = [item.preparer.image(image) for image in pictures]
    parts: list[Any] = [item.adapter.encode_text(words(5, seed))]
    for index, piece in enumerate(prepared):
        parts += [item.adapter.encode(piece), item.adapter.encode_text(words(4, seed + 10 + index))]
    return compose(item.adapter, parts), prepared, pictures, parts


def run_all(adapter: Adapter, prompt: Prompt, capacity: int | None = None) -> tuple[Any, Tensor]:
    """Every row computed at once: the table and the logits."""
    rows = torch.arange(prompt.token_ids.shape[0])
    table = adapter.table(capacity or len(rows))
    table.allocate(rows, prompt.groups)
    hidden = adapter.forward(prompt.batch(rows), table)
    return table, adapter.logits(hidden)


def stock_logits(item: Loaded, prompt: Prompt, pictures: Sequence[Image.Image]) -> Tensor:
    """Logits [tokens, vocab] of the model's own forward."""
    arguments = item.case.stock(item.bundle, item.model.config, pictures, prompt.token_ids)
    with torch.inference_mode():
        return item.model(input_ids=prompt.token_ids[None], use_cache=False, **arguments).logits[0].float()
