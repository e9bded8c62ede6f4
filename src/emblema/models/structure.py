"""Where a model keeps its decoder and layers; what cannot be relocated is refused by the layer's name."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from emblema.errors import ModelError, UnsupportedModelError
from emblema.models.calibrate import CONVOLUTION, layer_types, rotary_module
from emblema.models.linear_attention import LINEAR, find_state_mixer
from emblema.models.token_inputs import is_given_token_inputs, takes_token_ids


def find_decoder(model: Any) -> nn.Module:
    """Return the model's text decoder: the module that takes embeddings and holds the layers."""
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
    """Return the decoder's layers in order and their paths in the model."""
    prefix = next((name for name, module in model.named_modules() if module is decoder), "decoder")
    layers = list(decoder.layers)[: decoder.config.num_hidden_layers]
    return layers, [f"{prefix}.layers.{index}" for index in range(len(layers))]


def row_layers(config: Any, count: int) -> int:
    """Return how many of `count` layers keep rows of their own: the last may attend those of layers before."""
    return count - int(getattr(config, "num_kv_shared_layers", None) or 0)


def position_axes(model: Any, config: Any) -> int:
    """Return the number of position axes: three for M-RoPE, one otherwise."""
    sectioned = any("mrope_section" in parameters for parameters in rope_parameters(config))
    base = getattr(model, "model", model)
    return 3 if sectioned or hasattr(base, "get_rope_index") else 1


def layer_windows(config: Any, types: Sequence[str]) -> tuple[int | None, ...]:
    """Return each layer's sliding window in rows; None attends everything before."""
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return (None,) * len(types)
    if getattr(config, "layer_types", None):
        return tuple(int(window) if kind == "sliding_attention" else None for kind in types)
    return tuple(None if kind == CONVOLUTION else int(window) for kind in types)


def context_length(config: Any) -> int:
    """Return how many positions a prompt may take.

    A decoder that scales its queries from some position on (`llama_4_scaling_beta`) ends there: rows prefilled beyond
    are others than rows prefilled before.
    """
    longest = int(config.max_position_embeddings)
    scaled = (found for found in rope_parameters(config) if found.get("llama_4_scaling_beta"))
    return min([longest, *(int(found["original_max_position_embeddings"]) for found in scaled)])


_RELOCATABLE = ("full_attention", "sliding_attention", CONVOLUTION)
_MOVING_TABLES = ("dynamic", "longrope")
_RECURRENT = ("A_log", "dt_bias")


def refuse_unsupported(decoder: nn.Module, layers: Sequence[nn.Module], names: Sequence[str]) -> None:
    """Raise UnsupportedModelError for layers or rotary tables that cannot be relocated exactly.

    Refused: linear, state-space and chunked layers, convolutions inside attention; dynamic NTK and longrope (their
    tables change with the length of the prompt); query scaling by position that `context_length` does not end before; a
    rotary table cast through bfloat16.
    """
    for kind, layer, name in zip(layer_types(decoder, len(layers)), layers, names, strict=True):
        if kind == LINEAR and find_state_mixer(layer) is not None and hasattr(Cache, "get_recurrent_state"):
            continue
        if kind == "chunked_attention":
            raise UnsupportedModelError(
                f"{name} is a chunked attention layer: its rows attend their own stretch of the prompt alone, and "
                "stretches do not move with rows."
            )
        if kind not in _RELOCATABLE:
            raise UnsupportedModelError(
                f"{name} is a {kind.replace('_', ' ')} layer: it keeps a state in place of a row for every token, and "
                "such layers are not served yet."
            )
        for path, module in layer.named_modules():
            convolves = isinstance(module, nn.Conv1d) and kind != CONVOLUTION
            if convolves or any(hasattr(module, mark) for mark in _RECURRENT):
                where = f"{name}.{path}" if path else name
                raise UnsupportedModelError(
                    f"{where} keeps a state of the rows before; such layers are not served yet."
                )
    _refuse_tables(decoder, names)
    _refuse_attention(decoder, names[0])


def _refuse_tables(decoder: nn.Module, names: Sequence[str]) -> None:
    rotary = rotary_module(decoder)
    where = next((name for name, module in decoder.named_modules() if module is rotary), "rotary_emb")
    root = names[0].rsplit(".layers.", 1)[0] if names else type(decoder).__name__
    for parameters in rope_parameters(decoder.config):
        kind = str(parameters.get("rope_type", parameters.get("type", "default")))
        if kind in _MOVING_TABLES:
            raise UnsupportedModelError(
                f"{root}.{where} uses {kind} rotary tables, which change with the prompt's length; "
                f"the keys of {names[0]} and all later layers cannot be relocated."
            )
    for key, table in rotary.named_buffers():
        if "inv_freq" in key:
            _refuse_cast(f"{root}.{where}.{key}", table)


def _refuse_cast(where: str, table: Tensor) -> None:
    if table.dtype != torch.float32:
        raise UnsupportedModelError(
            f"{where} is {table.dtype}, not float32: the model was cast after loading, which shifts its keys. "
            "Load it with from_pretrained(..., dtype=...) instead of model.to(dtype)."
        )
    values = table.detach().flatten().double()
    mantissa, _ = torch.frexp(values)
    telling = values[(mantissa.abs() != 0.5) & (values != 0)]
    if len(telling) and torch.equal(telling.to(torch.bfloat16).double(), telling):
        raise UnsupportedModelError(
            f"{where} holds bfloat16 values: the model was cast to bfloat16 and back, which shifts its keys. "
            "Load it again with from_pretrained(..., dtype=...)."
        )


def _refuse_attention(decoder: Any, first: str) -> None:
    config = decoder.config
    if takes_token_ids(decoder) and not is_given_token_inputs(decoder):
        raise UnsupportedModelError(
            f"{first} and all later layers add an embedding of each token's id (hidden_size_per_layer_input), which "
            "this decoder's forward cannot be given beside the embeddings of rows."
        )
    if getattr(config, "use_bidirectional_attention", None) == "all":
        raise UnsupportedModelError(f"{first} attends later rows (use_bidirectional_attention): it is no decoder.")
    if getattr(config, "attn_temperature_tuning", None):
        raise UnsupportedModelError(f"{first} scales its queries by position; it cannot be relocated.")
    kind = getattr(config, "_attn_implementation", None)
    if kind not in ("sdpa", "eager"):
        raise ModelError(f"The decoder attends with {kind!r}; load it with attn_implementation='sdpa' or 'eager'.")


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return the rotary parameters of a configuration: one dictionary, or one per layer type."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if found and all(isinstance(value, dict) or value is None for value in found.values()):
        return [value for value in found.values() if value]
    return [dict(found)]


def layer_devices(
    model: Any, decoder: Any, layers: Sequence[nn.Module], names: Sequence[str]
) -> tuple[tuple[torch.device, ...], bool]:
    """Return the device of each layer, and whether any part of the decoder is elsewhere than its embeddings.

    The head that makes logits is a part of it.

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
    return tuple(devices), bool(away)
