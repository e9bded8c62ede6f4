"""Questions about many pieces at once: memory and the disk's index are asked, and nothing is used, loaded or moved."""

from collections.abc import Collection, Iterable, Sequence

from emblema.kv.keys import ArtifactKey
from emblema.store.cache import Owners, PieceCache
from emblema.store.identity import artifact_id
from emblema.store.record import Name

HEADERS_READ = 64
"""Artifacts of one chunk on disk whose headers are read, at most, to say which there are."""


class PieceLookup:
    """Answers what a cache has for some owners; a remote tier is not asked.

    Args:
        cache: of the pieces.
        owners: whose pieces are seen; the first one's own are listed.
    """

    def __init__(self, cache: PieceCache, owners: Owners) -> None:
        self._cache, self._tiers, self._owners = cache, cache.tiers, owners

    def held(self, chunks: Collection[str]) -> dict[str, bool]:
        """Return those of some chunks that are in memory or in the disk's index, and whether artifacts were made of
        them; the index is asked once for all, and files are not touched.
        """
        found = {id for _, id in self._held([(owner, id) for owner in self._owners for id in chunks])}
        with self._cache.changed:
            made = {id for id in found if any(self._sees(piece.owner) for piece in self._cache.table.artifacts_of(id))}
        made |= self._tiers.with_artifacts(found - made)
        return {id: id in made for id in found}

    def held_artifacts(self, keys: Iterable[ArtifactKey]) -> frozenset[ArtifactKey]:
        """Return those of some artifacts that are in memory or in the disk's index; as `held`."""
        names = {(owner, artifact_id(key, owner)): key for key in keys for owner in self._owners}
        # A deletion of a chunk takes its artifacts out of the index too, but later.
        return frozenset(
            names[owner, id]
            for owner, id in self._held(list(names))
            if not self._cache.deleted((owner,), names[owner, id].chunks)
        )

    def ids(self) -> list[str]:
        """Return ids of own chunks: those on disk alone, then those in memory."""
        owner, table = self._owners[0], self._cache.table
        stored = [entry.id for entry in self._tiers.entries(owner) if entry.kind == "chunk"]
        with self._cache.changed:
            here = [piece.id for piece in table if piece.owner == owner and piece.chunk is not None]
            known = set(here)
            return [id for id in stored if id not in known and (owner, id) not in table.tombstones] + here

    def artifact_keys(self, chunk: str) -> list[ArtifactKey]:
        """Return keys of the artifacts of a chunk, in memory and, as far as `HEADERS_READ` headers tell, on disk."""
        with self._cache.changed:
            here = [piece for piece in self._cache.table.artifacts_of(chunk) if self._sees(piece.owner)]
        ids = {piece.id for piece in here}
        found = {piece.key for piece in here if piece.key is not None and piece.key.chunk == chunk}
        for id in [id for id in self._tiers.artifact_ids(chunk) if id not in ids][:HEADERS_READ]:
            for owner in self._owners:
                entry = self._tiers.entry(id, owner)
                if entry is None or entry.kind != "patch" or entry.chunks[:1] != (chunk,):
                    continue
                dead = self._cache.deleted((owner,), (id, *entry.chunks))
                key = None if dead else self._cache.reader.read_key(id, owner)
                if key is not None:
                    found.add(key)
        return sorted(found, key=str)

    def _sees(self, owner: str) -> bool:
        return owner in self._owners

    def _held(self, names: Sequence[Name]) -> frozenset[Name]:
        cache = self._cache
        with cache.changed:
            here = frozenset(name for name in names if cache.get(name[:1], name[1]) is not None)
            asked = [name for name in names if name not in here and name not in cache.table.tombstones]
        return here | self._tiers.names_on_disk(asked)
