"""Caches: parts of prompts whose rows and patches stay in the store until a time, under an id."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

from emblema.errors import DeadlineError, EmblemaError
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import FAILED, PROCESSED, UPLOADED, FileStore
from emblema.serve.keys import Tenant
from emblema.serve.media_reading import MediaReader
from emblema.serve.owned_table import OwnedTable, Row, each, keyed_id
from emblema.serve.parts import FileContent, MediaContent, TextContent
from emblema.serve.upkeep import Upkeep, retried
from emblema.store.warm_parts import WarmParts

_ID = "emblema 2026-11 cache identity 1"
_SPARE = 1.25
_CACHE = "cache"
"""What ids of caches begin with; those of parts that a request had kept do not."""
_SHORTEST_FILE = 3_600
"""Seconds that a file is kept at least that comes with a cache, so that it is there until the cache is made."""
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
        status: `uploaded`, `processed` once its pieces are on disk, or `error`, with why in `detail`.
        holders: how often it was made and not deleted.
    """

    id: str
    name: str | None
    parts: tuple[CachePart, ...]
    created: float
    expires: float
    tokens: int
    pieces: Mapping[str, int]
    status: str
    detail: str | None
    holders: int

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
        self._table = OwnedTable(folder, "cache", clock)

    def open(self, tenant: Tenant, parts: Sequence[CachePart], name: str | None, seconds: float) -> CacheEntry:
        """Keep parts whose rows are made later; the same parts are one cache of more holders, until the latest time.

        Raises:
            ServeError: the tenant has too many caches.
        """
        owner, id, now = tenant.owner, _id(_CACHE, tenant, parts), self._table.clock()
        self._delete("owner = ? AND expires <= ?", owner, now)
        with self._table.catalogue.change():
            self._together(owner, id, {})
            known = self._table.find(owner, id)
            row: dict[str, Any] = {"tokens": 0, "pieces": "{}", "expires": now, "created": now, "holders": 0}
            row |= {} if known is None else {name: known[name] for name in row}
            status = PROCESSED if known is not None and known["status"] == PROCESSED else UPLOADED
            row |= {"expires": max(row["expires"], now + seconds), "holders": row["holders"] + 1, "status": status}
            self._table.put(owner=owner, id=id, tenant=tenant.name, name=name, parts=json.dumps(parts), **row)
        return self.entry(tenant, id)

    def fill(self, tenant: Tenant, id: str, made: WarmParts) -> CacheEntry:
        """Hold what the store has of a cache, which is processed then.

        Raises:
            ServeError: the cache is gone, or the tenant's would hold too much.
        """
        owner = tenant.owner
        change = "UPDATE caches SET tokens = ?, pieces = ?, status = ?, detail = NULL WHERE owner = ? AND id = ?"
        with self._table.catalogue.change():
            pieces = json.dumps(self._together(owner, id, made.pieces))
            self._table.change(change, made.tokens, pieces, PROCESSED, owner, id)
        return self._pin(tenant, id, made)

    def fail(self, tenant: Tenant, id: str, detail: str) -> None:
        """Note why a cache could not be made; one that was made before stays as it is."""
        change = "UPDATE caches SET status = ?, detail = ? WHERE owner = ? AND id = ? AND status = ?"
        self._table.change(change, FAILED, detail[:1_000], tenant.owner, id, UPLOADED)

    def unmade(self) -> list[tuple[str, str, str]]:
        """Return owner, tenant's name and id of the caches that are not made yet."""
        found = self._table.select("SELECT owner, tenant, id FROM caches WHERE status = ?", UPLOADED)
        return [(row["owner"], row["tenant"], row["id"]) for row in found]

    def keep_part(self, tenant: Tenant, seconds: float, made: WarmParts, fresh: bool) -> None:
        """Keep a part of a request for some time at least; one that will be here for so long stays as it is.

        Chunks that are `fresh`, made for this request, are held by no pin of before. Errors are those of `fill`.
        """
        id = _id("part", tenant, sorted(made.pieces))
        known = self._table.find(tenant.owner, id)
        if not fresh and known is not None and known["expires"] >= self._table.clock() + seconds:
            return
        owner, now = tenant.owner, self._table.clock()
        self._delete("owner = ? AND expires <= ?", owner, now)
        with self._table.catalogue.change():
            pieces = json.dumps(self._together(owner, id, made.pieces))
            known = self._table.find(owner, id)
            created, expires = (now, now) if known is None else (known["created"], known["expires"])
            # Longer than was asked for, so that not every request has to write.
            self._table.put(
                owner=owner, id=id, tenant=tenant.name, created=created, name=None, parts="[]",
                expires=max(expires, now + _SPARE * seconds), tokens=made.tokens, pieces=pieces,
            )  # fmt: skip
        self._pin(tenant, id, made)

    def _together(self, owner: str, id: str, made: Mapping[str, int]) -> dict[str, int]:
        """Return what a cache holds with what was made of it now: that of before stays pinned.

        Raises:
            ServeError: the owner has too many caches, or they would hold too much.
        """
        held = self._pieces_of(owner)
        pieces = {**held.pop(id, {}), **made}
        if len(held) >= self._most:
            raise ServeError(413, f"there are {self._most} caches already: delete some, or wait until they expire")
        total = sum(reduce(or_, held.values(), pieces).values())
        if total > self._most_bytes:
            raise ServeError(413, f"the caches would hold {total} bytes of {self._most_bytes}: delete some")
        return pieces

    def _pin(self, tenant: Tenant, id: str, made: WarmParts) -> CacheEntry:
        """Pin what was made of a cache; `ServeError` where it is gone."""
        with self._table.catalogue.change():
            written = self._table.find(tenant.owner, id)
            if written is None:
                raise missing("cache", id)
            self._set_pins(tenant.owner, tenant.name, made.pieces, True)
        return _entry(written)

    def held(self, owner: str) -> frozenset[str]:
        """Return the pieces that an owner's caches hold."""
        return frozenset().union(*self._pieces_of(owner).values())

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
        change = "UPDATE caches SET expires = ? WHERE owner = ? AND id = ?"
        self._table.change(change, self._table.clock() + seconds, tenant.owner, entry.id)
        return self.entry(tenant, id)

    def release(self, tenant: Tenant, id: str) -> int:
        """Let go of a cache once, and return how many hold it still; with none it is deleted.

        Raises:
            ServeError: the tenant has none of this id.
        """
        entry = self.entry(tenant, id)
        where = (tenant.owner, entry.id)
        self._table.change("UPDATE caches SET holders = holders - 1 WHERE owner = ? AND id = ?", *where)
        self._delete("owner = ? AND id = ? AND holders <= 0", *where)
        return max(0, entry.holders - 1)

    def delete(self, tenant: Tenant, id: str) -> None:
        """Delete a cache, whoever holds it; `ServeError` where the tenant has none of this id."""
        self._delete("owner = ? AND id = ?", tenant.owner, self.entry(tenant, id).id)

    def expire(self) -> None:
        """Delete the caches whose time is over; one that cannot be deleted holds up no other."""
        now = self._table.clock()

        def end(row: Row) -> None:
            self._delete("owner = ? AND id = ? AND expires <= ?", row["owner"], row["id"], now)

        ended = self._table.select("SELECT owner, id FROM caches WHERE expires <= ?", now)
        each(ended, end, "has expired and is still there")

    def close(self) -> None:
        """Close the catalogue."""
        self._table.catalogue.close()

    def _delete(self, where: str, *values: object) -> None:
        with self._table.catalogue.change() as rows:
            query = f"DELETE FROM caches WHERE {where} RETURNING owner, tenant, pieces"
            for owner, tenant, written in rows.execute(query, values).fetchall():
                self._set_pins(owner, tenant, json.loads(written).keys() - self.held(owner), False)

    def _pieces_of(self, owner: str) -> dict[str, dict[str, int]]:
        """Return the pieces of an owner's caches, by the caches' ids."""
        found = self._table.select("SELECT id, pieces FROM caches WHERE owner = ?", owner)
        return {row["id"]: json.loads(row["pieces"]) for row in found}


class CacheMaker:
    """Makes caches of parts and extends them, for any engine.

    `warm` has an engine make a tenant's parts ready in their order, and returns what is durable of them. A cache is
    given up after so many `seconds` of that; `upkeep` runs it.
    """

    def __init__(
        self,
        files: FileStore,
        caches: CacheStore,
        reader: MediaReader,
        warm: Callable[[Tenant, Sequence[CachePart]], Awaitable[WarmParts]],
        upkeep: Upkeep,
        seconds: float,
    ) -> None:
        self._files, self._caches, self._reader, self._warm = files, caches, reader, warm
        self._upkeep, self._seconds = upkeep, seconds
        self._making: dict[tuple[str, str], asyncio.Future[CacheEntry | EmblemaError]] = {}

    async def open(
        self, tenant: Tenant, content: Sequence[TextContent | MediaContent], name: str | None, seconds: float
    ) -> CacheEntry:
        """Keep parts for some time, whose rows and patches are made later: see `make_later`.

        Media that come by an address become files of the tenant, and no file of the cache expires before it.

        Raises:
            ServeError: there is no such file, or the tenant has too many caches or files.
            EmblemaError: media cannot be read.
        """
        parts: list[CachePart] = []
        for part in content:
            if isinstance(part, TextContent):
                parts.append(("text", part.text))
            else:
                parts.append(("file", await self._file_of(tenant, part, seconds)))
        run = self._reader.pools.tables.run
        entry = await run(tenant.owner, self._caches.open, tenant, parts, name, seconds)
        await run(tenant.owner, self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    def make_later(self, tenant: Tenant, id: str) -> "asyncio.Future[CacheEntry | EmblemaError]":
        """Have a cache made in its tenant's turn, and return what will be the cache, or why it could not be made."""
        place = (tenant.owner, id)
        if place not in self._making:
            self._making[place] = asyncio.get_running_loop().create_future()
            self._upkeep.begin("caches", self._make(tenant, id, self._making[place]))
        return self._making[place]

    async def _make(self, tenant: Tenant, id: str, made: "asyncio.Future[CacheEntry | EmblemaError]") -> None:
        run = self._reader.pools.tables.run
        outcome: CacheEntry | EmblemaError = ServeError(500, "the cache was not made: the server's log says why")
        try:
            outcome = await self._made(tenant, id)
            if isinstance(outcome, EmblemaError):
                await run(tenant.owner, self._caches.fail, tenant, id, str(outcome))
        except Exception:
            await run(tenant.owner, self._caches.fail, tenant, id, str(outcome))
            raise
        finally:
            del self._making[tenant.owner, id]
            if not made.done():
                made.set_result(outcome)

    async def _made(self, tenant: Tenant, id: str) -> CacheEntry | EmblemaError:
        run = self._reader.pools.tables.run

        async def make() -> CacheEntry:
            # One that was deleted waits for no place.
            await run(tenant.owner, self._caches.entry, tenant, id)
            async with self._reader.pools.caches.place(tenant.owner), asyncio.timeout(self._seconds):
                entry = await run(tenant.owner, self._caches.entry, tenant, id)
                pieces = await self._warm(tenant, entry.parts)
                return await run(tenant.owner, self._caches.fill, tenant, id, pieces)

        try:
            return await retried(make)
        except TimeoutError:
            return DeadlineError(f"the cache was not made in {self._seconds:g} seconds: give it fewer parts")
        except EmblemaError as error:
            return error

    async def extend(self, tenant: Tenant, id: str, seconds: float) -> CacheEntry:
        """Let a cache end so many seconds from now, and its files no sooner; `ServeError` where there is none."""
        run = self._reader.pools.tables.run
        entry = await run(tenant.owner, self._caches.extend, tenant, id, seconds)
        await run(tenant.owner, self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    async def _file_of(self, tenant: Tenant, part: MediaContent, seconds: float) -> str:
        """Return the id of a part's file; one that comes by an address is kept as a file."""
        part.settings.refuse_all("a part of a cache")
        if isinstance(part, FileContent) and part.slid:
            raise ServeError(400, "a cache is made before anything slides: give slid in the message", None, "slid")
        run = self._reader.pools.tables.run
        if part.named.file_id is not None:
            return (await run(tenant.owner, self._files.entry, tenant, part.named.file_id)).id
        data = await self._reader.fetch(tenant, part.named.address)
        with self._reader.held.open(tenant.owner) as holding:
            await self._reader.load(tenant, data, part.kind, holding)
        name = (part.file.filename if isinstance(part, FileContent) else None) or "part of a cache"
        kept = max(seconds, _SHORTEST_FILE)
        add = self._files.add
        return (await run(tenant.owner, add, tenant, data, name[:200], "user_data", kept, renew=False)).id


def _id(kind: str, tenant: Tenant, identity: Sequence[object]) -> str:
    return keyed_id(kind, _ID, tenant.owner, json.dumps(identity).encode())


def _entry(row: Row) -> CacheEntry:
    values = {name: row[name] for name in CacheEntry.__slots__}
    parts = tuple((kind, value) for kind, value in json.loads(row["parts"]))
    return CacheEntry(**values | {"parts": parts, "pieces": json.loads(row["pieces"])})
