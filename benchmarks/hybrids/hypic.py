"""HYPIC's method (arXiv 2607.01299), to compare with: a segment's state and transition operator whole, and a seam.

A chunk that is prefilled alone leaves, in each layer of linear attention, its end state H from zero and the operator P
that it applies to a state before it. In a prompt the first rows of a chunk, the seam, are computed again. The rest of
its keys and values is taken, and the state S before the chunk becomes P S + H. The stock decoder runs text and seams.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import move_rows
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Prompt, Segment
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.first_tokens import FirstTokens
from emblema.models.adapter import Adapter
from emblema.models.calibrate import cache_argument
from emblema.models.linear_attention import find_state_mixer

SEAM = 8
"""Rows of a chunk that are computed again, as HYPIC has it by default."""


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """What a chunk does to a layer's state S, in float32: it becomes P S + H.

    Attributes:
        operator: P [1, heads, key width, key width].
        state: H [1, heads, key width, value width].
        inputs: [1, channels, taps], the last inputs of the convolution.
    """

    operator: Tensor
    state: Tensor
    inputs: Tensor

    def apply(self, before: Tensor | None) -> Tensor:
        """Return the state after the chunk; None is the state at the beginning of a prompt."""
        return self.state if before is None else self.operator @ before + self.state


def state_map(mixer: Any, layout: LayerLayout, rows: LayerRows) -> SegmentMap:
    """Return what a chunk's rows do to a layer's state, from two runs: from zero and from one.

    Raises:
        StrategyError: the state is narrower than it is high, so that one run does not give the operator.
    """
    if mixer.head_v_dim < mixer.head_k_dim:
        raise StrategyError("hypic: a state is narrower than it is high, so one call does not give its operator")
    one = torch.eye(mixer.head_k_dim, mixer.head_v_dim, device=rows.keys.device).expand(1, mixer.num_v_heads, -1, -1)
    state = state_after(mixer, layout, rows, torch.zeros_like(one))
    operator = (state_after(mixer, layout, rows, one) - state)[..., : mixer.head_k_dim]
    return SegmentMap(operator, state, _mixed(layout, rows)[..., -mixer.conv_kernel_size :])


def state_after(mixer: Any, layout: LayerLayout, rows: LayerRows, before: Tensor) -> Tensor:
    """Return the state [1, heads, key width, value width] after a chunk's rows, by the stock kernel, float32.

    The chunk's convolution begins with zeros, as of a chunk that is prefilled alone.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    mixed = _mixed(layout, rows)
    write, decay = rows.values[..., -layout.gates :].chunk(2, dim=-1)
    padded = torch.nn.functional.pad(mixed, (mixer.conv_kernel_size - 1, 0))
    convolved = torch.nn.functional.conv1d(padded, mixer.conv1d.weight, groups=mixed.shape[1])
    parts = mixer.key_dim, mixer.key_dim, mixer.value_dim
    query, key, value = torch.nn.functional.silu(convolved).transpose(1, 2).split(parts, dim=-1)
    _, last = torch_chunk_gated_delta_rule(
        query.reshape(1, rows.tokens, -1, mixer.head_k_dim),
        key.reshape(1, rows.tokens, -1, mixer.head_k_dim),
        value.reshape(1, rows.tokens, -1, mixer.head_v_dim),
        g=-mixer.A_log.float().exp() * torch.nn.functional.softplus(decay.float() + mixer.dt_bias),
        beta=write.sigmoid(),
        initial_state=before,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return torch.as_tensor(last)


def _mixed(layout: LayerLayout, rows: LayerRows) -> Tensor:
    """Return the inputs of the convolution [1, channels, tokens]."""
    return torch.cat((rows.keys, rows.values[..., : -layout.gates]), dim=-1).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Hypic:
    """The method; its plan says which rows it computes, and `logits` runs it.

    A chunk that has slid is absent: a state cannot forget what conditioned it, so nothing of it may enter.
    """

    seam: int = SEAM

    @property
    def name(self) -> str:
        return f"hypic-{self.seam}"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return replace(FirstTokens("mpic", self.seam).plan(prompt, knowledge), strategy=self.name)

    def logits(self, adapter: Adapter, prompt: Prompt) -> Tensor:
        """Return the logits [vocab] float32 of a prompt's last row.

        Raises:
            StrategyError: the prompt ends with a chunk.
        """
        if isinstance(prompt.segments[-1].part, ChunkPart):
            raise StrategyError("hypic: the prompt ends with a chunk; put the question after it")
        hidden, cache = torch.empty(0), DynamicCache(config=adapter.config)
        with torch.inference_mode():
            for segment in prompt.segments:
                part = segment.part
                if not isinstance(part, ChunkPart):
                    embeds = adapter.embed(torch.tensor(part.token_ids))
                    hidden = _run(adapter, cache, embeds, prompt.positions[:, segment.start : segment.stop])
                elif not part.slid:
                    self._set_in(adapter, cache, prompt, segment, part.chunk)
        return adapter.logits(hidden[-1:])[0]

    def _set_in(self, adapter: Adapter, cache: Any, prompt: Prompt, segment: Segment, chunk: Chunk) -> None:
        """Compute a chunk's seam, then set the rest of it into a cache."""
        positions = prompt.positions[:, segment.start : segment.stop]
        linear = [index for index, layout in enumerate(adapter.layouts) if layout.kind == "linear"]
        before = {index: _copy_state(cache.layers[index]) for index in linear}
        _run(adapter, cache, chunk.encoded.embeds[: self.seam], positions[:, : self.seam])
        source, target = adapter.phases(chunk.encoded.positions), adapter.phases(positions)
        rows = move_rows(adapter.prefill(chunk.encoded)[0], adapter.layouts, source, target, adapter.dtype)
        for index, (layout, own) in enumerate(zip(adapter.layouts, rows, strict=True)):
            held = cache.layers[index]
            if index in before:
                found = state_map(find_state_mixer(adapter.layers[index]), layout, own)
                held.recurrent_states[0].copy_(found.apply(before[index]))
                held.conv_states[0].copy_(found.inputs)
            else:
                held.update(own.keys[None, :, self.seam :], own.values[None, :, self.seam :])


def _copy_state(held: Any) -> Tensor | None:
    """Return a copy of the state that a layer of a cache holds, None where it holds none yet."""
    state = held.recurrent_states[0]
    return None if state is None else torch.as_tensor(state).clone()


def _run(adapter: Adapter, cache: Any, embeds: Tensor, positions: Tensor) -> Tensor:
    """Run rows through the stock decoder behind a cache; returns hidden states [rows, hidden]."""
    hidden: Tensor = adapter.decoder(
        inputs_embeds=embeds[None],
        position_ids=positions[:, None].to(adapter.device),
        use_cache=True,
        **{cache_argument(adapter.decoder): cache},
    ).last_hidden_state[0]
    return hidden
