"""The forward pass of a decoder that keeps states: prompts first, then questions that go on from their states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb, torch_chunk_gated_delta_rule

from training.hybrids.batches import Branches

BLOCK, SHORT_BLOCK = 32, 16
"""Rows that the scan takes at once, of prompts and of questions."""
HINTED_HEADS = (0, 2)
"""Heads of the last layer, one of each key head, that are shown the cell that a question is about."""


@dataclass(frozen=True)
class Kept:
    """What questions need of a layer's prompts.

    Attributes:
        first: keys [B, heads, L, d] of attention, else the last inputs of the convolution [B, taps - 1, channels].
        second: its values, else the states [B, heads, dk, dv].
    """

    first: torch.Tensor
    second: torch.Tensor


@dataclass(frozen=True)
class ScanRows:
    """What the projections of a linear layer give for rows: [B, rows, channels] mixed, [B, rows, heads] both gates."""

    mixed: torch.Tensor
    write: torch.Tensor
    decay: torch.Tensor


def run_scan(
    mixer: Any, rows: ScanRows, edge: torch.Tensor | None, state: torch.Tensor | None, block: int
) -> tuple[torch.Tensor, Kept]:
    """Return outputs [B, rows, heads, dv] of rows behind an edge and a state, and the edge and state after them."""
    count, length, channels = rows.mixed.shape
    before = rows.mixed.new_zeros(count, mixer.conv_kernel_size - 1, channels) if edge is None else edge
    joined = torch.cat([before, rows.mixed], 1)
    weight = mixer.conv1d.weight[:, 0]
    taps = (joined[:, tap : tap + length] * weight[:, tap] for tap in range(mixer.conv_kernel_size))
    convolved = nn.functional.silu(sum(taps))
    query, key, value = convolved.split([mixer.key_dim, mixer.key_dim, mixer.value_dim], -1)
    shape, width = (count, length, -1, mixer.head_k_dim), (count, length, -1, mixer.head_v_dim)
    output, last = torch_chunk_gated_delta_rule(
        query.reshape(shape),
        key.reshape(shape),
        value.reshape(width),
        g=-mixer.A_log.exp() * nn.functional.softplus(rows.decay + mixer.dt_bias),
        beta=rows.write.sigmoid(),
        chunk_size=block,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return output, Kept(joined[:, length:], last)


def project(mixer: Any, hidden: torch.Tensor) -> ScanRows:
    """Return what a linear layer's projections give for rows [B, rows, width]."""
    return ScanRows(mixer.in_proj_qkv(hidden), mixer.in_proj_b(hidden), mixer.in_proj_a(hidden))


def put_out(mixer: Any, output: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return a linear layer's result [B, rows, width] from the scan's outputs and its input."""
    gate = mixer.in_proj_z(hidden).reshape(-1, mixer.head_v_dim)
    return mixer.out_proj(mixer.norm(output.reshape(-1, mixer.head_v_dim), gate).reshape(*hidden.shape[:2], -1))


def without_legends(mixer: Any, rows: ScanRows, batch: Branches) -> Kept:
    """Return edges and states of the prompts that have slid, made of all their rows but the legends'."""
    stay = (batch.real & ~batch.legend)[batch.slid]
    order = stay.long().argsort(dim=1, stable=True)[:, -int(stay.sum(1).max()) :]
    kept = stay.gather(1, order)[:, :, None]

    def chosen(part: torch.Tensor) -> torch.Tensor:
        own = part[batch.slid]
        return own.gather(1, order[:, :, None].expand(-1, -1, own.shape[2])) * kept

    return run_scan(mixer, ScanRows(chosen(rows.mixed), chosen(rows.write), chosen(rows.decay)), None, None, BLOCK)[1]


def project_attention(
    attention: Any, hidden: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values [B, heads, rows, d], turned to their positions, and the gate [B, rows, width]."""
    count, length, _ = hidden.shape
    query, gate = attention.q_proj(hidden).view(count, length, -1, 2 * attention.head_dim).chunk(2, -1)
    key = attention.k_norm(attention.k_proj(hidden).view(count, length, -1, attention.head_dim)).transpose(1, 2)
    value = attention.v_proj(hidden).view(count, length, -1, attention.head_dim).transpose(1, 2)
    query, key = apply_rotary_pos_emb(attention.q_norm(query).transpose(1, 2), key, *turns)
    return query, key, value, gate.reshape(count, length, -1)


def attend(attention: Any, query: torch.Tensor, held: Kept, gate: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return gated attention [B, rows, width] of queries to keys and values, where the mask is True."""
    key, value = (part.repeat_interleave(attention.num_key_value_groups, 1) for part in (held.first, held.second))
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attention.scaling)
    return attention.o_proj(mixed.transpose(1, 2).reshape(gate.shape) * gate.sigmoid())


def run_prompts(decoder: Any, embeds: torch.Tensor, batch: Branches) -> tuple[torch.Tensor, list[Kept]]:
    """Run prompts [B, L, width]; returns the decoder's output and what each layer keeps for their questions."""
    turns = decoder.rotary_emb(embeds, batch.positions)
    length = embeds.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & batch.real[:, None, None, :]
    mask = mask | torch.eye(length, dtype=torch.bool)
    state, kept = embeds, []
    for layer in decoder.layers:
        hidden = layer.input_layernorm(state)
        if layer.block_type == "linear_attention":
            mixer = layer.linear_attn
            hidden = hidden * batch.real[:, :, None]
            rows = project(mixer, hidden)
            output, held = run_scan(mixer, rows, None, None, BLOCK)
            if bool(batch.slid.any()):
                alone, places = without_legends(mixer, rows, batch), batch.slid.nonzero()[:, 0]
                held = Kept(
                    held.first.index_copy(0, places, alone.first), held.second.index_copy(0, places, alone.second)
                )
            state = state + put_out(mixer, output, hidden)
        else:
            query, key, value, gate = project_attention(layer.self_attn, hidden, turns)
            held = Kept(key, value)
            state = state + attend(layer.self_attn, query, held, gate, mask)
        kept.append(held)
        state = state + layer.mlp(layer.post_attention_layernorm(state))
    return decoder.norm(state), kept


def run_questions(
    decoder: Any, embeds: torch.Tensor, batch: Branches, kept: list[Kept]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run questions [N, M, width] on what their prompts left.

    Returns the decoder's output and the hint: how far two heads of the last layer are, at the row that says the
    answer, from attending the cells that the question is about, in nats.
    """
    turns = decoder.rotary_emb(embeds, batch.asked_positions)
    count, length, _ = embeds.shape
    owner = batch.owner
    seen = (batch.real & ~(batch.slid[:, None] & batch.legend))[owner]
    own = torch.ones(length, length, dtype=torch.bool).tril().expand(count, -1, -1)
    mask = torch.cat([seen[:, None].expand(-1, length, -1), own], 2)[:, None]
    state, hint = embeds, embeds.new_zeros(())
    for layer, before in zip(decoder.layers, kept, strict=True):
        hidden = layer.input_layernorm(state)
        first, second = before.first[owner], before.second[owner]
        if layer.block_type == "linear_attention":
            mixer = layer.linear_attn
            output, _ = run_scan(mixer, project(mixer, hidden), first, second, SHORT_BLOCK)
            state = state + put_out(mixer, output, hidden)
        else:
            query, key, value, gate = project_attention(layer.self_attn, hidden, turns)
            held = Kept(torch.cat([first, key], 2), torch.cat([second, value], 2))
            if layer is decoder.layers[-1]:
                hint = hint_of(layer.self_attn, query, held.first, mask, batch)
            state = state + attend(layer.self_attn, query, held, gate, mask)
        state = state + layer.mlp(layer.post_attention_layernorm(state))
    return decoder.norm(state), hint


def hint_of(
    attention: Any, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, batch: Branches
) -> torch.Tensor:
    """Return the mean over questions and hinted heads of the log of what is not attended of the sought cells."""
    index = torch.arange(len(batch.row))
    seen = mask[index, 0, batch.row]
    sought = nn.functional.pad(batch.sought, (0, seen.shape[1] - batch.sought.shape[1])) & seen
    asked = sought.any(1)
    total = query.new_zeros(())
    for head in HINTED_HEADS:
        scores = (key[:, head // attention.num_key_value_groups] @ query[index, head, batch.row][:, :, None])[:, :, 0]
        scores = (scores * attention.scaling).masked_fill(~seen, float("-inf"))[asked]
        found = scores.masked_fill(~sought[asked], float("-inf")).logsumexp(1)
        total = total + (scores.logsumexp(1) - found).mean() / len(HINTED_HEADS)
    return total
