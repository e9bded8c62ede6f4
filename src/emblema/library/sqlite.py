"""Opening a sqlite file that may be damaged."""

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)


def connect(path: Path | str, tables: str) -> sqlite3.Connection:
    """A connection for all threads (the caller locks), its tables made and its pages checked.

    Raises:
        sqlite3.DatabaseError: the file is damaged.
        sqlite3.OperationalError: it cannot be opened, or is locked.
    """
    if isinstance(path, Path):
        # Made here so that nobody else may ever read it; sqlite gives its companions the same rights.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("a page is damaged")
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {tables} COMMIT;")
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "readonly" in str(error) or "disk" in str(error):
                raise
            raise sqlite3.DatabaseError(f"other tables are in it: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def set_aside(path: Path) -> list[tuple[Any, ...]]:
    """Move a damaged catalogue out of the way, in place of one moved before; the item rows that can still be read."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path)) as damaged:
        damaged.execute("PRAGMA trusted_schema = OFF")
        damaged.text_factory = _text
        for row in damaged.execute("SELECT scope, library, name, since, until, expires, body, digest FROM items"):
            rows.append(row)
    _LOG.warning("the catalogue %s is damaged: %d of its entries can still be read; it is set aside", path, len(rows))
    os.replace(path, path.with_name(path.name + ".damaged"))
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    return rows


def _text(data: bytes) -> str:
    """Text as it is, also where it was damaged: its row's checksum tells."""
    return data.decode("utf-8", "replace")
