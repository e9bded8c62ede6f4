"""Entries of files as they are kept: one that is damaged holds up no other, of whichever tenant."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from emblema.errors import EmblemaError, StoreError

_LOG = logging.getLogger("emblema.serve")
R = TypeVar("R")
T = TypeVar("T")


def chunks_of(id: str, written: str | bytes) -> tuple[str, ...]:
    """Return the ids of a file's chunks as its entry has them; `StoreError` where it is damaged."""
    try:
        chunks = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"what is known of {id} is damaged: {error}") from error
    if not isinstance(chunks, list) or not all(isinstance(chunk, str) for chunk in chunks):
        raise StoreError(f"what is known of {id} is damaged: it has no list of chunks")
    return tuple(chunks)


def each(rows: Iterable[R], work: Callable[[R], None], said: Callable[[R], str]) -> None:
    """Do something with each row; where that fails, `said` of it is logged, and the others are taken all the same."""
    for row in rows:
        try:
            work(row)
        except (EmblemaError, LookupError, ValueError) as error:
            _LOG.warning("%s: %s", said(row), error)


def readable(rows: Iterable[R], read: Callable[[R], T], name: Callable[[R], object]) -> Iterator[T]:
    """Yield what is read of the rows that can be read; the others are logged by name."""
    for row in rows:
        try:
            yield read(row)
        except (EmblemaError, LookupError, ValueError) as error:
            _LOG.warning("the entry of %s cannot be read: %s", name(row), error)
