"""How one decoder layer keeps its rows: head counts, widths, and which band of a row is rotated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Slot = Literal["keys", "values"]
Pairing = Literal["half", "pairs"]


@dataclass(frozen=True, slots=True)
class RotaryBand:
    """The rotated part of a row.

    Feature pairs are `(start + i, start + i + width / 2)` for `half`, `(start + 2 i, start + 2 i + 1)` for `pairs`.

    Attributes:
        slot: the cache slot that is rotated; `values` only for a latent (MLA) cache, whose second is the rotary key.
        pairing: how features are paired.
        start: first rotated feature of the head.
        width: number of rotated features, even.
        table: name of the rotary table, for decoders with one table per layer type.
        axes: for each of the `width / 2` frequencies, the position axis that turns it (all 0 for plain RoPE).
        frequencies: for each of the `width / 2` pairs, the column of the table that turns it.
    """

    slot: Slot
    pairing: Pairing
    start: int
    width: int
    table: str
    axes: tuple[int, ...]
    frequencies: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One layer's cache: `(heads, width)` of both slots, the rotated band (None: no position), the sliding window.

    For K/V heads the slots are keys and values; for MLA the latent and the shared rotary key, both with one head. A
    short convolution keeps what it reads: its input channels, the first half under keys and the rest under values. Its
    output at a row depends on the inputs of that row and of the `taps - 1` before it. Linear attention keeps what its
    state is made of: queries and keys before its convolution, and values with `gates` numbers after them.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    rotary: RotaryBand | None
    window: int | None = None
    taps: int | None = None
    gates: int = 0

    @property
    def kind(self) -> Literal["heads", "latent", "convolution", "linear"]:
        if self.gates:
            return "linear"
        if self.taps is not None:
            return "convolution"
        return "latent" if self.rotary is not None and self.rotary.slot == "values" else "heads"

    @property
    def features(self) -> int:
        """Numbers kept per token, both slots together."""
        return self.keys[0] * self.keys[1] + self.values[0] * self.values[1]


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows of one layer: keys and values, each [heads, tokens, width], in the model's own cache layout."""

    keys: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[1])

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def slice(self, start: int, stop: int) -> "LayerRows":
        """Return rows `start` to `stop`, as views."""
        return LayerRows(self.keys[:, start:stop], self.values[:, start:stop])

    def select(self, rows: Tensor) -> "LayerRows":
        """Return the rows of an index tensor, copied."""
        return LayerRows(self.keys.index_select(1, rows), self.values.index_select(1, rows))

    def to(self, device: torch.device) -> "LayerRows":
        """Return the same rows on another device."""
        return LayerRows(self.keys.to(device), self.values.to(device))

    def pinned(self) -> "LayerRows":
        """Return the same rows in page-locked host memory; needs a GPU."""
        return LayerRows(self.keys.pin_memory(), self.values.pin_memory())


KVRows = Sequence[LayerRows]
"""Rows of every layer; a tuple, or rows that come when they are read and know their `bytes` before."""


def kv_bytes(rows: KVRows) -> int:
    """Return bytes of the rows of all layers; rows under way are not waited for."""
    known = getattr(rows, "bytes", None)
    return sum(layer.bytes for layer in rows) if known is None else int(known)


def layer_is_here(rows: KVRows, layer: int) -> bool:
    """Return whether a layer's rows can be read without waiting."""
    known = getattr(rows, "is_here", None)
    return layer < len(rows) if known is None else bool(known(layer))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no number of some tensors is NaN or infinite; one value is waited for on each device.

    A sum is an order of magnitude faster than looking at each number, and finite only where all numbers are.
    """
    held: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            held.setdefault(tensor.device, []).append(tensor)
    return all(_finite(there) for there in held.values())


def _finite(held: Sequence[Tensor]) -> bool:
    """Return whether all numbers of tensors of one device are finite."""
    if bool(torch.stack([tensor.sum().double() for tensor in held]).isfinite().all()):
        return True
    # Large numbers may have overflown together.
    return all(bool(torch.stack(tensor.aminmax()).isfinite().all()) for tensor in held)


def rows_finite(rows: KVRows) -> bool:
    """Return whether no number of the rows of any layer is NaN or infinite; rows under way are waited for."""
    return all_finite(tensor for layer in rows for tensor in (layer.keys, layer.values))
