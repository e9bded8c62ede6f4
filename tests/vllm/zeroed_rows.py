"""The control of linked rows: once written they are zeroed, so an answer that does not change has not read them."""

from collections.abc import Callable
from typing import Any

import torch

from emblema.kv.layout import LayerRows
from emblema.served.staging import StagedRows

STOCK = StagedRows.write


def zeroing(*parts: str) -> Callable[..., None]:
    """Return what to have in place of `StagedRows.write`.

    Args:
        parts: `keys` and `values`, or one of them.
    """

    def write(own: StagedRows, model: Any, sink: Any, slots: torch.Tensor, taken: tuple[tuple[int, int], ...]) -> None:
        STOCK(own, model, sink, slots, taken)
        where = torch.cat([slots[start:stop] for start, stop in taken])
        for layer in range(len(model.layouts)):
            rows = sink.read(layer, where)
            kept = {"keys": rows.keys, "values": rows.values}
            sink.write(layer, where, LayerRows(**{name: part * (name not in parts) for name, part in kept.items()}))

    return write
