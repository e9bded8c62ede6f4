"""Rows in SGLang's pool of keys and values: a tensor [slots, heads, width] for each of both and each layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.placing import LayerMemory


class PoolRows:
    """The rows of every layer of one pool, read and written by slots.

    Args:
        pool: SGLang's `MHATokenToKVPool`.
        layouts: per layer, how the model keeps its rows.
        dtype: of rows.

    Raises:
        EmblemaError: the pool keeps them in another form.
    """

    def __init__(self, pool: Any, layouts: Sequence[LayerLayout], dtype: torch.dtype) -> None:
        buffers = [(pool.get_key_buffer(layer), pool.get_value_buffer(layer)) for layer in range(len(layouts))]
        for (keys, values), layout in zip(buffers, layouts, strict=True):
            shapes = tuple(keys.shape[1:]), tuple(values.shape[1:])
            if shapes != (tuple(layout.keys), tuple(layout.values)) or {keys.dtype, values.dtype} != {dtype}:
                raise EmblemaError(
                    f"the pool keeps rows of {shapes} in {keys.dtype}, the model has {layout.keys} and {layout.values} "
                    f"in {dtype}"
                )
        self._buffers = buffers
        self.rows = torch.empty(0, dtype=dtype, device=buffers[0][0].device)

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        """Write one layer's rows at slots."""
        where = slots if isinstance(slots, slice) else slots.to(self.rows.device)
        for buffer, part in zip(self._buffers[layer], (rows.keys, rows.values), strict=True):
            buffer[where] = part.transpose(0, 1).to(self.rows)

    def memory(self, layer: int) -> LayerMemory:
        """Return the memory of one layer's rows: one page, whose rows are the slots."""
        keys, values = self._buffers[layer]
        return LayerMemory(keys[None], values[None])

    def read(self, layer: int, slots: Tensor) -> LayerRows:
        """Return a copy of one layer's rows at slots [rows] int64."""
        keys, values = (buffer.index_select(0, slots).transpose(0, 1) for buffer in self._buffers[layer])
        return LayerRows(keys.contiguous(), values.contiguous())
