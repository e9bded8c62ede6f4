"""A tier on a server: what Redis and S3 have in common."""

import logging
from abc import ABC, abstractmethod

from emblema.errors import CapacityError, LoadError
from emblema.store.format import Reader, open_source, size, verify
from emblema.store.record import Record, RecordHeader, Terms
from emblema.store.remote.calls import Caller, OutageError, RemoteStatistics, RestingError, UnansweredError
from emblema.store.remote.options import Expiry, RemoteOptions
from emblema.store.remote.parts import PartedSource

_LOG = logging.getLogger(__name__)


class ServerTier(ABC):
    """Records on one server, which any number of processes may share; a RemoteTier.

    Args:
        options: of the tier.
        caller: calls the server.
    """

    def __init__(self, options: RemoteOptions, caller: Caller) -> None:
        self._options, self._keys, self._caller = options, options.keys, caller

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._caller.server!r}, prefix={self._keys.prefix!r})"

    @property
    def statistics(self) -> RemoteStatistics:
        return self._caller.statistics

    def open(self, id: str, owner: str) -> Reader | None:
        """Return the record of an id; None where it is not here, or the server is left alone for a moment.

        Its beginning comes now, the rest as tensors are read.

        Raises:
            LoadError: it is here and cannot be trusted, or the server does not answer.
        """
        self._keys.record(owner, id)
        try:
            reader = self._find(id, owner)
        except RestingError:
            self._caller.count("skipped")
            return None
        except OutageError:
            raise
        except LoadError:
            self._caller.count("damaged")
            raise
        self._caller.count("misses" if reader is None else "hits")
        return reader

    def write(self, record: Record, terms: Terms) -> None:
        """Keep a record, no longer than the chunks a patch was made from; the server has all of it when this returns.

        Raises:
            CapacityError: it is larger than `largest_bytes`.
            StoreError: the server did not take it; nothing of it is to be found.
        """
        header, length = record.header, size(record)
        if length > self._options.largest_bytes:
            raise CapacityError(
                f"{header.id[:12]} has {length} bytes, the remote tier takes at most {self._options.largest_bytes}: "
                "raise largest_bytes, or store smaller pieces."
            )
        ends = self._caller.store(header.id, self._chunk_ends, header)
        expiry = Expiry.of(header.created, terms).within(ends)
        self._caller.count("bytes_written", self._put(record, length, expiry))
        self._caller.count("writes")

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record, and for a chunk every patch made from it; whether anything was here.

        Raises:
            StoreError: the server did not answer, so that it may still be there.
        """
        self._keys.record(owner, id)
        deleted = self._caller.store(id, self._remove, id, owner)
        self._caller.count("deletes", deleted)
        return deleted > 0

    def quarantine(self, id: str, owner: str, reason: str) -> bool:
        """Take a record out of the way if it does not verify: delete it alone, its patches stay; whether it went.

        Raises:
            StoreError: the server did not answer.
        """
        key = self._keys.record(owner, id)
        try:
            reader = self._find(id, owner)
            if reader is not None:
                with reader:
                    verify(reader)
            return False
        except (UnansweredError, OutageError):
            raise
        except LoadError:
            _LOG.warning("%s on %s is deleted: %s", id[:12], self._caller.server, reason)
            return self._caller.store(id, self._drop, key)

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections."""

    @abstractmethod
    def _find(self, id: str, owner: str) -> Reader | None:
        """Return the record of an id; None where it is not here or has expired.

        Raises:
            RestingError: the server is left alone for a moment.
            LoadError: it is here and cannot be trusted, or the server does not answer.
        """

    @abstractmethod
    def _chunk_ends(self, header: RecordHeader) -> list[float]:
        """Return when the chunks end that a patch was made from, Unix time, of those that are here and do end."""

    @abstractmethod
    def _put(self, record: Record, length: int, expiry: Expiry) -> int:
        """Keep a record of `length` bytes; returns how many were sent. Raises StoreError as `write`."""

    @abstractmethod
    def _remove(self, id: str, owner: str) -> int:
        """Delete a record and the patches made from it; returns how many records that were."""

    @abstractmethod
    def _drop(self, key: str) -> bool:
        """Delete the record of a key alone; whether it was here."""

    def _open(self, source: PartedSource, owner: str) -> Reader:
        """Open the record whose file a source reads; LoadError where it is damaged, or another owner's."""
        reader = open_source(source.read_into, source.bytes, source.id, source.close)
        if reader.header.owner != owner:
            raise LoadError(source.id, "the server gave another owner's record")
        return reader
