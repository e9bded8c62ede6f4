"""What the disk tier knows of a piece without opening it, and the piece's terms in the header of its file."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from emblema.errors import LoadError, StoreError
from emblema.store.record import LONGEST, SHARED, Array, RecordHeader, RecordKind, RecordReader, Terms, check_id

TERMS = "terms"
"""The key of a header's meta under which the tier keeps a piece's terms, so that they outlast the index."""


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """A piece on disk.

    Attributes:
        id: 64 hexadecimal digits.
        owner: digest of the tenant, or `shared`.
        kind: chunk or patch.
        model: fingerprint of the model that made it.
        bytes: of its file.
        created: Unix time in seconds, as its header has it.
        accessed: when it was last used, in the tier's steady time.
        terms: how long it is kept.
        chunks: ids of the chunks a patch was made from.
        expires: when its `seconds` are over, in the tier's steady time; None never.
    """

    id: str
    owner: str
    kind: RecordKind
    model: str
    bytes: int
    created: float
    accessed: float
    terms: Terms
    chunks: tuple[str, ...]
    expires: float | None = None

    @property
    def ends(self) -> float:
        """Return when it expires unless it is used before, in the tier's steady time; infinite for never."""
        idle = self.terms.idle_seconds
        return min(
            math.inf if self.expires is None else self.expires, math.inf if idle is None else self.accessed + idle
        )

    def is_of(self, header: RecordHeader) -> bool:
        """Return whether a file's header has the same owner, kind and chunks."""
        return (self.owner, self.kind, self.chunks) == (header.owner, header.kind, header.chunks)


class DiskReader:
    """A piece of the disk tier, open; a file that does not verify is reported before the error goes on.

    It stays readable when its piece is evicted, deleted or written again meanwhile.

    Args:
        reader: of the file.
        damaged: called with every LoadError.
    """

    def __init__(self, reader: RecordReader, damaged: Callable[[LoadError], None]) -> None:
        self.header = without_terms(reader.header)
        self._reader = reader
        self._damaged = damaged

    def read(self, name: str) -> Array:
        """Return one tensor, verified.

        Raises:
            LoadError: it is cut short or its checksum differs; the file is in quarantine then.
        """
        try:
            return self._reader.read(name)
        except LoadError as error:
            self._damaged(error)
            raise

    def close(self) -> None:
        self._reader.close()


def check_header(header: RecordHeader) -> None:
    """Raise StoreError where a header's id, owner or chunks could not be kept."""
    check_id(header.id)
    if header.owner != SHARED:
        check_id(header.owner)
    for chunk in header.chunks:
        check_id(chunk)


def with_terms(header: RecordHeader, terms: Terms, expires: float | None, now: float) -> RecordHeader:
    """Return the header as it is written, with the terms in its meta; all but the pin, which may change."""
    kept = {"priority": terms.priority, "idle_seconds": terms.idle_seconds, "seconds": terms.seconds}
    return replace(header, meta={**header.meta, TERMS: {**kept, "expires": expires, "written": now}})


def without_terms(header: RecordHeader) -> RecordHeader:
    """Return the header as it was given to the tier."""
    return replace(header, meta={key: value for key, value in header.meta.items() if key != TERMS})


def written_at(header: RecordHeader) -> float | None:
    """Return the steady time at which the tier wrote this file, if it did."""
    written = _terms_of(header).get("written")
    return float(written) if written is not None else None


def entry_of(header: RecordHeader, *, bytes: int, accessed: float, pinned: bool) -> DiskEntry:
    """Return the entry of a file from its header.

    Raises:
        ValueError: the terms in it are malformed.
    """
    kept = _terms_of(header)
    terms = replace(terms_of(header, Terms()), pinned=pinned)
    return DiskEntry(
        header.id,
        header.owner,
        header.kind,
        header.model,
        bytes,
        header.created,
        accessed,
        terms,
        header.chunks,
        kept.get("expires"),
    )


def terms_of(header: RecordHeader, usual: Terms) -> Terms:
    """Return the terms that a record was written with, or the usual ones where it has none.

    Raises:
        ValueError: they are malformed.
    """
    kept = _terms_of(header)
    if not kept:
        return usual
    try:
        return Terms(kept.get("priority", 0), False, kept.get("seconds"), kept.get("idle_seconds"))
    except StoreError as error:
        raise ValueError(str(error)) from error


def _terms_of(header: RecordHeader) -> Mapping[str, Any]:
    kept = header.meta.get(TERMS, {})
    moments = [kept.get("expires"), kept.get("written")] if isinstance(kept, Mapping) else [math.nan]
    if not all(moment is None or (type(moment) in (int, float) and abs(moment) <= 2 * LONGEST) for moment in moments):
        raise ValueError("the terms in its header are malformed")
    return kept  # type: ignore[no-any-return]
