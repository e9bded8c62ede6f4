"""What static and dynamic libraries share: items found again, made again where they were lost, and searched."""

from collections.abc import Iterable, Mapping

from emblema.errors import StoreError
from emblema.kv.chunk import Clip
from emblema.library.embedders import Embedder
from emblema.library.items import ChunkOrClip, Hit, Listing, chunks_of
from emblema.library.libraries import Libraries
from emblema.library.listings import EndedItems
from emblema.library.retriever import Retriever
from emblema.library.tenant_model import TenantModel


class Library:
    """Items of one scope under one key of the catalogue.

    Args:
        libraries: where libraries are kept.
        tenant: the tenant's model and store.
        key: the library's name in the catalogue.
        owner: whose it is; the store's owner by default.
        embedder: for `search`; the model's own attention space by default.
    """

    def __init__(
        self,
        libraries: Libraries,
        tenant: TenantModel,
        key: str,
        owner: str | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self.libraries, self.tenant, self.key = libraries, tenant, key
        self.owner = tenant.store.owner if owner is None else owner
        self.retriever = Retriever(libraries, tenant, embedder)

    @property
    def writable(self) -> bool:
        """Whether the library is the tenant's own."""
        return self.owner == self.tenant.store.owner

    @property
    def scope(self) -> str:
        """Digest of the owner and the model as it is now."""
        return self.tenant.scope(self.owner)

    def piece(self, entry: Listing) -> ChunkOrClip:
        """Return the chunk or clip of an entry; made again from its media where the store has lost it.

        Raises:
            StoreError: it was lost and its media were not kept, or are gone.
        """
        chunks = [chunk for chunk in map(self.tenant.store.find, entry.chunks) if chunk is not None]
        if len(chunks) < len(entry.chunks) or not chunks:
            return self._made_again(entry)
        if entry.clip:
            return Clip(entry.id, "video" if entry.kind == "video" else "document", tuple(chunks))
        return chunks[0]

    def find(self, query: str, count: int, entries: Mapping[str, Listing]) -> list[Hit]:
        """Return the chunks of some entries that are nearest to a query, the nearest first.

        Raises:
            StoreError: the query is empty, or count is below 1.
        """
        places = {id: (entry, index) for entry in entries.values() for index, id in enumerate(entry.chunks)}
        found = self.retriever.search(self.scope, query, count, list(places))
        hits = []
        for id, score in found:
            entry, index = places[id]
            chunk = self.tenant.store.find(id) or chunks_of(self._made_again(entry))[index]
            hits.append(Hit(entry.name, index, chunk, score))
        return hits

    def collect(self) -> int:
        """Free chunks and media that no entry of any version in use names; how many chunks.

        What cannot be deleted now is logged, and tried again at every call.

        Raises:
            StoreError: the catalogue does not answer.
        """
        scope = self.scope
        ended = self.libraries.listings.ended(scope, self.key)
        if not ended.numbers:
            return 0
        deleted = self._delete(scope, ended)
        self.libraries.listings.forget(scope, ended, deleted)
        return len(deleted.intersection(ended.chunks))

    def try_collect(self) -> None:
        """Collect where the caller asked for something else: an error is counted and logged."""
        if self.libraries.catalogue.read_only is not None:
            return
        try:
            self.collect()
        except StoreError as error:
            self.libraries.count_uncollected(error)

    def delete_now(self, name: str) -> None:
        """Delete the chunks and media that an entry names and no other, before the entry is taken out.

        Raises:
            StoreError: not all could be deleted.
        """
        alone = self.libraries.listings.named_alone(self.scope, self.key, name)
        if len(self._delete(self.scope, alone)) < len(alone.chunks) + len(alone.sources):
            raise StoreError(f"not all of {name!r} could be deleted: delete it again")

    def _delete(self, scope: str, items: EndedItems) -> set[str]:
        """Delete chunks and media everywhere, each by itself; return what was deleted."""
        deleted: set[str] = set()
        for delete, parts in ((self._delete_chunk, items.chunks), (self.libraries.sources.forget, items.sources)):
            for part in parts:
                try:
                    delete(scope, part)
                except (StoreError, OSError) as error:
                    self.libraries.count_uncollected(error)
                else:
                    deleted.add(part)
        return deleted

    def _delete_chunk(self, scope: str, chunk: str) -> None:
        self.tenant.store.delete(chunk)
        self.libraries.indexes.forget(scope, chunk)

    def unpin_unnamed(self, chunks: Iterable[str]) -> None:
        """Take the pins off chunks that no entry names."""
        chunks = list(chunks)
        named = self.libraries.listings.named(self.scope, chunks)
        for chunk in chunks:
            if chunk not in named:
                self.tenant.store.unpin(chunk)

    def _made_again(self, entry: Listing) -> ChunkOrClip:
        if entry.source is None:
            raise StoreError(f"the chunks of {entry.name!r} are lost, and its media were not kept: add it again")
        scope = self.scope
        try:
            source = self.libraries.sources.read(scope, entry.source)
        except StoreError as error:
            raise StoreError(f"the chunks of {entry.name!r} are lost, and {error}: add it again") from error
        piece = self.tenant.add(source, **entry.source.options)
        self.libraries.statistics.remade += 1
        if piece.id != entry.id and self.writable:
            renewed = Listing.of(entry.name, piece, entry.created, entry.expires, entry.source)
            self.libraries.listings.change(scope, self.key, {entry.name: renewed})
            self.collect()
        return piece


def chunk_ids(pieces: Iterable[ChunkOrClip]) -> list[str]:
    """Return ids of all chunks of some pieces, each once."""
    return list(dict.fromkeys(chunk.id for piece in pieces for chunk in chunks_of(piece)))
