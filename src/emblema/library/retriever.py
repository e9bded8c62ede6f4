"""Finds chunks of a library for a query."""

import logging
import re
from collections.abc import Sequence

from emblema.errors import LoadError, StoreError
from emblema.kv.chunk import Chunk
from emblema.library.embedders import AttentionEmbedder, Embedder, Space, Vectors, choose_space
from emblema.library.libraries import Libraries
from emblema.library.saved_vectors import SavedIndex
from emblema.library.tenant_model import TenantModel

_LOG = logging.getLogger(__name__)
SPACE = "attention space/1"
SETTLED_CHUNKS, PROBED_CHUNKS = 8, 16
"""Chunks that it takes to choose the attention space for good, and the most that are looked at."""


class Retriever:
    """Searches the chunks of one scope.

    Args:
        libraries: where vectors are kept.
        tenant: the tenant's model and store; searching runs the model.
        embedder: in place of the model's own attention space, which is chosen on the first chunks and then kept.
    """

    def __init__(self, libraries: Libraries, tenant: TenantModel, embedder: Embedder | None = None) -> None:
        self.libraries, self.tenant = libraries, tenant
        self._given = embedder
        self._tried: tuple[int, Space] | None = None

    def search(self, scope: str, query: str, count: int, chunks: Sequence[str]) -> list[tuple[str, float]]:
        """Return the `count` nearest of some chunks of a scope, with their scores, the nearest first.

        Vectors that are missing are made on the way; a chunk whose rows cannot be read is left out, and counted.

        Raises:
            StoreError: the query is empty or no text, or count is not a positive number.
        """
        if not isinstance(query, str) or not query.strip():
            raise StoreError("the query is empty: give it some text")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise StoreError(f"{count!r} results were asked for: give a number from 1")
        if not chunks:
            return []
        embedder = self._embedder(scope, chunks)
        saved = self.libraries.indexes.of(scope, embedder.name)
        self.fill(saved, embedder, chunks)
        return saved.index.search(embedder.query(query), count, chunks)

    def prepare(self, scope: str, chunks: Sequence[str]) -> None:
        """Make the vectors of chunks now, while their rows are in memory."""
        if chunks and (self._given is not None or self._settled(scope) is not None):
            embedder = self._embedder(scope, chunks)
            self.fill(self.libraries.indexes.of(scope, embedder.name), embedder, chunks)

    def fill(self, saved: SavedIndex, embedder: Embedder, chunks: Sequence[str]) -> None:
        """Make the vectors that an index lacks."""
        if all(chunk in saved.index for chunk in chunks):
            return
        saved.refresh()
        made: dict[str, Vectors] = {}
        for id in chunks:
            chunk = None if id in saved.index else self.tenant.store.find(id)
            if chunk is None:
                continue
            try:
                made[id] = embedder.chunk(chunk)
            except LoadError as error:
                _LOG.warning("no vectors for a chunk: %s", error)
                self.libraries.statistics.unread_chunks += 1
        saved.add(made)

    def _embedder(self, scope: str, chunks: Sequence[str]) -> Embedder:
        if self._given is not None:
            return self._given
        space = self._settled(scope)
        if space is None:
            space = self._choose(scope, chunks)
        return AttentionEmbedder(self.tenant.adapter, self.tenant.read, space)

    def _settled(self, scope: str) -> Space | None:
        written = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", self.libraries.listings.setting(scope, SPACE) or "")
        if written is None:
            return None
        space = Space(int(written[1]), int(written[2]))
        return space if space.layer < len(self.tenant.adapter.layouts) else None

    def _choose(self, scope: str, chunks: Sequence[str]) -> Space:
        if self._tried is not None and self._tried[0] == len(chunks):
            return self._tried[1]
        readable: list[Chunk] = []
        for id in chunks:
            chunk = self.tenant.store.find(id)
            if chunk is not None and len(readable) < PROBED_CHUNKS:
                readable.append(chunk)
        if not readable:
            return Space(0, 0)
        try:
            space = choose_space(self.tenant.adapter, readable)
        except LoadError as error:
            _LOG.warning("the attention space is not chosen yet: %s", error)
            self.libraries.statistics.unread_chunks += 1
            return Space(0, 0)
        self._tried = (len(chunks), space)
        if len(readable) >= SETTLED_CHUNKS:
            try:
                self.libraries.listings.set(scope, SPACE, f"{space.layer}.{space.head}")
            except StoreError as error:
                _LOG.warning("the attention space is chosen again next time: %s", error)
        return space
