"""A digest of everything in a model that decides what it computes."""

import json
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn

_INCIDENTAL = ("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype")
_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
_PLAIN = str | bool | list | dict | float | int


def fingerprint(model: nn.Module) -> str:
    """Return a 256-bit hex digest over configuration and every parameter's and buffer's name, shape, dtype, contents.

    Quantisation and adapters change it, since they change modules or contents; where the model lies on disk does not,
    nor does saving it.
    """
    digest = blake3(max_threads=blake3.AUTO)
    config: Any = getattr(model, "config", None)
    described = _plain(config.to_dict()) if config is not None else {}
    _field(digest, type(model).__name__.encode())
    _field(digest, json.dumps(described, sort_keys=True, default=str).encode())
    for switch, state in _switches(model):
        _field(digest, f"{switch} {state}".encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        _field(digest, name.encode())
        _field(digest, f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        _contents(digest, tensor)
    return str(digest.hexdigest())


def weights_stamp(model: nn.Module) -> tuple[Any, ...]:
    """Changes when a tensor is replaced or written in place, or a low-rank adapter is switched; reads no contents.

    A write through `tensor.data` leaves no trace here, nor does one through memory that a tensor shares with numpy:
    under an engine, weights must be written to the tensors themselves, inside `torch.no_grad()`.
    """
    marks: list[Any] = []
    waiting, met = [model], {id(model)}
    # Names are not made: a stamp is asked for with every prompt.
    while waiting:
        module = waiting.pop()
        state = vars(module)
        marks.append(id(module))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                # Tensors made in inference mode count no versions; they cannot be trained either.
                marks += (id(tensor), -1 if tensor.is_inference() else tensor._version)
        if not state.keys().isdisjoint(_SWITCHES):
            marks += [(name, repr(state[name])) for name in _SWITCHES if isinstance(state.get(name), _PLAIN)]
        for child in module._modules.values():
            if child is not None and id(child) not in met:
                met.add(id(child))
                waiting.append(child)
    return tuple(marks)


def _switches(model: nn.Module) -> list[tuple[str, str]]:
    """State of low-rank adapters that is kept beside the weights: which are active, merged or off."""
    return [
        (f"{path}.{name}", repr(value))
        for path, module in model.named_modules()
        for name in _SWITCHES
        if isinstance(value := vars(module).get(name), _PLAIN)
    ]


def _field(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _contents(digest: Any, tensor: Tensor) -> None:
    with torch.no_grad():
        raw = tensor.detach().cpu().contiguous().reshape(-1)
        data = raw.view(torch.uint8).numpy() if raw.numel() else raw.to(torch.uint8).numpy()
    digest.update(data.nbytes.to_bytes(8, "little"))
    digest.update(data)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key not in _INCIDENTAL}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
