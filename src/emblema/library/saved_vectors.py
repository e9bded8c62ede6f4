"""The vector indexes of every scope and embedder, each with its rows in the libraries' catalogue."""

import logging
import threading
from collections.abc import Mapping

import numpy
import xxhash

from emblema.errors import StoreError
from emblema.library.embedders import Vectors
from emblema.library.vectors import VectorIndex
from emblema.store.catalogue import Catalogue

_LOG = logging.getLogger(__name__)


class SavedIndex:
    """A vector index and its rows. What the rows lack is made again from the chunks, so they may be lost.

    Attributes:
        damaged: rows that were not as they were written.
    """

    def __init__(self, catalogue: Catalogue, scope: str, embedder: str) -> None:
        self.index = VectorIndex()
        self.damaged = 0
        self._catalogue, self._of = catalogue, (scope, embedder)
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Take over what the rows have and memory lacks, if the catalogue has changed."""
        with self._lock:
            version = self._catalogue.version()
            if version == self._seen:
                return
            self._seen = version
            query = "SELECT chunk, width, vectors, checksum FROM vectors WHERE scope = ? AND embedder = ?"
            for chunk, width, data, checksum in self._catalogue.read(
                lambda rows: rows.execute(query, self._of).fetchall()
            ):
                if chunk in self.index:
                    continue
                if checksum == _checksum(self._of, chunk, width, data):
                    self.index.add(chunk, numpy.frombuffer(data, numpy.float32).reshape(-1, width))
                else:
                    self.damaged += 1

    def add(self, made: Mapping[str, Vectors]) -> None:
        """Keep chunks' vectors; where they cannot be written, in memory alone."""
        for chunk, vectors in made.items():
            self.index.add(chunk, vectors)
        kept = {chunk: numpy.ascontiguousarray(vectors, numpy.float32) for chunk, vectors in made.items()}
        written = [(chunk, each.shape[1], each.tobytes()) for chunk, each in kept.items()]
        values = [(*self._of, *each, _checksum(self._of, *each)) for each in written]
        if not made or self._catalogue.path is None or self._catalogue.read_only is not None:
            return
        try:
            with self._catalogue.change(durable=False) as rows:
                rows.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?, ?, ?)", values)
        except StoreError as error:
            _LOG.warning("vectors are in memory alone: %s", error)


class Indexes:
    """Every index of one catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], SavedIndex] = {}

    def of(self, scope: str, embedder: str) -> SavedIndex:
        """Return the index of one scope's chunks under one embedder."""
        with self._lock:
            if (scope, embedder) not in self._made:
                self._made[scope, embedder] = SavedIndex(self._catalogue, scope, embedder)
            return self._made[scope, embedder]

    def forget(self, scope: str, chunk: str) -> None:
        """Forget a chunk of a scope, under every embedder, in memory; its rows go with `Listings.forget`."""
        with self._lock:
            indexes = [index.index for (owner, _), index in self._made.items() if owner == scope]
        for index in indexes:
            index.remove(chunk)

    @property
    def damaged(self) -> int:
        """Rows that were not as they were written."""
        with self._lock:
            return sum(index.damaged for index in self._made.values())


def _checksum(of: tuple[str, str], chunk: str, width: int, data: bytes | str) -> str:
    # Damaged bytes may have become text.
    digest = xxhash.xxh3_128(repr((of, chunk, width, type(data))).encode())
    digest.update(data.encode() if isinstance(data, str) else data)
    return digest.hexdigest()
