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

from emblema.serve.database import OwnedTable, keyed_id
from emblema.serve.faults import ServeError, missing
from emblema.serve.keys import Tenant
from emblema.store.warm_parts import WarmParts

_COLUMNS = "name TEXT, parts TEXT NOT NULL, tokens INTEGER NOT NULL, pieces TEXT NOT NULL"
_ID = "emblema 2026-11 cache identity 1"
_SPARE = 1.25
_CACHE = "cache"
"""What ids of caches begin with; those of parts that a request had kept do not."""
CachePart = tuple[Literal["text", "file"], str]
"""A text, or a file by its id."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What is known of a cache.

    Attributes:
        id: `cache-` and a digest of the tenant and the parts; `part-…` for a part that a request had kept.
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
        self._most, self._most_bytes, self._set_pins = most, most_bytes, set_pins
        self._table = OwnedTable(folder / "caches.sqlite", "cache", _COLUMNS, clock)

    def put(
        self, tenant: Tenant, parts: Sequence[CachePart], name: str | None, seconds: float, made: WarmParts
    ) -> CacheEntry:
        """Keep parts and what the store has of them; the same parts are one cache, until the later of both times.

        Raises:
            ServeError: the tenant has too many caches, or they would hold too much.
        """
        return self._put(tenant, _id(_CACHE, tenant, parts), parts, name, seconds, made)

    def keep_part(self, tenant: Tenant, seconds: float, made: WarmParts, fresh: bool) -> None:
        """Keep a part of a request for some time at least; one that will be here for so long stays as it is.

        Chunks that are `fresh`, made for this request, are held by no pin of before. Errors are those of `put`.
        """
        id = _id("part", tenant, sorted(made.pieces))
        with self._table.transaction() as connection:
            known = self._table.find(connection, tenant.owner, id)
        if fresh or known is None or known["expires"] < self._table.clock() + seconds:
            # Longer than was asked for, so that not every request has to write.
            self._put(tenant, id, (), None, _SPARE * seconds, made)

    def _put(
        self, tenant: Tenant, id: str, parts: Sequence[CachePart], name: str | None, seconds: float, made: WarmParts
    ) -> CacheEntry:
        self.expire()
        owner, now = tenant.owner, self._table.clock()
        with self._table.transaction() as connection:
            held = _pieces_of(connection, owner)
            # Those of before stay pinned, whatever was made of the parts this time.
            pieces = {**held.pop(id, {}), **made.pieces}
            if len(held) >= self._most:
                raise ServeError(413, f"there are {self._most} caches already: delete some, or wait until they expire")
            total = sum(reduce(or_, held.values(), pieces).values())
            if total > self._most_bytes:
                raise ServeError(413, f"the caches would hold {total} bytes of {self._most_bytes}: delete some")
            known = self._table.find(connection, owner, id)
            created, expires = (now, now) if known is None else (known["created"], known["expires"])
            self._table.put(
                connection, owner=owner, id=id, tenant=tenant.name, created=created, name=name,
                expires=max(expires, now + seconds), parts=json.dumps(parts), tokens=made.tokens,
                pieces=json.dumps(pieces),
            )  # fmt: skip
        with self._table.transaction() as connection:
            written = self._table.find(connection, owner, id)
            if written is None:
                raise missing("cache", id)
            self._set_pins(owner, tenant.name, made.pieces, True)
        return _entry(written)

    def held(self, owner: str) -> frozenset[str]:
        """Return the pieces that an owner's caches hold."""
        with self._table.transaction() as connection:
            return frozenset().union(*_pieces_of(connection, owner).values())

    def entries(self, tenant: Tenant) -> tuple[CacheEntry, ...]:
        """Return a tenant's caches, the newest first; not the parts that requests had kept."""
        return tuple(_entry(row) for row in self._table.rows(tenant.owner) if row["id"].startswith(_CACHE))

    def entry(self, tenant: Tenant, id: str) -> CacheEntry:
        """Return what is known of a cache; `ServeError` where the tenant has none of this id."""
        if not id.startswith(_CACHE):
            raise missing("cache", id)
        return _entry(self._table.row(tenant.owner, id))

    def extend(self, tenant: Tenant, id: str, seconds: float) -> CacheEntry:
        """Let a cache end so many seconds from now, and return it; `ServeError` where the tenant has none of it."""
        entry = self.entry(tenant, id)
        with self._table.transaction() as connection:
            where = (self._table.clock() + seconds, tenant.owner, entry.id)
            connection.execute("UPDATE caches SET expires = ? WHERE owner = ? AND id = ?", where)
        return self.entry(tenant, id)

    def delete(self, tenant: Tenant, id: str) -> None:
        """Delete a cache; `ServeError` where the tenant has none of this id."""
        self._delete("owner = ? AND id = ?", tenant.owner, self.entry(tenant, id).id)

    def expire(self) -> None:
        """Delete the caches whose time is over."""
        self._delete("expires <= ?", self._table.clock())

    def _delete(self, where: str, *values: object) -> None:
        with self._table.transaction() as connection:
            query = f"DELETE FROM caches WHERE {where} RETURNING owner, tenant, pieces"
            for owner, tenant, written in connection.execute(query, values).fetchall():
                held = frozenset().union(*_pieces_of(connection, owner).values())
                self._set_pins(owner, tenant, json.loads(written).keys() - held, False)


def _id(kind: str, tenant: Tenant, identity: Sequence[object]) -> str:
    return keyed_id(kind, _ID, tenant.owner, json.dumps(identity).encode())


def _pieces_of(connection: Connection, owner: str) -> dict[str, dict[str, int]]:
    """Return the pieces of an owner's caches, by the caches' ids."""
    rows = connection.execute("SELECT id, pieces FROM caches WHERE owner = ?", (owner,))
    return {id: json.loads(pieces) for id, pieces in rows}


def _entry(row: Row) -> CacheEntry:
    values = {name: row[name] for name in CacheEntry.__slots__}
    parts = tuple((kind, value) for kind, value in json.loads(row["parts"]))
    return CacheEntry(**values | {"parts": parts, "pieces": json.loads(row["pieces"])})
