"""`reference-mha`: LLaVA-NeXT, a Llama decoder with as many key/value heads as query heads and a CLIP tower."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

from benchmarks.tasks.tiles import CELL
from training.families.base import MEAN, SPREAD, TEXT, Recipe, copy_same
from training.layout import Frame
from training.pictures import normalise, shrunk
from training.words import INDEX

MOST = 10
PINPOINTS = [[CELL * rows, CELL * columns] for rows in range(1, MOST + 1) for columns in range(1, MOST + 1)]


class MultiHead(Recipe):
    """2.4 M parameters: KV width 192; a tile of the picture is one cell and one token."""

    name = "reference-mha"
    about = (
        "- Decoder: 5 Llama layers, hidden 192, 6 query heads and as many key/value heads of 32 (KV width 192, no\n"
        "  sharing), one position axis, theta 1e6, tied embeddings.\n"
        "- Vision: CLIP of its own, 2 layers, patch 28, tiles of 28 x 28 px: the shrunk picture is one token, every\n"
        "  cell one, every row ends with the newline embedding; a picture of 224 x 224 px is 73 tokens, and a cell's\n"
        "  features depend on that cell alone. No markers around pictures; a frame of video is a picture."
    )
    start = "decoder copied from `reference` (Llama's is the same but for M-RoPE), vision tower fitted to its tower's"
    frame = Frame(before=(), after=(), newline=True, view=True, copies=2)
    renamed = {"<|image_pad|>": "<image>"}
    picture = video = "<image>"

    def new_model(self) -> nn.Module:
        vision = {"model_type": "clip_vision_model", "hidden_size": 96, "intermediate_size": 192, "image_size": CELL}
        vision |= {"num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": CELL, "projection_dim": 96}
        rope = {"rope_type": "default", "rope_theta": 1000000.0}
        text = {**TEXT, "model_type": "llama", "rope_parameters": rope, "attention_bias": True, "rms_norm_eps": 1e-5}
        config = LlavaNextConfig(
            text_config=text,
            vision_config=vision,
            image_token_index=INDEX["<|image_pad|>"],
            image_grid_pinpoints=PINPOINTS,
            image_seq_length=1,
            vision_feature_layer=-1,
            tie_word_embeddings=True,
        )
        return LlavaNextForConditionalGeneration(config).to(torch.float32)

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        pixels = normalise(tiles[:, 0], MEAN, SPREAD).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(pixels))

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        return [model.model.multi_modal_projector(model.model.vision_tower(inputs).last_hidden_state[:, 1])]

    def extra(self, model: nn.Module, tiles: np.ndarray, views: list[np.ndarray]) -> list[torch.Tensor]:
        pictures = np.stack([shrunk(tiles[:, 0], view) for view in views])
        return [model.model.image_newline[None], *self.cells(model, self.inputs(pictures[:, None]))]

    def copy(self, model: nn.Module, teacher: nn.Module, samples: list[torch.Tensor]) -> None:
        decoder = model.model.language_model
        copy_same(decoder, teacher.model.language_model)
        with torch.no_grad():
            for layer in decoder.layers:
                layer.self_attn.o_proj.bias.zero_()
            end = decoder.embed_tokens.weight[INDEX["<|vision_end|>"]]
            model.model.image_newline.copy_(end)

    def files(self) -> dict[str, dict[str, Any]]:
        side = {"height": CELL, "width": CELL}
        pictures = {
            "size": {"shortest_edge": CELL},
            "crop_size": side,
            "image_grid_pinpoints": PINPOINTS,
            "image_mean": MEAN,
            "image_std": SPREAD,
            "do_resize": True,
            "do_center_crop": True,
            "do_pad": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_convert_rgb": True,
            "resample": 3,
            "rescale_factor": 1 / 255,
            "image_processor_type": "LlavaNextImageProcessor",
            "processor_class": "LlavaNextProcessor",
        }
        return {"preprocessor_config.json": pictures}
