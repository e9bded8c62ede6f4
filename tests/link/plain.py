"""Reuse methods written straight from their papers: plain attention, masks and loops, nothing of the executor.

A `PlainDecoder` reads the weights of a Llama or Qwen2 decoder. Keys are kept before the rotation and turned when they
are attended, so relocation is not shared with the code under test either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from emblema.link.prompt import ChunkPart, Prompt


@dataclass
class Laid:
    """A prompt as plain rows."""

    embeds: Tensor
    positions: Tensor
    text: Tensor
    slid: Tensor
    chunks: list[tuple[int, Any]]

    @property
    def rows(self) -> int:
        return self.embeds.shape[0]

    def sees(self) -> Tensor:
        """[rows, rows] whom each row attends: what stands before it, slid rows only where it is a chunk's itself."""
        order = torch.arange(self.rows)
        return (order[:, None] >= order[None]) & ~(self.text[:, None] & self.slid[None])


class PlainDecoder:
    """The decoder's arithmetic, one layer at a time, float32."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = model.get_decoder()
        self.config = self.decoder.config
        self.layers = list(self.decoder.layers)
        self.heads, self.kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        self.width = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads
        rope = self.config.rope_parameters
        self.frequencies = rope["rope_theta"] ** (-torch.arange(0, self.width, 2).float() / self.width)
        sections = rope.get("mrope_section") or [self.width // 2]
        self.axes = torch.repeat_interleave(torch.arange(len(sections)), torch.tensor(sections))

    def norm(self, module: Any, x: Tensor) -> Tensor:
        return module.weight * x * (x.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [heads, rows, width] to positions [axes, rows]."""
        angles = positions.float()[self.axes].T * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def project(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [heads, rows, width], not rotated, of rows that enter a layer."""
        block = self.layers[layer]
        h = self.norm(block.input_layernorm, x)
        attention = block.self_attn
        slots = (attention.q_proj, attention.k_proj, attention.v_proj)
        q, k, v = (slot(h).unflatten(1, (-1, self.width)).transpose(0, 1) for slot in slots)
        return q, k, v

    def finish(self, layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
        """The layer's output for rows whose rotated queries are q, over rotated keys k and values v."""
        block, group = self.layers[layer], self.heads // self.kv_heads
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * self.width**-0.5
        weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
        mixed = (weights @ v.repeat_interleave(group, 0)).transpose(0, 1).flatten(1)
        x = x + block.self_attn.o_proj(mixed)
        h = self.norm(block.post_attention_layernorm, x)
        mlp = block.mlp
        return x + mlp.down_proj(torch.nn.functional.silu(mlp.gate_proj(h)) * mlp.up_proj(h))

    def logits(self, x: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(self.norm(self.decoder.norm, x))

    def alone(self, encoded: Any) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
        """A chunk prefilled alone: unrotated keys and values per layer, and what entered each layer."""
        x, kept, entered = encoded.embeds, [], []
        sees = torch.ones(encoded.tokens, encoded.tokens, dtype=torch.bool).tril()
        for layer in range(len(self.layers)):
            entered.append(x)
            q, k, v = self.project(layer, x)
            kept.append((k, v))
            x = self.finish(layer, x, self.turn(q, encoded.positions), self.turn(k, encoded.positions), v, sees)
        return kept, entered

    def lay(self, prompt: Prompt) -> Laid:
        """Rows in order; a chunk keeps its geometry, what follows stands past its largest coordinate."""
        embeds, positions, text, slid, chunks = [], [], [], [], []
        row = place = 0
        for part in (segment.part for segment in prompt.segments):
            if isinstance(part, ChunkPart):
                encoded = part.chunk.encoded
                embeds.append(encoded.embeds)
                positions.append(encoded.positions + place)
                chunks.append((row, encoded))
                place += int(encoded.positions.max()) + 1
            else:
                embeds.append(self.decoder.get_input_embeddings()(torch.tensor(part.token_ids)))
                positions.append((torch.arange(part.tokens) + place).expand(prompt.axes, -1))
                place += part.tokens
            text += [not isinstance(part, ChunkPart)] * part.tokens
            slid += [isinstance(part, ChunkPart) and part.slid] * part.tokens
            row += part.tokens
        flags = torch.tensor(text), torch.tensor(slid)
        return Laid(torch.cat(embeds), torch.cat(positions, dim=1), *flags, chunks)

    def linked(self, laid: Laid) -> tuple[list[Tensor], list[Tensor]]:
        """Rotated keys and values of all rows per layer: chunks as they were kept, zeros (dummies) for text."""
        shape = (self.kv_heads, laid.rows, self.width)
        keys, values = [[torch.zeros(shape) for _ in self.layers] for _ in range(2)]
        for start, encoded in laid.chunks:
            rows = slice(start, start + encoded.tokens)
            where = laid.positions[:, rows]
            for layer, (k, v) in enumerate(self.alone(encoded)[0]):
                keys[layer][:, rows], values[layer][:, rows] = self.turn(k, where), v
        return keys, values

    def selective(self, laid: Laid, keys: list[Tensor], values: list[Tensor], rows: Tensor, sees: Tensor) -> Tensor:
        """Run some rows through all layers; their keys and values take the place of what is linked."""
        x = laid.embeds[rows]
        for layer in range(len(self.layers)):
            q, k, v = self.project(layer, x)
            keys[layer][:, rows], values[layer][:, rows] = self.turn(k, laid.positions[:, rows]), v
            q = self.turn(q, laid.positions[:, rows])
            x = self.finish(layer, x, q, keys[layer], values[layer], sees[rows])
        return x

    def mpic(self, prompt: Prompt, tokens: int) -> Tensor:
        """MPIC-k: text and the first k rows of each chunk in one step over stored and dummy rows."""
        laid = self.lay(prompt)
        keys, values = self.linked(laid)
        chosen = laid.text.clone()
        for start, encoded in laid.chunks:
            chosen[start : start + min(tokens, encoded.tokens)] = True
        return self.logits(self.selective(laid, keys, values, chosen.nonzero()[:, 0], laid.sees())[-1])

    def text_first(self, laid: Laid, keys: list[Tensor], values: list[Tensor]) -> None:
        """The first step of the two-step methods: text over text."""
        rows = laid.text.nonzero()[:, 0]
        self.selective(laid, keys, values, rows, laid.sees() & laid.text[None])

    def full_reuse(self, prompt: Prompt) -> Tensor:
        """Text by itself; then the first output token over text and stored chunks together."""
        laid = self.lay(prompt)
        keys, values = self.linked(laid)
        self.text_first(laid, keys, values)
        return self.logits(self.selective(laid, keys, values, torch.tensor([laid.rows - 1]), laid.sees())[-1])

    def cacheblend(self, prompt: Prompt, percent: float, *, two_steps: bool = False) -> tuple[Tensor, list[int]]:
        """All rows through the first layer; the second compares and chooses; the rest runs chosen rows only."""
        laid, sees = self.lay(prompt), self.lay(prompt).sees()
        old = self.linked(laid)
        keys, values = self.linked(laid)
        running = torch.ones(laid.rows, dtype=torch.bool)
        if two_steps:
            self.text_first(laid, keys, values)
            running = ~laid.text
            running[-1] = True
        rows = running.nonzero()[:, 0]
        x, chosen = laid.embeds[rows], []
        for layer in range(len(self.layers)):
            q, k, v = self.project(layer, x)
            q, k = (self.turn(slot, laid.positions[:, rows]) for slot in (q, k))
            keys[layer][:, rows], values[layer][:, rows] = k, v
            if layer == 1:
                moved = sum(
                    (new[1] - was[1]).square().sum((0, 2)) for new, was in zip((keys, values), old, strict=True)
                )
                moved[laid.text] = -1
                budget = ceil(int((~laid.text).sum()) * percent / 100)
                chosen = sorted(moved.topk(budget).indices.tolist())
                kept = torch.isin(rows, torch.tensor(chosen)) | laid.text[rows]
                rows, x, q = rows[kept], x[kept], q[:, kept]
            x = self.finish(layer, x, q, keys[layer], values[layer], sees[rows])
        return self.logits(x[-1]), chosen

    def falling(self, prompt: Prompt, counts: Callable[[int], Sequence[int]]) -> Tensor:
        """First rows of each chunk, as many in each layer as `counts` of its length says; text in all layers."""
        laid = self.lay(prompt)
        keys, values = self.linked(laid)
        x = laid.embeds.clone()
        for layer in range(len(self.layers)):
            running = laid.text.clone()
            for start, encoded in laid.chunks:
                running[start : start + counts(encoded.tokens)[layer]] = True
            rows = running.nonzero()[:, 0]
            q, k, v = self.project(layer, x[rows])
            keys[layer][:, rows], values[layer][:, rows] = self.turn(k, laid.positions[:, rows]), v
            q = self.turn(q, laid.positions[:, rows])
            x[rows] = self.finish(layer, x[rows], q, keys[layer], values[layer], laid.sees()[rows])
        return self.logits(x[-1])

    def lowrank_keys(self, prompt: Prompt, rank: int) -> Tensor:
        """Text over chunks whose unrotated keys, all heads together, are cut to a rank; slid chunks are not there."""
        laid = self.lay(prompt)
        keys, values = self.linked(laid)
        for start, encoded in laid.chunks:
            rows = slice(start, start + encoded.tokens)
            for layer, (k, _) in enumerate(self.alone(encoded)[0]):
                u, s, v = torch.linalg.svd(k.transpose(0, 1).flatten(1), full_matrices=False)
                cut = (u[:, :rank] * s[:rank]) @ v[:rank]
                cut = cut.unflatten(1, (self.kv_heads, self.width)).transpose(0, 1)
                keys[layer][:, rows] = self.turn(cut, laid.positions[:, rows])
        return self.logits(self.selective(laid, keys, values, laid.text.nonzero()[:, 0], laid.sees())[-1])

    def reprefill_deep(self, prompt: Prompt, cut: int) -> Tensor:
        """Text through all layers; chunk rows join at the cut, from what entered it when they ran alone."""
        laid = self.lay(prompt)
        keys, values = self.linked(laid)
        x = laid.embeds.clone()
        for start, encoded in laid.chunks:
            x[start : start + encoded.tokens] = self.alone(encoded)[1][cut]
        for layer in range(len(self.layers)):
            rows = torch.arange(laid.rows) if layer >= cut else laid.text.nonzero()[:, 0]
            q, k, v = self.project(layer, x[rows])
            keys[layer][:, rows], values[layer][:, rows] = self.turn(k, laid.positions[:, rows]), v
            q = self.turn(q, laid.positions[:, rows])
            x[rows] = self.finish(layer, x[rows], q, keys[layer], values[layer], laid.sees()[rows])
        return self.logits(x[-1])
