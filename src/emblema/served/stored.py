"""What the store has, remembered until it changes: prompts of one conversation ask for the same pieces again."""

import time
from collections.abc import Iterable

from emblema.kv.keys import ArtifactKey
from emblema.store import Store
from emblema.store.store import TenantStore

REMEMBERED_SECONDS = 10.0
"""How long answers are kept at most: that a piece expires changes nothing in the store."""
LOST_SECONDS = 30.0
"""How long a piece counts as lost, of which a worker lacks its share: it is made again meanwhile."""
MOST_ANSWERS = 2**16


class StoreMemory:
    """Answers of one store, also those that something is not there; for one thread, but for `lose`.

    Args:
        store: is asked what is not remembered.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version: object = None
        self._until = 0.0
        self._chunks: dict[tuple[str, str], bool | None] = {}
        self._artifacts: dict[tuple[str, ArtifactKey], bool] = {}
        # With the moment until which each counts as lost; replaced, never changed.
        self._lost: dict[str | ArtifactKey, float] = {}

    def lose(self, pieces: Iterable[str | ArtifactKey]) -> None:
        """Take chunks, by id, and artifacts to be lost for some time, whatever the store says; for any one thread."""
        now = time.monotonic()
        kept = {piece: until for piece, until in self._lost.items() if until > now}
        self._lost = kept | dict.fromkeys(pieces, now + LOST_SECONDS)

    def regain(self, pieces: Iterable[str | ArtifactKey]) -> None:
        """Take pieces to be there again; for the thread that calls `lose`."""
        made = set(pieces)
        self._lost = {piece: until for piece, until in self._lost.items() if piece not in made}

    def _is_lost(self, piece: str | ArtifactKey) -> bool:
        return self._lost.get(piece, 0.0) > time.monotonic()

    def refresh(self) -> None:
        """Forget all that was remembered if the store has changed since; before each prompt."""
        now, version = time.monotonic(), self._store.version
        many = len(self._chunks) + len(self._artifacts) > MOST_ANSWERS
        if version is None or version != self._version or now > self._until or many:
            self._version, self._until = version, now + REMEMBERED_SECONDS
            self._chunks, self._artifacts = {}, {}

    def held(self, tenant: TenantStore, chunks: Iterable[str]) -> dict[str, bool]:
        """As `TenantStore.held`."""
        asked = list(dict.fromkeys(chunks))
        unknown = [id for id in asked if (tenant.owner, id) not in self._chunks]
        if unknown:
            found = tenant.held(unknown)
            self._chunks |= {(tenant.owner, id): found.get(id) for id in unknown}
        answers = {id: self._chunks[tenant.owner, id] for id in asked}
        return {id: made for id, made in answers.items() if made is not None and not self._is_lost(id)}

    def held_artifacts(self, tenant: TenantStore, keys: Iterable[ArtifactKey]) -> frozenset[ArtifactKey]:
        """As `TenantStore.held_artifacts`."""
        asked = list(keys)
        unknown = [key for key in asked if (tenant.owner, key) not in self._artifacts]
        if unknown:
            found = tenant.held_artifacts(unknown)
            self._artifacts |= {(tenant.owner, key): key in found for key in unknown}
        return frozenset(key for key in asked if self._artifacts[tenant.owner, key] and not self._is_lost(key))
