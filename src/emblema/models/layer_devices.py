"""On which devices a decoder's layers are: one, or those that transformers' `device_map` shared them out over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from emblema.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class LayerDevices:
    """Where a decoder is.

    Attributes:
        home: the device of its embeddings.
        layers: the device of each layer.
        several: whether any part of it is elsewhere than at home, the head that makes logits included.
    """

    home: torch.device
    layers: tuple[torch.device, ...]
    several: bool


def layer_devices(model: Any, decoder: Any, layers: Sequence[nn.Module], names: Sequence[str]) -> LayerDevices:
    """Return where a model's decoder is.

    Args:
        model: the model.
        decoder: its decoder.
        layers: the decoder's layers in order, and `names`: their paths in the model, for messages.

    Raises:
        UnsupportedModelError: weights are offloaded, one layer is on several devices, or the model's own forward would
            not take rows from one device to the next.
    """
    for name, weight in model.named_parameters():
        if weight.device.type == "meta":
            raise UnsupportedModelError(
                f"{name} is offloaded and on no device: load the model with a device_map or max_memory that offloads "
                "nothing to a disk or to the host, or on more devices."
            )
    home = decoder.get_input_embeddings().weight.device
    devices = []
    for layer, name in zip(layers, names, strict=True):
        held = {weight.device: path for path, weight in layer.named_parameters()}
        if len(held) > 1:
            where = ", ".join(f"{name}.{path} on {device}" for device, path in held.items())
            raise UnsupportedModelError(f"one layer is on several devices ({where}): let device_map keep layers whole.")
        devices.append(next(iter(held), home))
    weights = [*decoder.named_parameters(), *model.get_output_embeddings().named_parameters()]
    away = {name: weight.device for name, weight in weights if weight.device != home}
    if away and not any(hasattr(module, "_hf_hook") for module in model.modules()):
        name, device = next(iter(away.items()))
        raise UnsupportedModelError(
            f"the decoder's {name} is on {device} and its embeddings are on {home}, and the model does not take rows "
            "from one to the other by itself: load it with device_map, or on one device."
        )
    return LayerDevices(home, tuple(devices), bool(away))
