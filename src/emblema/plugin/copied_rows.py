"""Rows that were copied out of an engine's memory."""

from dataclasses import dataclass

from emblema.kv.host_copies import PendingCopies
from emblema.kv.layout import LayerRows


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of one chunk in its prompt, copied from pages; `read` counts rows from the prompt's start, as a table's."""

    start: int
    layers: tuple[LayerRows, ...]

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows:
        rows = self.layers[layer]
        return rows.slice(start - self.start, rows.tokens if stop is None else stop - self.start)


def layers_of(pending: PendingCopies) -> tuple[LayerRows, ...]:
    """Return every layer's rows when they are in host memory."""
    copies = pending.take()
    half = len(copies) // 2
    return tuple(LayerRows(keys, values) for keys, values in zip(copies[:half], copies[half:], strict=True))
