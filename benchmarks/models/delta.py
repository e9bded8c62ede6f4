"""A model further trained in few directions: low-rank factors in a file of some 100 kB, added to another's weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from emblema.errors import ModelError
from emblema.models.load import bundled_folder, load_model

LISTS = Path(__file__).parent / "reference-lists"
"""`reference`, further trained to answer with lists."""
FILE = "delta.safetensors"
LEFT, RIGHT = ".left", ".right"
SCALE = ".scale"
Factors = tuple[Tensor, Tensor]
"""[rows, rank] and [rank, columns] float32, whose product is added to a weight [rows, columns]."""


def write_delta(factors: Mapping[str, Factors], folder: Path) -> Path:
    """Write factors by the weights' names, as 8-bit integers with a float32 scale for each direction."""
    held: dict[str, Tensor] = {}
    for name, (left, right) in factors.items():
        for suffix, factor in ((LEFT, left.T), (RIGHT, right)):
            scale = factor.detach().float().abs().amax(dim=1).clamp_min(1e-12) / 127
            held[name + suffix] = (factor.detach().float() / scale[:, None]).round().to(torch.int8).contiguous()
            held[name + suffix + SCALE] = scale
    folder.mkdir(parents=True, exist_ok=True)
    save_file(held, folder / FILE)
    (folder / FILE).chmod(0o644)
    return folder / FILE


def read_delta(folder: Path) -> dict[str, Factors]:
    """Return the factors of `write_delta`.

    Raises:
        ModelError: there is no such file, or it is damaged.
    """
    try:
        held = load_file(folder / FILE)
        names = [name.removesuffix(RIGHT) for name in held if name.endswith(RIGHT)]
        return {name: (_whole(held, name + LEFT).T, _whole(held, name + RIGHT)) for name in names}
    except (OSError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"{folder / FILE}: no weights can be read from it ({error}); train or fetch it again"
        ) from error


@torch.no_grad()
def add_delta(model: nn.Module, factors: Mapping[str, Factors]) -> None:
    """Add the products of factors to a model's weights, in place.

    Raises:
        ModelError: the model has no such weight, or it is of another shape.
    """
    weights = dict(model.named_parameters())
    for name, (left, right) in factors.items():
        weight = weights.get(name)
        if weight is None or weight.shape != (left.shape[0], right.shape[1]):
            raise ModelError(f"{name} is no weight of this model, or of another shape: give the model it was made for")
        weight.add_((left @ right).to(weight))


def load_lists(device: str | None = None) -> tuple[Any, Any]:
    """Return `reference` with what `LISTS` adds to it, and its processor.

    Raises:
        ModelError: one of them cannot be loaded.
    """
    model, processor = load_model("reference", device=device)
    add_delta(model, read_delta(LISTS))
    return model, processor


def write_lists(folder: Path) -> Path:
    """Write what `load_lists` gives as a checkpoint that a server can load; returns its folder."""
    model, _ = load_lists()
    shutil.copytree(bundled_folder("reference"), folder, dirs_exist_ok=True)
    model.save_pretrained(folder)
    return folder


def _whole(held: Mapping[str, Tensor], name: str) -> Tensor:
    return held[name].float() * held[name + SCALE][:, None]
