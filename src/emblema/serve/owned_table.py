"""Tables of what tenants keep, in the catalogue of a server's folder, which several processes may share."""

import logging
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from emblema.errors import EmblemaError, StoreError
from emblema.serve.faults import missing
from emblema.store.catalogue import FILE, Catalogue, Tables
from emblema.store.files import make_folder

_LOG = logging.getLogger("emblema.serve")
_OWNED = "owner TEXT NOT NULL, id TEXT NOT NULL, tenant TEXT NOT NULL"
_KEPT = f"{_OWNED}, created REAL NOT NULL, expires REAL"
_STATEMENTS = (
    f"CREATE TABLE files ({_KEPT}, name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL, "
    "status TEXT NOT NULL, detail TEXT, kind TEXT, chunks TEXT NOT NULL, PRIMARY KEY (owner, id))",
    f"CREATE TABLE begun ({_OWNED}, chunks TEXT NOT NULL, PRIMARY KEY (owner, id))",
    f"CREATE TABLE caches ({_KEPT}, name TEXT, parts TEXT NOT NULL, tokens INTEGER NOT NULL, pieces TEXT NOT NULL, "
    "status TEXT NOT NULL DEFAULT 'processed', detail TEXT, holders INTEGER NOT NULL DEFAULT 1, "
    "PRIMARY KEY (owner, id))",
)
_TABLES = Tables("serve", _STATEMENTS, old=("files.sqlite", "caches.sqlite"))
_WAIT = 10.0
"""Seconds to wait for another process's change."""
Row = dict[str, Any]
"""A row by its columns."""
T = TypeVar("T")


class OwnedTable:
    """A table of the catalogue. A row has an owner, an id and perhaps an end, and only its owner finds it.

    Args:
        folder: of the server; it is made where it is not there.
        kind: what a row is, as clients are told; with an `s` it is the table's name.
        clock: returns Unix time in seconds.

    Attributes:
        catalogue: of the folder.

    Raises:
        StoreError: the folder cannot be opened.
    """

    def __init__(self, folder: Path, kind: str, clock: Callable[[], float]) -> None:
        self.clock, self._kind = clock, kind
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreError(f"{folder} cannot be opened: {error}") from error
        self.catalogue = Catalogue(folder / FILE, _TABLES, _WAIT)

    def select(self, query: str, *values: object) -> list[Row]:
        """Return the rows that a query finds, within a change as that has left them."""

        def ask(rows: sqlite3.Connection) -> list[Row]:
            found = rows.execute(query, values)
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

        return self.catalogue.read(ask)

    def find(self, owner: str, id: str) -> Row | None:
        """Return a row; None where there is none, or its time is over."""
        return next(iter(self._living(owner, "AND id = ?", id)), None)

    def row(self, owner: str, id: str) -> Row:
        """Return a row; `ServeError` where the owner has none of this id."""
        found = self.find(owner, id)
        if found is None:
            raise missing(self._kind, id)
        return found

    def rows(self, owner: str) -> list[Row]:
        """Return an owner's rows, the newest first."""
        return self._living(owner, "ORDER BY created DESC, id")

    def _living(self, owner: str, more: str, *values: object) -> list[Row]:
        query = f"SELECT * FROM {self._kind}s WHERE owner = ? AND ifnull(expires > ?, 1) {more}"
        return self.select(query, owner, self.clock(), *values)

    def put(self, **values: Any) -> None:
        """Write a row in place of one of its owner and id."""
        names, places = ", ".join(values), ", ".join("?" * len(values))
        self.change(f"INSERT OR REPLACE INTO {self._kind}s ({names}) VALUES ({places})", *values.values())

    def change(self, statement: str, *values: object) -> int:
        """Execute a statement, and return how many rows it changed."""
        with self.catalogue.change() as rows:
            return rows.execute(statement, values).rowcount


def keyed_id(kind: str, context: str, owner: str, content: bytes) -> str:
    """Return an id that follows from its content, for one owner."""
    key = blake3(owner.encode(), derive_key_context=context).digest()
    return f"{kind}-{blake3(content, key=key).hexdigest()[:32]}"


def each(rows: Iterable[Row], work: Callable[[Row], T], failed: str) -> list[T]:
    """Return what is made of each row. One that is damaged holds up no other: it is logged by its id, with `failed`."""
    made = []
    for row in rows:
        try:
            made.append(work(row))
        except (EmblemaError, LookupError, ValueError) as error:
            _LOG.warning("%s %s: %s", row["id"], failed, error)
    return made
