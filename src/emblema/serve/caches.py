"""Caches: parts of prompts whose rows and patches stay in the store until a time, under an id."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Literal

from blake3 import blake3

from emblema.serve.database import Database
from emblema.serve.faults import ServeError, missing
from emblema.serve.keys import Tenant
from emblema.session.warm_parts import WarmParts
from emblema.store.identity import owner_digest

_TABLES = """
CREATE TABLE IF NOT EXISTS caches (
    owner TEXT NOT NULL, id TEXT NOT NULL, name TEXT, parts TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    tokens INTEGER NOT NULL, pieces TEXT NOT NULL, tenant TEXT NOT NULL,
    PRIMARY KEY (owner, id)
)
"""
_ID = "emblema 2026-11 cache identity 1"
_SPARE = 1.25
CachePart = tuple[Literal["text", "file"], str]
"""A text, or a file by its id."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What is known of a cache.

    Attributes:
        id: `cache-` and a digest of the tenant and the parts; `part-…` for a part that a request had kept.
        name: as the client said.
        parts: what it stands for; none for a part that a request had kept.
        created, expires: Unix times.
        tokens: rows of its chunks.
        pieces: bytes of its chunks and patches in the store, by id.
    """

    id: str
    name: str | None
    parts: tuple[CachePart, ...]
    created: float
    expires: float
    tokens: int
    pieces: Mapping[str, int]

    @property
    def files(self) -> tuple[str, ...]:
        """Ids of its files."""
        return tuple(value for kind, value in self.parts if kind == "file")

    @property
    def characters(self) -> int:
        """Characters of its texts."""
        return sum(len(value) for kind, value in self.parts if kind == "text")

    @property
    def bytes(self) -> int:
        """Bytes of its pieces."""
        return sum(self.pieces.values())


SetPins = Callable[[str, str, Iterable[str], bool], None]
"""Pins or unpins pieces in the store: their owner, the tenant's name, their ids, and which."""


class CacheStore:
    """The caches of all tenants of a server, in the server's folder. A cache is on disk before it is acknowledged.

    What a cache holds is pinned in the store until no cache holds it. A process that is killed leaves no pin without a
    cache.

    Args:
        folder: of the server.
        most: caches of a tenant.
        most_bytes: bytes of a tenant's caches together; what several hold counts once.
        set_pins: pins or unpins pieces.
        clock: returns Unix time in seconds.
    """

    def __init__(
        self, folder: Path, most: int, most_bytes: int, set_pins: SetPins, clock: Callable[[], float] = time.time
    ) -> None:
        self._most, self._most_bytes, self._set_pins, self._clock = most, most_bytes, set_pins, clock
        self._database = Database(folder / "caches.sqlite", _TABLES)

    def put(
        self, tenant: Tenant, parts: Sequence[CachePart], name: str | None, seconds: float, made: WarmParts
    ) -> CacheEntry:
        """Keep a cache; the same parts again are the same cache, until the later of both times.

        Args:
            tenant: whose it is.
            parts: what it stands for.
            name: as the client said.
            seconds: how long it is kept.
            made: what the store has of it.

        Raises:
            ServeError: the tenant has too many caches, or they would hold too much.
        """
        return self._put(tenant, _id("cache", tenant, parts), parts, name, seconds, made)

    def keep_part(self, tenant: Tenant, seconds: float, made: WarmParts, fresh: bool) -> None:
        """Keep a part that a request names, for some time at least; one that will be here for so long stays as it is.

        Args:
            tenant: whose it is.
            seconds: how long it is kept at least.
            made: what the store has of it.
            fresh: whether its chunks were made for this request, so that no pin of before holds them.

        Raises:
            ServeError: as `put`.
        """
        id = _id("part", tenant, sorted(made.pieces))
        with self._database.transaction() as connection:
            query = "SELECT 1 FROM caches WHERE owner = ? AND id = ? AND expires >= ?"
            known = connection.execute(query, (owner_digest(tenant.salt), id, self._clock() + seconds)).fetchone()
        if fresh or known is None:
            # Longer than was asked for, so that not every request has to write.
            self._put(tenant, id, (), None, _SPARE * seconds, made)

    def _put(
        self, tenant: Tenant, id: str, parts: Sequence[CachePart], name: str | None, seconds: float, made: WarmParts
    ) -> CacheEntry:
        self.expire()
        owner, now = owner_digest(tenant.salt), self._clock()
        with self._database.transaction() as connection:
            held = _pieces_of(connection, owner)
            # Those of before stay pinned, whatever was made of the parts this time.
            pieces = {**held.pop(id, {}), **made.pieces}
            if len(held) >= self._most:
                raise ServeError(413, f"there are {self._most} caches already: delete some, or wait until they expire")
            total = sum(reduce(or_, held.values(), pieces).values())
            if total > self._most_bytes:
                raise ServeError(413, f"the caches would hold {total} bytes of {self._most_bytes}: delete some")
            query = "SELECT created, expires FROM caches WHERE owner = ? AND id = ? AND expires > ?"
            known = connection.execute(query, (owner, id, now)).fetchone()
            created, expires = (now, now + seconds) if known is None else (known[0], max(known[1], now + seconds))
            row = (owner, id, name, json.dumps(parts), created, expires, made.tokens, json.dumps(pieces), tenant.name)
            connection.execute(f"INSERT OR REPLACE INTO caches VALUES ({', '.join('?' * len(row))})", row)
        with self._database.transaction() as connection:
            if connection.execute("SELECT 1 FROM caches WHERE owner = ? AND id = ?", (owner, id)).fetchone():
                self._set_pins(owner, tenant.name, made.pieces, True)
        return CacheEntry(id, name, tuple(parts), created, expires, made.tokens, pieces)

    def held(self, owner: str) -> frozenset[str]:
        """Return the pieces that an owner's caches hold."""
        with self._database.transaction() as connection:
            return frozenset().union(*_pieces_of(connection, owner).values())

    def entries(self, tenant: Tenant) -> tuple[CacheEntry, ...]:
        """Return a tenant's caches, the newest first; not the parts that requests had kept."""
        with self._database.transaction() as connection:
            query = "SELECT * FROM caches WHERE owner = ? AND parts != '[]' AND expires > ? ORDER BY created DESC, id"
            return tuple(map(_entry, connection.execute(query, (owner_digest(tenant.salt), self._clock()))))

    def entry(self, tenant: Tenant, id: str) -> CacheEntry:
        """Return what is known of a cache.

        Raises:
            ServeError: the tenant has none of this id.
        """
        with self._database.transaction() as connection:
            query = "SELECT * FROM caches WHERE owner = ? AND id = ? AND parts != '[]' AND expires > ?"
            row = connection.execute(query, (owner_digest(tenant.salt), id, self._clock())).fetchone()
        if row is None:
            raise missing("cache", id)
        return _entry(row)

    def extend(self, tenant: Tenant, id: str, seconds: float) -> CacheEntry:
        """Let a cache end so many seconds from now, and return it.

        Raises:
            ServeError: the tenant has none of this id.
        """
        entry = self.entry(tenant, id)
        with self._database.transaction() as connection:
            where = (self._clock() + seconds, owner_digest(tenant.salt), entry.id)
            connection.execute("UPDATE caches SET expires = ? WHERE owner = ? AND id = ?", where)
        return self.entry(tenant, id)

    def delete(self, tenant: Tenant, id: str) -> None:
        """Delete a cache.

        Raises:
            ServeError: the tenant has none of this id.
        """
        entry = self.entry(tenant, id)
        self._delete("owner = ? AND id = ?", owner_digest(tenant.salt), entry.id)

    def expire(self) -> None:
        """Delete the caches whose time is over."""
        self._delete("expires <= ?", self._clock())

    def _delete(self, where: str, *values: object) -> None:
        with self._database.transaction() as connection:
            query = f"DELETE FROM caches WHERE {where} RETURNING owner, tenant, pieces"
            for owner, tenant, written in connection.execute(query, values).fetchall():
                held = frozenset().union(*_pieces_of(connection, owner).values())
                self._set_pins(owner, tenant, json.loads(written).keys() - held, False)


def _id(kind: str, tenant: Tenant, identity: Sequence[object]) -> str:
    key = blake3(owner_digest(tenant.salt).encode(), derive_key_context=_ID).digest()
    return f"{kind}-{blake3(json.dumps(identity).encode(), key=key).hexdigest()[:32]}"


def _pieces_of(connection: Connection, owner: str) -> dict[str, dict[str, int]]:
    """Return the pieces of an owner's caches, by the caches' ids."""
    rows = connection.execute("SELECT id, pieces FROM caches WHERE owner = ?", (owner,))
    return {id: json.loads(pieces) for id, pieces in rows}


def _entry(row: Row) -> CacheEntry:
    parts = tuple((kind, value) for kind, value in json.loads(row["parts"]))
    return CacheEntry(
        row["id"], row["name"], parts, row["created"], row["expires"], row["tokens"], json.loads(row["pieces"])
    )
