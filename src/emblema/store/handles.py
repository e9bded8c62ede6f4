"""Handles of stored chunks: chunks whose rows are read from the store at each use."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload
from weakref import WeakValueDictionary

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.store.record import Name

ReadRows = Callable[[str, str], KVRows]
"""Returns the rows of (owner, id); raises LoadError where they are lost."""


class StoredRows(Sequence[LayerRows]):
    """The rows of a stored chunk: every use finds them in the tier that they are in at that time.

    It holds no rows itself, so keeping a chunk keeps no memory. A lease avoids repeated look-ups and keeps rows
    from being evicted between two reads.

    Args:
        owner: who the chunk belongs to.
        chunk: id of the chunk.
        sizes: bytes of each layer.
        read: reads the rows from the store.
    """

    def __init__(self, owner: str, chunk: str, sizes: Sequence[int], read: ReadRows) -> None:
        self.owner, self.chunk, self.sizes = owner, chunk, tuple(sizes)
        self._read = read

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def is_read_by(self, read: ReadRows) -> bool:
        """Return whether it is this store that has the rows."""
        return self._read == read

    def is_here(self, layer: int) -> bool:
        """Return False: a layer may have to be read from a slower tier."""
        return False

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, layer: int) -> LayerRows: ...

    @overload
    def __getitem__(self, layer: slice) -> tuple[LayerRows, ...]: ...

    def __getitem__(self, layer: int | slice) -> LayerRows | tuple[LayerRows, ...]:
        """Return a layer's rows; waits for rows that are being loaded.

        Raises:
            LoadError: they were deleted, expired, evicted from the last tier, or cannot be loaded.
        """
        rows = self._read(self.owner, self.chunk)
        return tuple(rows[layer]) if isinstance(layer, slice) else rows[layer]

    def __iter__(self) -> Iterator[LayerRows]:
        return iter(self._read(self.owner, self.chunk))


class HandleTable:
    """Handles that were given out and are still in use; guarded by the cache's lock.

    They tell whose a lost chunk was, and a deletion is remembered for as long as one is referenced.
    """

    def __init__(self, read: ReadRows) -> None:
        self._read = read
        self._rows: WeakValueDictionary[Name, StoredRows] = WeakValueDictionary()

    def __contains__(self, name: Name) -> bool:
        return name in self._rows

    def make(self, owner: str, chunk: Chunk, sizes: Sequence[int]) -> Chunk:
        """Return a chunk with StoredRows, the same rows object for all who hold the chunk."""
        rows = self._rows.get((owner, chunk.id))
        if rows is None or rows.sizes != tuple(sizes):
            rows = self._rows[owner, chunk.id] = StoredRows(owner, chunk.id, sizes, self._read)
        return Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, rows)
