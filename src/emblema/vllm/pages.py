"""A layer's pages: written as the model itself writes them, and read by a layout that is measured, not assumed.

Attention backends differ in how they order a page (vLLM's for CPUs keeps keys transposed). So known numbers are written
to the page that vLLM never uses (its null block); where each is found is where that feature of that row lies.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows

Write = Callable[[Tensor, Tensor, Tensor], None]
"""Keys and values [tokens, heads, width] to slots [tokens] of one layer."""
DIGIT = 128


class Pages:
    """The pages of every layer of one rank.

    Args:
        caches: per layer, the tensor that holds its pages and the axis that counts them.
        writes: per layer, how rows are written.
        layouts: per layer, how the model keeps its rows.
        block_size: rows of a page.

    Raises:
        EmblemaError: what was written to a page is not found in it again.
    """

    def __init__(
        self,
        caches: Sequence[tuple[Tensor, int]],
        writes: Sequence[Write],
        layouts: Sequence[LayerLayout],
        block_size: int,
    ) -> None:
        self.caches, self.writes, self.layouts, self.block_size = caches, writes, layouts, block_size
        self.rows = torch.empty(0, device=caches[0][0].device)
        self._places = self._measure()

    def slots(self, blocks: Sequence[int], rows: int) -> Tensor:
        """Return the slots [rows] int64 of a request's rows, by its pages in order."""
        places = torch.tensor(list(blocks), dtype=torch.int64)[:, None] * self.block_size
        return (places + torch.arange(self.block_size)).reshape(-1)[:rows]

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        """Write one layer's rows at slots."""
        if isinstance(slots, slice):
            slots = torch.arange(slots.start, slots.stop)
        keys, values = (part.transpose(0, 1).contiguous() for part in (rows.keys, rows.values))
        self.writes[layer](keys, values, slots.to(self.rows.device))

    def read(self, layer: int, slots: Tensor) -> LayerRows:
        """Return a copy of one layer's rows at slots."""
        cache, axis = self.caches[layer]
        slots = slots.to(cache.device)
        blocks, inverse = torch.unique(slots // self.block_size, return_inverse=True)
        pages = cache.index_select(axis, blocks).movedim(axis, 0).flatten(1)
        taken = []
        for places in self._places:
            # [rows, heads, width]: each row's features by where they lie in its page.
            inside = places.index_select(0, slots % self.block_size)
            taken.append(pages[inverse[:, None, None], inside].transpose(0, 1).contiguous())
        return LayerRows(taken[0], taken[1])

    def _measure(self) -> tuple[Tensor, Tensor]:
        """Return where each feature of each row of a page lies: keys and values, [block, heads, width] int64."""
        cache, axis = self.caches[0]
        page, layout = cache.select(axis, 0), self.layouts[0]
        sizes = [self.block_size * heads * width for heads, width in (layout.keys, layout.values)]
        codes = torch.arange(sum(sizes), dtype=torch.int64)
        found = torch.zeros(page.numel(), dtype=torch.int64)
        seen = torch.zeros(page.numel(), dtype=torch.bool)
        kept = page.clone()
        scale = 1
        while scale < len(codes):
            digits = (codes // scale % DIGIT + 1).to(cache.dtype).to(cache.device)
            keys, values = (
                part.reshape(self.block_size, *shape)
                for part, shape in zip(digits.split(sizes), (layout.keys, layout.values), strict=True)
            )
            page.zero_()
            self.writes[0](keys, values, torch.arange(self.block_size, device=cache.device))
            read = page.reshape(-1).cpu().to(torch.int64)
            seen = read > 0
            found += (read - 1).clamp_min(0) * scale
            scale *= DIGIT
        page.copy_(kept)
        places = seen.nonzero().squeeze(1)
        if len(places) != len(codes) or not bool((found[places].sort().values == codes).all()):
            raise EmblemaError("the pages of this attention backend do not give back what was written to them")
        order = places[found[places].argsort()].to(cache.device)
        keys, values = order.split(sizes)
        return keys.reshape(self.block_size, *layout.keys), values.reshape(self.block_size, *layout.values)
