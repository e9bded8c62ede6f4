"""The bundled tower that reads pages: weights of CLIP's tower and LLaVA's projector that name the token of a tile.

A tile goes through the tower without its neighbours. The last layer's hidden units are tokens: a unit that is on adds
the embedding that the language model itself has for its token, far above what else the row holds.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

LAYERS = 2
ACTIVATION = "sigmoid"
PROJECTOR_ACTIVATION = "relu"
MEAN, SPREAD = 0.5, 0.5
"""What the image processor takes from pixels, and divides them by: paper is 1, ink is -1."""
LOUD = 1e4
"""How much larger than the embeddings the tower's rows are: what else a row holds is lost in it."""
_OFFSET = 4.0
"""Added before the projector's activation and taken away after it: no embedding is below its opposite."""
_TOWER = "model.vision_tower"
_PROJECTOR = "model.multi_modal_projector"


def page_tower_file() -> Path:
    """Return the file of the bundled weights."""
    return Path(str(files("emblema"))) / "assets" / "pages" / "tower.safetensors"


def page_weights(path: Path | None = None) -> Mapping[str, torch.Tensor]:
    """Return weights in full precision, the bundled ones if left out, and the ids of the tokens that they name."""
    held = load_file(path or page_tower_file())
    return {name: tensor if name == "ids" else tensor.float() for name, tensor in held.items()}


@cache
def page_token_ids() -> tuple[int, ...]:
    """Return the ids of the tokens that the bundled tower reads."""
    return tuple(page_weights()["ids"].tolist())


def vision_settings(channels: int, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the settings of a CLIP tower that weights fit, for embeddings of so many channels."""
    return {
        "hidden_size": channels,
        "intermediate_size": max(len(weights[name]) for name in ("ids", "first.bias")),
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 1,
        "hidden_act": ACTIVATION,
    }


@torch.no_grad()
def set_page_tower(shell: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Set weights of the tower, and the language model's embeddings of their tokens, into a LLaVA model.

    Args:
        shell: a `LlavaForConditionalGeneration` of `vision_settings`, with its language model's weights.
        weights: as `page_weights` returns them.
    """
    own = shell.state_dict()
    for name, tensor in own.items():
        if name.startswith((_TOWER, _PROJECTOR)) and tensor.is_floating_point():
            tensor.zero_()
    width = weights["patch.weight"].shape[0]
    _set_patches(own, weights, width)
    for place, norm in enumerate((f"{_TOWER}.pre_layrnorm", *(f"{_layer(index)}.layer_norm2" for index in range(2)))):
        own[f"{norm}.weight"][:width] = weights[f"scales.{place}"]
        own[f"{norm}.bias"][:width] = weights[f"shifts.{place}"]
    hidden = len(weights["first.bias"])
    own[f"{_layer(0)}.mlp.fc1.weight"][:hidden, :width] = weights["first.weight"]
    own[f"{_layer(0)}.mlp.fc1.bias"][:hidden] = weights["first.bias"]
    own[f"{_layer(0)}.mlp.fc2.weight"][:width, :hidden] = weights["second.weight"]
    own[f"{_layer(0)}.mlp.fc2.bias"][:width] = weights["second.bias"]
    tokens = len(weights["ids"])
    own[f"{_layer(1)}.mlp.fc1.weight"][:tokens, :width] = weights["naming.weight"]
    own[f"{_layer(1)}.mlp.fc1.bias"][:tokens] = weights["naming.bias"]
    named = shell.get_input_embeddings().weight[weights["ids"].long()]
    own[f"{_layer(1)}.mlp.fc2.weight"][:, :tokens] = LOUD * named.T
    own[f"{_PROJECTOR}.linear_1.weight"].fill_diagonal_(1 / LOUD)
    own[f"{_PROJECTOR}.linear_1.bias"].fill_(_OFFSET)
    own[f"{_PROJECTOR}.linear_2.weight"].fill_diagonal_(1.0)
    own[f"{_PROJECTOR}.linear_2.bias"].fill_(-_OFFSET)


def _set_patches(own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], width: int) -> None:
    """Set what reads pixels: weights for ink in grey, and as the embedding of every place the bias."""
    patch = own[f"{_TOWER}.embeddings.patch_embedding.weight"]
    side = patch.shape[-1]
    ink = weights["patch.weight"]
    patch[:width] = (-ink / (2 * patch.shape[1])).view(width, 1, side, side)
    own[f"{_TOWER}.embeddings.position_embedding.weight"][:, :width] = weights["patch.bias"] + ink.sum(-1) / 2


def _layer(index: int) -> str:
    return f"{_TOWER}.encoder.layers.{index}"
