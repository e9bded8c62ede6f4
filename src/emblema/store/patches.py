"""Patches in the store: found by key, owned by the tenant that formed them, gone with any of their chunks."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from emblema.errors import StoreError
from emblema.kv.artifacts import Artifact
from emblema.store import codec
from emblema.store.identity import patch_id
from emblema.store.keys import PatchKey
from emblema.store.pieces import Piece

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper, Owners

KEYS_READ = 64
"""Patches of one chunk on disk whose headers are read, at most, to say which there are."""
KEYS_KEPT = 4096
"""Keys so read that are remembered."""


class Patches:
    """The patches among a keeper's pieces."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        # Keys read from headers, by id, which is a digest of the key; guarded by the store's lock.
        self._read: OrderedDict[str, PatchKey] = OrderedDict()

    def find(self, owners: "Owners", key: PatchKey) -> Artifact | None:
        """The first owner's artifact of a key, in memory or read from a slower tier."""
        keeper = self._keeper
        ids = [(owner, patch_id(key, owner)) for owner in owners]
        with keeper.changed:
            for owner, id in ids:
                piece = keeper.lookup((owner,), id)
                if piece is not None:
                    keeper.use(piece)
                    return piece.artifact
        if not keeper.slower:
            return None
        for owner, id in ids:
            piece = keeper.loader.ask(id, owner, lambda owner=owner, id=id: self._fetch(owner, id, key))  # type: ignore[misc]
            if piece is not None:
                return piece.artifact
        return None

    def _fetch(self, owner: str, id: str, key: PatchKey) -> Piece | None:
        keeper = self._keeper
        if not keeper.open_to((owner,), id) or any(not keeper.open_to((owner,), chunk) for chunk in key.chunks):
            return None
        for label, reader in keeper.slower.open(id, (owner,)):
            header = reader.header
            try:
                found, artifact = codec.read_artifact(reader)
                if found != key:
                    raise StoreError(f"{id[:12]} holds another patch than its name says")
                piece = keeper.finder.found(label, header)
            except (StoreError, OSError, ValueError) as error:
                keeper.slower.distrust(label, id, owner, error)
                continue
            finally:
                reader.close()
            piece.key, piece.artifact = key, artifact.to(keeper.device)
            piece = keeper.finder.admit(piece) or piece
            return piece if piece.listed else None
        return None

    def put(self, owners: "Owners", key: PatchKey, artifact: Artifact) -> bool:
        """Keep an artifact for the first owner; False where a chunk is not here, or it is too large."""
        keeper, owner = self._keeper, owners[0]
        budget, quota = keeper.memory.budgets["device"], keeper.quota_of(owner)
        if any(bound is not None and artifact.bytes > bound for bound in (budget, quota)):
            return False
        if not all(keeper.holds(owners, chunk) for chunk in key.chunks):
            return False
        piece = keeper.piece(owner, patch_id(key, owner), keeper.terms, key=key, artifact=artifact)
        with keeper.changed:
            # Deleted since they were looked for: deletion wins.
            if not all(
                keeper.open_to(owners, chunk) == list(owners) or keeper.lookup(owners, chunk) for chunk in key.chunks
            ):
                return False
            old = keeper.memory.get(piece.name)
            if old is not None:
                keeper.traffic.remove(old)
            keeper.memory.insert(piece)
            if keeper.write == "through":
                keeper.traffic.save(piece)
            keeper.traffic.make_room(piece)
            return True

    def holds(self, owners: "Owners", key: PatchKey) -> bool:
        """Whether the first owner has a patch of a key, in memory or on disk; not counted as a use, nothing is read."""
        return self._keeper.knows(owners[0], patch_id(key, owners[0]))

    def keys(self, owners: "Owners", chunk: str) -> list[PatchKey]:
        """Keys of the patches of a chunk, in memory and, as far as `KEYS_READ` headers tell, on disk."""
        keeper = self._keeper
        with keeper.changed:
            here = [piece for piece in keeper.memory.patches_of(chunk) if piece.owner in owners]
            names = {piece.id for piece in here}
            found = {piece.key for piece in here if piece.key is not None and piece.key.chunk == chunk}
        if keeper.slower.disk is None:
            return sorted(found, key=str)
        stored = [id for id in keeper.slower.disk.patches_of(chunk) if id not in names][:KEYS_READ]
        for owner in owners:
            found |= {key for id in stored if (key := self._stored_key(owner, id, chunk)) is not None}
        return sorted(found, key=str)

    def _stored_key(self, owner: str, id: str, chunk: str) -> PatchKey | None:
        """The key of a patch on disk, from its header; None where it is another's, or damaged."""
        keeper = self._keeper
        entry = keeper.slower.entry(id, owner)
        if entry is None or entry.kind != "patch" or not entry.chunks or entry.chunks[0] != chunk:
            return None
        if not all(keeper.open_to((owner,), name) for name in (id, *entry.chunks)):
            return None
        with keeper.changed:
            if id in self._read:
                return self._read[id]
        for label, reader in keeper.slower.open(id, (owner,)):
            try:
                key = codec.patch_key(reader)
                if patch_id(key, owner) != id:
                    raise StoreError(f"{id[:12]} holds another patch than its name says")
                with keeper.changed:
                    self._read[id] = key
                    while len(self._read) > KEYS_KEPT:
                        self._read.popitem(last=False)
                return key
            except (StoreError, OSError, ValueError) as error:
                keeper.slower.distrust(label, id, owner, error)
            finally:
                reader.close()
        return None

    def forget(self, owner: str, chunk: str) -> int:
        """Delete an owner's patches of a chunk, in every tier."""
        keeper = self._keeper
        with keeper.changed:
            ids = {piece.id for piece in keeper.memory.patches_of(chunk) if piece.owner == owner}
        if keeper.slower.disk is not None:
            known = [keeper.slower.entry(id, owner) for id in keeper.slower.disk.patches_of(chunk)]
            ids |= {entry.id for entry in known if entry is not None}
        return sum(keeper.delete(owner, id) for id in sorted(ids))
