"""How one decoder layer keeps its rows: head counts, widths, and which band of a row is rotated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from emblema.errors import ModelError

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
class StateShape:
    """The state of linear attention: `heads` matrices [key width, value width]."""

    heads: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One layer's cache: `(heads, width)` of both slots, the rotated band (None: no position), the sliding window.

    For K/V heads the slots are keys and values; for MLA the latent and the shared rotary key, both with one head. A
    short convolution keeps what it reads: its input channels, the first half under keys and the rest under values. Its
    output at a row depends on the inputs of that row and of the `taps - 1` before it. Linear attention keeps what its
    `state` is made of: queries and keys before its convolution, and values with the gates' numbers after them; of
    chunks of `mapped_from` tokens or more (None: of none) it keeps a map of its state in their place (`MappedRows`),
    in eight bits a number where it is `compact` (`CompactMap`), for models that compute in 16 bits.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    rotary: RotaryBand | None
    window: int | None = None
    taps: int | None = None
    state: StateShape | None = None
    mapped_from: int | None = None
    compact: bool = False

    @property
    def kind(self) -> Literal["heads", "latent", "convolution", "linear"]:
        if self.state is not None:
            return "linear"
        if self.taps is not None:
            return "convolution"
        return "latent" if self.rotary is not None and self.rotary.slot == "values" else "heads"

    @property
    def features(self) -> int:
        """Numbers kept per token, both slots together."""
        return self.keys[0] * self.keys[1] + self.values[0] * self.values[1]

    @property
    def gates(self) -> int:
        """Numbers of the two gates of linear attention, after the values of a row."""
        return 0 if self.state is None else 2 * self.state.heads

    @property
    def edge(self) -> int:
        """Rows before a row that its convolution reads."""
        return (self.taps or 1) - 1

    @property
    def front(self) -> int:
        """Rows of a chunk before its map: those that may read a neighbour, and those that read them."""
        return 2 * self.edge

    @property
    def map_numbers(self) -> int:
        """Numbers of a chunk of linear attention that is kept as a map, at most: heads may forget.

        A compact map's are counted in 16 bits: two of its matrices' make one, a scale is two, the diagonal's are whole.
        """
        if self.state is None:
            return 0
        keys, values = self.state.key_width, self.state.value_width
        square, beside = keys * (keys + values), (self.front + self.edge) * self.features
        if not self.compact:
            return self.state.heads * square + beside
        return self.state.heads * (square // 2 + 2 * (keys + values) + keys) + beside

    def is_mapped(self, tokens: int) -> bool:
        """Return whether a chunk of so many tokens keeps a map of its state here, in place of its rows."""
        return self.mapped_from is not None and tokens >= self.mapped_from

    def numbers(self, tokens: int) -> int:
        """Return how many numbers a chunk of so many tokens keeps here."""
        return self.map_numbers if self.is_mapped(tokens) else self.features * tokens


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows of one layer: keys and values, each [heads, tokens, width], in the model's own cache layout."""

    keys: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[1])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is kept."""
        return self.keys, self.values

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def with_tensors(self, tensors: Sequence[Tensor]) -> "LayerRows":
        """Return the same with other tensors, in the order of `tensors`."""
        return LayerRows(*tensors)

    def slice(self, start: int, stop: int) -> "LayerRows":
        """Return rows `start` to `stop`, as views."""
        return LayerRows(self.keys[:, start:stop], self.values[:, start:stop])

    def select(self, rows: Tensor) -> "LayerRows":
        """Return the rows of an index tensor, copied."""
        return LayerRows(self.keys.index_select(1, rows), self.values.index_select(1, rows))

    def to(self, device: torch.device) -> "LayerRows":
        """Return the same rows on another device."""
        return self.with_tensors([tensor.to(device) for tensor in self.tensors])

    def clone(self) -> "LayerRows":
        """Return the same rows in memory of their own."""
        return self.with_tensors([tensor.clone() for tensor in self.tensors])

    def pinned(self) -> "LayerRows":
        """Return the same rows in page-locked host memory; needs a GPU."""
        return self.with_tensors([tensor.pin_memory() for tensor in self.tensors])


@dataclass(frozen=True, slots=True)
class StateMap:
    """What rows `start` to `stop` of linear attention do to a state S: S becomes `decay` S + `own`, whatever it was.

    Attributes:
        start, stop: rows that it stands for.
        own: [heads, key width, value width], what the rows leave of themselves.
        decay: [kept, key width, key width], what they leave of S, of the heads that do not forget it.
        heads: [kept] int64, which these are.
    """

    start: int
    stop: int
    own: Tensor
    decay: Tensor
    heads: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is kept."""
        return self.own, self.decay, self.heads

    @property
    def dtype(self) -> torch.dtype:
        """What the matrices are of in use."""
        return self.own.dtype

    @staticmethod
    def shapes(state: StateShape, kept: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of `tensors` for a state of which so many heads are not forgotten."""
        keys = state.key_width
        return (state.heads, keys, state.value_width), (kept, keys, keys), (kept,)

    def at(self, start: int) -> Self:
        """Return the same map of rows that begin at `start`."""
        return replace(self, start=start, stop=start + self.stop - self.start)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same with other tensors, in the order of `tensors`."""
        return type(self)(self.start, self.stop, *tensors)

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return `own` and `decay` in a floating dtype."""
        return self.own.to(dtype), self.decay.to(dtype)

    def apply(self, state: Tensor) -> Tensor:
        """Return what becomes of a state [1, heads, key width, value width], in its dtype."""
        own, decay = self.matrices(state.dtype)
        if len(self.heads) == state.shape[1]:
            return torch.baddbmm(own, decay, state[0])[None]
        return own.index_add(0, self.heads, decay @ state[0, self.heads])[None]

    def after(self, first: "StateMap") -> "StateMap":
        """Return the map of two neighbouring runs of rows, `first` and then this."""
        common = sorted({*self.heads.tolist()} & {*first.heads.tolist()})
        heads = torch.tensor(common, dtype=torch.int64, device=self.heads.device)
        places = [torch.searchsorted(held.heads, heads) for held in (self, first)]
        (own, before), (_, decay) = first.matrices(self.dtype), self.matrices(self.dtype)
        stop = first.stop + self.stop - self.start
        return StateMap(first.start, stop, self.apply(own[None])[0], decay[places[0]] @ before[places[1]], heads)


@dataclass(frozen=True, slots=True)
class MappedRows(LayerRows):
    """Rows of linear attention, runs of which are kept as maps of its state.

    Keys and values hold the rows outside of these runs in order, and the last `edge` rows of each run, which the
    convolution of the rows after it reads.
    """

    maps: tuple[StateMap, ...] = ()
    edge: int = 0

    @classmethod
    def of(cls, rows: LayerRows, maps: Sequence[StateMap], edge: int) -> "MappedRows":
        """Return rows without those that maps stand for."""
        held = rows_outside(rows.tokens, maps, edge)
        kept = rows.select(held.to(rows.keys.device))
        return cls(kept.keys, kept.values, tuple(maps), edge)

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[1]) + sum(each.stop - self.edge - each.start for each in self.maps)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, *(tensor for each in self.maps for tensor in each.tensors)

    def with_tensors(self, tensors: Sequence[Tensor]) -> "MappedRows":
        keys, values, *rest = tensors
        given = iter(rest)
        maps = tuple(each.with_tensors([next(given) for _ in each.tensors]) for each in self.maps)
        return MappedRows(keys, values, maps, self.edge)

    def rows_held(self) -> Tensor:
        """Return which rows the keys and values are of [held] int64, in order, on the CPU."""
        return rows_outside(self.tokens, self.maps, self.edge)

    def slice(self, start: int, stop: int) -> LayerRows:
        """Return rows `start` to `stop`, as views.

        Raises:
            ModelError: one of both is inside a run that is kept as a map.
        """
        for each in self.maps:
            if any(each.start < cut < each.stop for cut in (start, stop)):
                raise ModelError(f"rows {each.start} to {each.stop} are kept as a map: take all of them, or none")
        first, last = torch.searchsorted(self.rows_held(), torch.tensor([start, stop])).tolist()
        maps = tuple(each.at(each.start - start) for each in self.maps if start <= each.start < stop)
        keys, values = self.keys[:, first:last], self.values[:, first:last]
        return MappedRows(keys, values, maps, self.edge) if maps else LayerRows(keys, values)

    def select(self, rows: Tensor) -> LayerRows:
        """Raise ModelError: single rows are not kept."""
        raise ModelError("rows that are kept as a map of a state cannot be selected one by one: take slices of them")


def rows_outside(tokens: int, maps: Iterable[StateMap], edge: int) -> Tensor:
    """Return the rows of `tokens` that are kept beside maps [held] int64: see `MappedRows`."""
    held = torch.ones(tokens, dtype=torch.bool)
    for each in maps:
        held[each.start : each.stop - edge] = False
    return held.nonzero()[:, 0]


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
    return all_finite(tensor for layer in rows for tensor in layer.tensors)
