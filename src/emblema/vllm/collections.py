"""Collections inside vLLM: pictures and texts that every tenant's model may look up, by the words of their names."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from sqlite3 import Connection, Row

from blake3 import blake3

from emblema.errors import MediaError, StoreError
from emblema.serve.collection_items import CollectionEntry, CollectionItem, Collections, ItemEntry
from emblema.serve.database import Database
from emblema.serve.faults import ServeError, missing
from emblema.serve.keys import Tenant
from emblema.store.files import delete_durably, make_folder, write_whole
from emblema.vllm.word_search import TOKEN_CHARACTERS, SearchedItem, WordSearch, picture_tokens, words_of

_TABLES = """
CREATE TABLE IF NOT EXISTS collections (name TEXT PRIMARY KEY, version INTEGER NOT NULL, items TEXT NOT NULL)
"""
LET_GO_SECONDS = 3_600.0
"""How long a picture is there after no version holds it any more: replies under way may find it."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as it is written: a picture by its digest, or a text; the other is empty."""

    name: str
    digest: str
    text: str
    bytes: int
    tokens: int


class StoredCollections(Collections):
    """The collections of a server inside vLLM, in its folder. Their rows are made by the requests that show them.

    A deleted one leaves its version, so that a new one of its name counts on.

    Args:
        folder: of the server.
        read: returns the bytes of a tenant's file that is a picture; raises ServeError or MediaError.
    """

    def __init__(self, folder: Path, read: Callable[[Tenant, str], bytes]) -> None:
        self._pictures, self._read = folder / "collections", read
        self._database = Database(folder / "collections.sqlite", _TABLES)

    def entries(self) -> list[CollectionEntry]:
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT * FROM collections WHERE items != '[]' ORDER BY name").fetchall()
        return [_entry(row["name"], row["version"], _items(row)) for row in rows]

    def entry(self, name: str) -> CollectionEntry:
        version, items = self._present(name)
        return _entry(name, version, items)

    async def write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> CollectionEntry:
        return await asyncio.to_thread(self._write, tenant, name, items)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._present, name)
        await asyncio.to_thread(self._switch, name, [])

    def search(self, names: Iterable[str]) -> WordSearch:
        """Return the items of some collections as they are now, to be searched as one.

        Raises:
            ServeError: there is no such collection.
        """
        items = [item for name in dict.fromkeys(names) for item in self._present(name)[1]]
        return WordSearch(
            [
                SearchedItem(
                    item.name,
                    words_of(f"{item.name} {item.text}"),
                    item.tokens,
                    self._pictures / item.digest if item.digest else None,
                    item.text,
                )
                for item in items
            ]
        )

    def _present(self, name: str) -> tuple[int, list[StoredItem]]:
        with self._database.transaction() as connection:
            query = "SELECT * FROM collections WHERE name = ? AND items != '[]'"
            row = connection.execute(query, (name,)).fetchone()
        if row is None:
            raise missing("collection", name)
        return row["version"], _items(row)

    def _write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> CollectionEntry:
        made = []
        for item in items:
            try:
                made.append(self._stored(tenant, item))
            except MediaError as error:
                raise ServeError(400, f"the item {item.name!r} cannot be read: {error}", None, "items") from error
        return _entry(name, self._switch(name, made), made)

    def _stored(self, tenant: Tenant, item: CollectionItem) -> StoredItem:
        """Return an item as it is written; a picture's bytes are on disk then."""
        if item.file_id is None:
            text = item.text or ""
            return StoredItem(item.name, "", text, len(text.encode()), -(-len(text) // TOKEN_CHARACTERS))
        data = self._read(tenant, item.file_id)
        path = self._pictures / blake3(data).hexdigest()
        try:
            make_folder(path.parent, mode=0o700)
            if path.exists():
                # Not one that is about to be let go.
                os.utime(path)
            else:
                write_whole(path, [data])
        except OSError as error:
            raise StoreError(f"a collection's picture cannot be kept: {error}") from error
        return StoredItem(item.name, path.name, "", len(data), picture_tokens(path))

    def _switch(self, name: str, items: Sequence[StoredItem]) -> int:
        """Put a version in place of the present one, and return its number."""
        with self._database.transaction() as connection:
            held = _digests(connection)
            row = connection.execute("SELECT version FROM collections WHERE name = ?", (name,)).fetchone()
            version = 1 if row is None else int(row["version"]) + 1
            written = json.dumps([asdict(item) for item in items])
            connection.execute("INSERT OR REPLACE INTO collections VALUES (?, ?, ?)", (name, version, written))
            self._let_go(held, _digests(connection))
        return version

    def _let_go(self, before: set[str], now: set[str]) -> None:
        """Delete pictures that no version holds, some time after the last one did."""
        try:
            for path in self._pictures.iterdir() if self._pictures.is_dir() else ():
                if path.name in before - now:
                    os.utime(path)
                elif path.name not in now and time.time() - path.stat().st_mtime > LET_GO_SECONDS:
                    delete_durably(path)
        except OSError as error:
            raise StoreError(f"a collection's pictures cannot be let go: {error}") from error


def _digests(connection: Connection) -> set[str]:
    rows = connection.execute("SELECT items FROM collections").fetchall()
    return {item.digest for row in rows for item in _items(row)}


def _items(row: Row) -> list[StoredItem]:
    return [StoredItem(**item) for item in json.loads(row["items"])]


def _entry(name: str, version: int, items: Sequence[StoredItem]) -> CollectionEntry:
    told = tuple(ItemEntry(item.name, "image" if item.digest else "text", None) for item in items)
    return CollectionEntry(name, version, sum(item.bytes for item in items), told)
