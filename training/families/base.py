"""What a family of models must say for itself to be trained and bundled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.models import model_folder
from training.layout import Frame
from training.words import INDEX, VOCABULARY

MEAN = [0.48145466, 0.4578275, 0.40821073]
SPREAD = [0.26862954, 0.26130258, 0.27577711]
WIDTH = 192
TEXT: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 32768,
    "initializer_range": 0.04,
    "bos_token_id": None,
    "eos_token_id": INDEX["<|im_end|>"],
    "pad_token_id": INDEX["<|endoftext|>"],
    "tie_word_embeddings": True,
}


class Recipe:
    """A bundled model: its configuration, its vision tower cell by cell, how it starts, the files beside it.

    Attributes:
        name: the folder's name.
        about: Markdown lines for the card about decoder and vision tower.
        start: one sentence for the card: where the first weights come from.
        axes: position axes of the decoder.
        frame: what stands around a picture.
        renamed: words of the vocabulary that this family writes in another way.
        picture, video: what the chat template writes for a piece of media.
    """

    name = ""
    about = ""
    start = ""
    axes = 1
    frame = Frame()
    renamed: dict[str, str] = {}
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    video = "<|vision_start|><|video_pad|><|vision_end|>"

    @property
    def folder(self) -> Path:
        """Where the bundled model lies."""
        return model_folder(self.name)

    def new_model(self) -> nn.Module:
        """A fresh model with random weights, fp32; what must stay zero is frozen there."""
        raise NotImplementedError

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        """[n, 2, 28, 28, 3] uint8 frame pairs -> the tower's input for n cells."""
        raise NotImplementedError

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        """[n, width] features of n cells, as the stock tower gives them, then those that early layers add."""
        raise NotImplementedError

    def extra(self, model: nn.Module, tiles: np.ndarray, views: list[np.ndarray]) -> list[torch.Tensor]:
        """Table rows after words and cells: the newline and one row a view; none by default."""
        return []

    def copy(self, model: nn.Module, teacher: nn.Module, samples: list[torch.Tensor]) -> None:
        """Take over what fits from the trained teacher. samples: [rows, width] inputs of its layers on a batch."""

    def targets(self, features: torch.Tensor) -> list[torch.Tensor]:
        """What the tower should give for every tile, cell by cell, from the teacher's features [TILE_COUNT, width]."""
        return [features]

    def after_step(self, model: nn.Module) -> None:
        """What else happens after a step of training."""

    def files(self) -> dict[str, dict[str, Any]]:
        """Processor files by name."""
        return {}


def silence(*layers: nn.Linear | nn.Embedding | nn.Parameter) -> None:
    """Hold weights at zero for good."""
    for layer in layers:
        for parameter in [layer] if isinstance(layer, nn.Parameter) else layer.parameters():
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)


@torch.no_grad()
def copy_same(target: nn.Module, source: nn.Module, *, but: tuple[str, ...] = ()) -> list[str]:
    """Copy every parameter of the same name and shape whose name holds none of `but`; returns their names."""
    found = dict(source.named_parameters())
    taken = []
    for name, parameter in target.named_parameters():
        same = name in found and found[name].shape == parameter.shape
        if same and not any(part in name for part in but):
            parameter.copy_(found[name])
            taken.append(name)
    return taken
