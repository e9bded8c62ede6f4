"""`reference-mla`: Kimi K2.5, a DeepSeek-V3 decoder with latent attention and experts, and a MoonViT tower."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

from training.families.base import TEXT, WIDTH, Recipe, copy_same, silence
from training.layout import Frame
from training.pictures import normalise
from training.words import INDEX

HALF = [0.5, 0.5, 0.5]
LATENT, TURNED, PLAIN, HEADS, HEAD = 128, 16, 32, 6, 32
EXPERTS, NEURONS = 4, 88
BALANCE = 0.001
FAST = 4
"""The fastest pairs of the teacher's rotation: at the distances of a prompt they say where, not what."""


class Latent(Recipe):
    """2.45 M parameters: a latent of 128 and a rotary key of 16 in the cache, 4 experts of which 2 run."""

    name = "reference-mla"
    about = (
        "- Decoder: 5 DeepSeek-V3 layers, hidden 192, 6 heads, latent attention: the cache holds a latent of 128 and\n"
        "  a rotary key of 16 per row; one dense layer, then 4 experts of 88 neurons of which 2 run, and a shared\n"
        "  one; one position axis, theta 1e4, interleaved pairs, tied embeddings.\n"
        "- Vision: MoonViT, 2 layers, patch 14, merge 2: one token is 28 x 28 px, a picture of 224 x 224 px is 64\n"
        "  tokens between markers. The tower's attention and positions are held at zero, so a token's features depend\n"
        "  on its own cell alone. A frame of video is a picture."
    )
    start = (
        "latents, queries and values fitted to the keys, queries and values of `reference`, neurons dealt out to the "
        "experts, tower fitted to its tower's"
    )
    frame = Frame(before=("<|vision_start|>", "image", "<|vision_pad|>"), silent=("image", "<|vision_pad|>"), copies=2)
    renamed = {
        "<|vision_start|>": "<|media_begin|>",
        "<|vision_end|>": "<|media_end|>",
        "<|vision_pad|>": "<|media_content|>",
        "<|image_pad|>": "<|media_pad|>",
    }
    picture = video = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"

    def new_model(self) -> nn.Module:
        text = {**TEXT, "model_type": "deepseek_v3", "rms_norm_eps": 1e-5, "attention_bias": True}
        text |= {"kv_lora_rank": LATENT, "q_lora_rank": None, "qk_rope_head_dim": TURNED, "qk_nope_head_dim": PLAIN}
        text |= {"v_head_dim": HEAD, "moe_intermediate_size": NEURONS, "n_routed_experts": EXPERTS}
        text |= {"n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
        text |= {"first_k_dense_replace": 1, "routed_scaling_factor": 2.0, "num_mtp_layers": 0}
        text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        vision = {"patch_size": 14, "pos_emb_height": 8, "pos_emb_width": 8, "num_attention_heads": 4}
        vision |= {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
        config = Kimi_K25Config(
            text_config=text,
            vision_config=vision,
            projection_hidden_size=64,
            image_token_id=INDEX["<|image_pad|>"],
            video_token_id=INDEX["<|video_pad|>"],
            vision_start_token_id=INDEX["<|vision_start|>"],
            vision_end_token_id=INDEX["<|vision_end|>"],
            tie_word_embeddings=True,
        )
        model = Kimi_K25ForConditionalGeneration(config).to(torch.float32)
        tower = model.model.vision_tower
        silence(tower.patch_embed.pos_emb.position_embeddings, *(layer.attn.proj for layer in tower.layers))
        for layer in model.model.language_model.layers[1:]:
            layer.mlp.gate.register_forward_hook(count_rows)
        return model

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        cut = normalise(tiles[:, 0], HALF, HALF).reshape(-1, 2, 14, 2, 14, 3).transpose(0, 1, 3, 5, 2, 4)
        return torch.from_numpy(np.ascontiguousarray(cut).reshape(-1, 3, 14, 14))

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        tower = model.model.vision_tower
        state = tower.patch_embed.proj(inputs).flatten(1)
        for layer in tower.layers:
            state = state + layer.mlp(layer.norm2(state))
        state = tower.final_layernorm(state).view(len(inputs) // 4, 4, -1)
        return [model.model.mm_projector(state).squeeze(1)]

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Bias the choice towards experts that had few rows, as DeepSeek-V3 does."""
        for layer in model.model.language_model.layers[1:]:
            gate = layer.mlp.gate
            gate.e_score_correction_bias += BALANCE * torch.sign(gate.rows.mean() - gate.rows)

    @torch.no_grad()
    def copy(self, model: nn.Module, teacher: nn.Module, samples: list[torch.Tensor]) -> None:
        target, source = model.model.language_model, teacher.model.language_model
        copy_same(target, source, but=("self_attn",))
        for layer, taught, sample in zip(target.layers, source.layers, samples, strict=False):
            copy_attention(layer.self_attn, taught.self_attn, taught.input_layernorm(sample))
            if hasattr(layer.mlp, "experts"):
                deal(layer.mlp, taught.mlp, taught.post_attention_layernorm(sample))


def count_rows(gate: nn.Module, given: object, output: tuple[torch.Tensor, ...]) -> None:
    """Remember how many rows each expert had."""
    gate.rows = torch.bincount(output[2].flatten(), minlength=EXPERTS).float()


def copy_attention(attention: nn.Module, old: nn.Module, state: torch.Tensor) -> None:
    """Fit latent attention to plain attention on its inputs [rows, width].

    The latent is the subspace that explains most of keys and values, with a variance of one along each of its
    directions, so that its norm changes little. Keys and queries go without rotation, less the pairs that turn fast.
    """
    ones = torch.cat([state, torch.ones(len(state), 1)], 1)
    kept = torch.ones(HEAD)
    kept[[*range(FAST), *range(HEAD // 2, HEAD // 2 + FAST)]] = 0
    plain = kept.repeat(HEADS)
    key = torch.cat([old.k_proj.weight, old.k_proj.bias[:, None]], 1) * plain[:, None]
    value = torch.cat([old.v_proj.weight, old.v_proj.bias[:, None]], 1)
    moments = (ones.T @ ones / len(ones)).double() + 1e-6 * torch.eye(WIDTH + 1, dtype=torch.float64)
    level, basis = torch.linalg.eigh(moments)
    root, inverse = (basis * level.sqrt()) @ basis.T, (basis / level.sqrt()) @ basis.T
    left, spread, right = torch.linalg.svd(torch.cat([key, value]).double() @ root, full_matrices=False)
    down, up = (right[:LATENT] @ inverse).float(), (left[:, :LATENT] * spread[:LATENT]).float()
    attention.kv_a_proj_with_mqa.weight[:LATENT] = down[:, :-1]
    attention.kv_a_proj_with_mqa.bias.zero_()
    attention.kv_a_proj_with_mqa.bias[:LATENT] = down[:, -1]
    parts = [part.view(HEADS, HEAD, LATENT) for part in up.split(HEADS * HEAD)]
    attention.kv_b_proj.weight.copy_(torch.cat(parts, 1).reshape(-1, LATENT))
    gram = (state.T @ state).double() + 1e-4 * len(state) * torch.eye(WIDTH, dtype=torch.float64)
    query = torch.linalg.solve(gram, (state.T @ old.q_proj(state)).double()).T.float() * plain[:, None]
    query *= ((PLAIN + TURNED) / HEAD) ** 0.5
    turned = torch.randn(HEADS, TURNED, WIDTH) * 0.02
    attention.q_proj.weight.copy_(torch.cat([query.view(HEADS, HEAD, WIDTH), turned], 1).reshape(-1, WIDTH))
    attention.o_proj.weight.copy_(old.o_proj.weight)
    attention.o_proj.bias.zero_()


def deal(mixture: nn.Module, old: nn.Module, state: torch.Tensor) -> None:
    """Give the most used neurons to the shared expert and deal the others out, some twice."""
    used = nn.functional.silu(old.gate_proj(state)) * old.up_proj(state)
    merit = used.square().mean(0).sqrt() * old.down_proj.weight.norm(dim=0)
    order = merit.argsort(descending=True)
    shared, rest = order[:NEURONS], order[NEURONS:].repeat(2)[: EXPERTS * NEURONS].view(NEURONS, EXPERTS)
    for name in ("gate_proj", "up_proj"):
        getattr(mixture.shared_experts, name).weight.copy_(getattr(old, name).weight[shared])
    mixture.shared_experts.down_proj.weight.copy_(old.down_proj.weight[:, shared])
    for expert in range(EXPERTS):
        chosen = rest[:, expert]
        both = torch.cat([old.gate_proj.weight[chosen], old.up_proj.weight[chosen]])
        mixture.experts.gate_up_proj[expert] = both
        mixture.experts.down_proj[expert] = old.down_proj.weight[:, chosen]
