"""A layer's pages: written as the model itself writes them, and read by a layout that is measured, not assumed.

Attention backends differ in how they order a page (vLLM's for CPUs keeps keys transposed), and may keep codes of 8 bits
in place of numbers. So rows of zeros and of one other number are written to the page that vLLM never uses (its null
block): where a page changes is where a feature lies, whatever its elements mean.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.placing import LayerMemory

Write = Callable[[Tensor, Tensor, Tensor], None]
"""Keys and values [tokens, heads, width] to slots [tokens] of one layer."""


@dataclass(frozen=True, slots=True)
class PageCodes:
    """Numbers kept as codes of 8 bits: a number is its code times a scale.

    Attributes:
        dtype: of the codes, one of torch's `float8` types.
        keys, values: the scales.
    """

    dtype: torch.dtype
    keys: float
    values: float


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's pages.

    Attributes:
        cache: the tensor that holds them; its first axis counts them, in any order of memory.
        size: rows of one. vLLM's page may be several that follow each other.
        write: how rows are written to them.
        codes: how numbers are coded; None where they are kept in the cache's own dtype.
    """

    cache: Tensor
    size: int
    write: Write
    codes: PageCodes | None = None

    @property
    def form(self) -> tuple[object, ...]:
        """What all layers of a server must have in common."""
        return self.cache.shape, self.cache.stride(), self.cache.dtype, self.cache.device, self.size

    @property
    def scales(self) -> tuple[float, float]:
        """What a one is written as where it shall be a code's one: for keys and for values."""
        return (1.0, 1.0) if self.codes is None else (self.codes.keys, self.codes.values)


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the features of some rows lie in any layer's pages, [heads, rows, width] int64: keys and values."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class PagePlaces:
    """The first rows of a prompt, in all of its pages.

    Attributes:
        pages: [pages] int64, the numbers of the pages in order.
        rows: how many rows there are.
    """

    pages: Tensor
    rows: int


@dataclass(frozen=True, slots=True)
class FeatureStrides:
    """How far features of a page lie apart, where that is the same everywhere.

    Attributes:
        shape: rows of a page, heads, and features of a head.
        start: the first feature, from the page's start.
        row, head, feature: from one to the next.
    """

    shape: tuple[int, int, int]
    start: int
    row: int
    head: int
    feature: int

    @classmethod
    def of(cls, places: Tensor) -> "FeatureStrides | None":
        """Return those of features at places [rows, heads, width] int64; None where there are none."""
        start = int(places[0, 0, 0])
        row, head, feature = (
            int(places.select(axis, 1).flatten()[0]) - start if size > 1 else 0
            for axis, size in enumerate(places.shape)
        )
        rows, heads, width = (torch.arange(size, device=places.device) for size in places.shape)
        told = start + rows.view(-1, 1, 1) * row + heads.view(-1, 1) * head + width * feature
        size, count, wide = places.shape
        return cls((size, count, wide), start, row, head, feature) if torch.equal(places, told) else None

    def view(self, memory: Tensor, stride: int) -> Tensor:
        """Return all pages as [pages, rows, heads, width].

        Args:
            memory: of all pages, as one axis.
            stride: from one page to the next.
        """
        size, heads, width = self.shape
        last = self.start + (size - 1) * self.row + (heads - 1) * self.head + (width - 1) * self.feature
        strides = (stride, self.row, self.head, self.feature)
        shape = (1 + (len(memory) - 1 - last) // stride, *self.shape)
        return memory.as_strided(shape, strides, memory.storage_offset() + self.start)

    def gather(self, memory: Tensor, stride: int, places: PagePlaces) -> Tensor:
        """Return a copy of rows [heads, rows, width]; its last two axes lie in memory as those of a page do.

        Args:
            memory: of all pages, as one axis.
            stride: from one page to the next.
            places: of the rows.
        """
        _, heads, width = self.shape
        pages = self.view(memory, stride)
        if self.row < self.feature:
            found = pages.permute(0, 2, 3, 1).index_select(0, places.pages)
            return found.permute(1, 2, 0, 3).reshape(heads, width, -1)[..., : places.rows].transpose(1, 2)
        found = pages.transpose(1, 2).index_select(0, places.pages)
        return found.transpose(0, 1).reshape(heads, -1, width)[:, : places.rows]


class Pages:
    """The pages of every layer of one rank.

    Args:
        layers: each layer's pages.
        layouts: per layer, how the model keeps its rows.
        block_size: rows of vLLM's page.
        dtype: of rows.

    Raises:
        EmblemaError: layers differ in how they keep pages, or what was written to a page is not found in it again.
    """

    def __init__(
        self, layers: Sequence[LayerPages], layouts: Sequence[LayerLayout], block_size: int, dtype: torch.dtype
    ) -> None:
        self._layers, self._layouts, self._block_size, self._dtype = layers, layouts, block_size, dtype
        if any(one.form != other.form for one, other in pairwise(layers)):
            raise EmblemaError("the server's layers keep their pages in different forms")
        cache = layers[0].cache
        self.rows = torch.empty(0, dtype=dtype, device=cache.device)
        self._size, self._stride = layers[0].size, cache.stride(0)
        self._measure()

    def slots(self, blocks: Sequence[int], rows: int) -> Tensor:
        """Return the slots [rows] int64 of a request's rows, by its pages in order."""
        places = torch.tensor(list(blocks), dtype=torch.int64)[:, None] * self._block_size
        return (places + torch.arange(self._block_size)).reshape(-1)[:rows]

    def locate(self, slots: Tensor) -> RowPlaces:
        """Return where rows at slots lie: once for all layers that are read."""
        slots = slots.to(self.rows.device, non_blocking=True)
        starts, inside = slots // self._size * self._stride, slots % self._size
        keys, values = (
            (places.index_select(0, inside) + starts.view(-1, 1, 1)).transpose(0, 1).contiguous()
            for places in self._places
        )
        return RowPlaces(keys, values)

    def locate_prompt(self, blocks: Sequence[int], rows: int) -> RowPlaces | PagePlaces:
        """Return where the first rows of a prompt lie, by its pages in order: once for all layers that are read."""
        if None in self._strides:
            return self.locate(self.slots(blocks, rows))
        parts = self._block_size // self._size
        pages = torch.tensor(list(blocks), dtype=torch.int64)[:, None] * parts + torch.arange(parts)
        needed = pages.flatten()[: -(-rows // self._size)]
        return PagePlaces(needed.to(self.rows.device, non_blocking=True), rows)

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        """Write one layer's rows at slots; numbers become the codes that are nearest to them.

        A backend may round them otherwise (vLLM's for CPUs cuts digits off). What `read` gave is written unchanged.
        """
        device, codes = self.rows.device, self._layers[layer].codes
        where = torch.arange(slots.start, slots.stop, device=device) if isinstance(slots, slice) else slots.to(device)
        if codes is not None:
            places, memory = self.locate(where), _memory(self._layers[layer].cache)
            memory.put_(places.keys, _coded(rows.keys, codes.dtype, codes.keys))
            memory.put_(places.values, _coded(rows.values, codes.dtype, codes.values))
            return
        keys, values = (part.transpose(0, 1).contiguous() for part in (rows.keys, rows.values))
        self._layers[layer].write(keys, values, where)

    def memory(self, layer: int) -> LayerMemory | None:
        """Return the memory of a layer's rows; None where it holds codes, or features in no regular order."""
        cache = self._layers[layer].cache
        keys, values = self._strides
        if keys is None or values is None or self._layers[layer].codes is not None or cache.dtype != self._dtype:
            return None
        return LayerMemory(keys.view(_memory(cache), self._stride), values.view(_memory(cache), self._stride))

    def read(self, layer: int, rows: RowPlaces | PagePlaces | Tensor) -> LayerRows:
        """Return a copy of one layer's rows at places or slots: codes as the numbers that they stand for.

        A number from a code is rounded to the rows' dtype, and written again gives the same code.
        """
        places = self.locate(rows) if isinstance(rows, Tensor) else rows
        codes = self._layers[layer].codes
        keys, values = (self._part(layer, places, index) for index in range(2))
        if codes is None:
            return LayerRows(keys, values)
        numbers = _decoded(keys, codes.dtype, codes.keys), _decoded(values, codes.dtype, codes.values)
        return LayerRows(*(part.to(self._dtype) for part in numbers))

    def read_keys(self, layer: int, rows: RowPlaces | PagePlaces) -> Tensor:
        """Return a copy of one layer's keys at places [heads, rows, width], as `read` gives them."""
        keys, codes = self._part(layer, rows, 0), self._layers[layer].codes
        return keys if codes is None else _decoded(keys, codes.dtype, codes.keys).to(self._dtype)

    def _part(self, layer: int, rows: RowPlaces | PagePlaces, index: int) -> Tensor:
        """Return the keys (0) or the values (1) at places, as they are kept."""
        memory, strides = _memory(self._layers[layer].cache), self._strides[index]
        if isinstance(rows, PagePlaces):
            assert strides is not None
            return strides.gather(memory, self._stride, rows)
        at = (rows.keys, rows.values)[index]
        return memory.index_select(0, at.view(-1)).view(at.shape)

    def _measure(self) -> None:
        """Find where each feature of each row of a page lies.

        Raises:
            EmblemaError: the page does not give back what was written to it.
        """
        cache = self._layers[0].cache
        page, kept = cache[0], cache[0].clone()
        try:
            self._places = self._find_features(page)
            self._strides = [FeatureStrides.of(places) for places in self._places]
            self._check(page)
        finally:
            page.copy_(kept)

    def _find_features(self, page: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far keys and values lie from a page's start, each [rows, heads, width] int64."""
        layout, size = self._layouts[0], self._size
        shapes = (size, *layout.keys), (size, *layout.values)
        counts = [math.prod(shape) for shape in shapes]
        numbers = torch.arange(sum(counts), device=page.device)

        def written(bits: Tensor) -> Tensor:
            """Return a page's elements, in the order of its axes, where features are zeros and ones."""
            page.zero_()
            parts = zip(bits.to(self._dtype).split(counts), self._layers[0].scales, shapes, strict=True)
            self._write_through(*((part * scale).reshape(shape) for part, scale, shape in parts))
            return page.reshape(-1).clone()

        empty = written(torch.zeros_like(numbers))
        places = (written(torch.ones_like(numbers)) != empty).nonzero().squeeze(1)
        found = torch.zeros_like(places)
        for bit in range(len(numbers).bit_length()):
            found += (written(numbers >> bit & 1) != empty)[places].to(torch.int64) << bit
        if not torch.equal(found.sort().values, numbers):
            raise EmblemaError("the pages of this attention backend do not give back what was written to them")
        keys, values = _offsets(page)[places[found.argsort()]].split(counts)
        return keys.reshape(shapes[0]), values.reshape(shapes[1])

    def _write_through(self, keys: Tensor, values: Tensor) -> None:
        """Write the first page's rows, each [rows, heads, width], as the backend does."""
        self._layers[0].write(keys, values, torch.arange(self._size, device=keys.device))

    def _check(self, page: Tensor) -> None:
        """Raise EmblemaError unless rows are read as written, or near it in codes, which are then written unchanged."""
        layout, layer = self._layouts[0], self._layers[0]
        generator = torch.Generator().manual_seed(0)
        written = [
            (torch.randn(self._size, *shape, generator=generator) * scale).to(self._dtype).to(page.device)
            for shape, scale in zip((layout.keys, layout.values), layer.scales, strict=True)
        ]
        self._write_through(*written)
        once, read = page.clone(), self.read(0, torch.arange(self._size))
        self.write(0, slice(0, self._size), read)
        step = 0.0 if layer.codes is None else torch.finfo(layer.codes.dtype).eps
        for given, back, scale in zip(written, (read.keys, read.values), layer.scales, strict=True):
            own, found = given.float(), back.transpose(0, 1).float()
            if not bool(((own - found).abs() <= step * (own.abs() + scale)).all()) or not torch.equal(page, once):
                raise EmblemaError("the pages of this attention backend do not give back the numbers written to them")


def _memory(cache: Tensor) -> Tensor:
    """Return all memory between a cache's first and last element, as one axis of its own kind of elements."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True))
    return cache.as_strided((extent,), (1,))


def _offsets(page: Tensor) -> Tensor:
    """Return how far each element of a page lies from its first, in the order of its axes."""
    offsets = torch.zeros((), dtype=torch.int64, device=page.device)
    for size, stride in zip(page.shape, page.stride(), strict=True):
        offsets = offsets[..., None] + torch.arange(size, device=page.device) * stride
    return offsets.reshape(-1)


def _decoded(codes: Tensor, kind: torch.dtype, scale: float) -> Tensor:
    return codes.view(kind).float() * scale


def _coded(numbers: Tensor, kind: torch.dtype, scale: float) -> Tensor:
    most = torch.finfo(kind).max
    return (numbers.float() / scale).clamp(-most, most).to(kind).view(torch.uint8)
