"""The rows of a kept chunk, had from the store when they are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import overload

import torch

from emblema.kv.chunk import Chunk, ChunkKind, Encoded
from emblema.kv.layout import KVRows, LayerRows


class StoredRows(Sequence[LayerRows]):
    """What a kept chunk has in place of rows: every reading finds them in whichever tier they are by then.

    Holds no rows itself, so that a caller who keeps a chunk keeps no memory. A lease spares repeated look-ups and sees
    to it that nothing read is evicted in between.

    Args:
        owner: who the chunk belongs to.
        sizes: bytes of each layer.
        read: gives the rows of (owner, id); raises LoadError where they are lost.
    """

    def __init__(self, owner: str, chunk: str, sizes: Sequence[int], read: Callable[[str, str], KVRows]) -> None:
        self.owner, self.chunk, self.sizes = owner, chunk, tuple(sizes)
        self._read = read

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def are_read_by(self, read: Callable[[str, str], KVRows]) -> bool:
        """Whether it is this store that has the rows."""
        return self._read == read

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, layer: int) -> LayerRows: ...

    @overload
    def __getitem__(self, layer: slice) -> tuple[LayerRows, ...]: ...

    def __getitem__(self, layer: int | slice) -> LayerRows | tuple[LayerRows, ...]:
        """A layer's rows, waited for where they are under way.

        Raises:
            LoadError: they were deleted, expired, evicted from the last tier, or cannot be loaded.
        """
        rows = self._read(self.owner, self.chunk)
        return tuple(rows[layer]) if isinstance(layer, slice) else rows[layer]

    def __iter__(self) -> Iterator[LayerRows]:
        return iter(self._read(self.owner, self.chunk))


def handle_of(
    owner: str,
    id: str,
    kind: ChunkKind,
    model: str,
    encoded: Encoded,
    sizes: Sequence[int],
    read: Callable[[str, str], KVRows],
) -> Chunk:
    """A chunk whose rows are the store's."""
    return Chunk(id, kind, model, encoded, StoredRows(owner, id, sizes, read))


def moved(encoded: Encoded, device: torch.device) -> Encoded:
    """An encoding with its embeddings on a device; the same one where they are there already."""
    if encoded.embeds.device == device:
        return encoded
    deepstack = tuple(features.to(device) for features in encoded.deepstack)
    return replace(encoded, embeds=encoded.embeds.to(device), deepstack=deepstack)
