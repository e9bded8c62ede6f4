"""A digest of everything in a model that decides what it computes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn

_INCIDENTAL = ("_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype")
_SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")
_version = attrgetter("_version")
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


class WatchedWeights:
    """A model's digest, made again once a tensor was replaced or written in place, or an adapter switched.

    The tree of modules is walked once and again only when it changes; what is asked with every prompt is a few flat
    lists. No contents are read: a write through `tensor.data` leaves no trace here, nor does one through memory that a
    tensor shares with numpy. Under an engine weights must be written to the tensors themselves, in `torch.no_grad()`.

    Args:
        model: its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._walks = 0
        self._walk()
        self._digest = ""
        self._stamp: tuple[Any, ...] | None = None
        self._unchanging = False

    def digest(self) -> str:
        """Return the model's `fingerprint`, which is read again after a tensor or an adapter was changed."""
        if not self._unchanging and (stamp := self.stamp()) != self._stamp:
            self._digest, self._stamp = fingerprint(self._model), stamp
        return self._digest

    def stamp(self) -> tuple[Any, ...]:
        """Return what changes when a tensor or an adapter does."""
        shape = self._shape()
        if shape != self._known:
            self._walk()
        found = [state.get(name) for state, name in self._switches]
        switches = [repr(value) if isinstance(value, _PLAIN) else "" for value in found]
        return (self._walks, tuple(map(_version, self._tensors)), *switches)

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Look for changes once, at the beginning of the block; inside it there must be none."""
        if self._unchanging:
            yield
            return
        self.digest()
        self._unchanging = True
        try:
            yield
        finally:
            self._unchanging = False

    def _walk(self) -> None:
        self._walks += 1
        modules: list[Any] = list(self._model.modules())
        self._states = [vars(module) for module in modules]
        self._holders = [held for module in modules for held in (module._parameters, module._buffers, module._modules)]
        # Held, so that no other object gets the identity of one that is gone.
        self._held = list(chain.from_iterable(map(dict.values, self._holders)))
        self._known = self._shape()
        # Tensors made in inference mode count no versions; they cannot be trained either.
        self._tensors = [each for each in self._held if isinstance(each, Tensor) and not each.is_inference()]
        self._switches = [(state, name) for state in self._states for name in _SWITCHES if name in state]

    def _shape(self) -> tuple[list[int], list[int]]:
        """Return which objects the modules hold, and how many attributes each has."""
        return list(map(id, chain.from_iterable(map(dict.values, self._holders)))), list(map(len, self._states))


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
