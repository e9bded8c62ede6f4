"""Where a model keeps its decoder, its layers, and what kind each layer is."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from emblema.errors import UnsupportedModelError
from emblema.models.refuse import rope_parameters


def find_decoder(model: Any) -> nn.Module:
    """The model's text decoder: the module that takes embeddings and holds the layers."""
    get = getattr(model, "get_decoder", None)
    decoder = get() if get is not None else None
    for _ in range(3):
        if decoder is None or hasattr(decoder, "layers"):
            break
        decoder = getattr(decoder, "model", None)
    if decoder is None or not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise UnsupportedModelError(f"{type(model).__name__} has no decoder with a list of layers.")
    return decoder


def decoder_layers(model: nn.Module, decoder: Any) -> tuple[list[nn.Module], list[str]]:
    """The decoder's layers in order and their paths in the model."""
    prefix = next((name for name, module in model.named_modules() if module is decoder), "decoder")
    layers = list(decoder.layers)[: decoder.config.num_hidden_layers]
    return layers, [f"{prefix}.layers.{index}" for index in range(len(layers))]


def position_axes(model: Any, config: Any) -> int:
    """Position axes: three for M-RoPE, one otherwise."""
    sectioned = any("mrope_section" in parameters for parameters in rope_parameters(config))
    base = getattr(model, "model", model)
    return 3 if sectioned or hasattr(base, "get_rope_index") else 1


def layer_windows(config: Any, types: Sequence[str]) -> tuple[int | None, ...]:
    """Each layer's sliding window in rows; None attends everything before."""
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return (None,) * len(types)
    if getattr(config, "layer_types", None):
        return tuple(int(window) if kind == "sliding_attention" else None for kind in types)
    return (int(window),) * len(types)
