"""A tier on a server: one value a record, its file, whatever the server is."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from emblema.errors import CapacityError, LoadError
from emblema.store.disk.entry import terms_of, with_terms
from emblema.store.format import Reader, buffers, open_source, verify
from emblema.store.record import SHARED, Record, RecordHeader, Terms
from emblema.store.remote.calls import Caller, CallError, OutageError, RestingError
from emblema.store.remote.options import RemoteKeys, RemoteOptions
from emblema.store.remote.ranges import RangeReader

_LOG = logging.getLogger(__name__)
_FAR = 2.0**37
"""Unix time beyond the last date of calendars; later ends count as never."""
_HEAD_BYTES = 65_536
"""That are read of a record whose header alone is wanted."""

Buffer = bytes | memoryview
Note = tuple[str, str]
"""A folder of names, and a name that is noted in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A range of a value, and the length of the whole value."""

    data: memoryview
    length: int


class ValueServer(Protocol):
    """Values by key on one server, and names noted in folders. Its methods raise its client library's errors."""

    @property
    def caller(self) -> Caller:
        """What calls the methods below."""

    def get(self, key: str, start: int, stop: int) -> Found | None:
        """Return a range of a value, as much of it as there is; None where there is no such value."""

    def put(self, key: str, value: Sequence[Buffer], until: float | None, notes: Sequence[Note]) -> None:
        """Note names, then keep a value in place of an older one, whole or not at all; None: it has no end."""

    def used(self, key: str) -> float | None:
        """Return when a value was last used, Unix time; None where the server itself ends it."""

    def touch(self, key: str, until: float) -> None:
        """Note that a value was used, and is kept until a Unix time."""

    def delete(self, keys: Sequence[str]) -> int:
        """Delete values in this order; returns how many were here."""

    def noted(self, folder: str) -> Sequence[str]:
        """Return the names in a folder."""

    def forget(self, folder: str, names: Sequence[str]) -> None:
        """Take names out of a folder."""

    def close(self) -> None:
        """Let go of the connections."""


class ServerTier:
    """Records on one server, which any number of processes may share; a RemoteTier.

    A value is a record's file with its terms in the header, so that a record comes and goes as a whole.

    Args:
        server: keeps the values.
        options: of the tier.
    """

    def __init__(self, server: ValueServer, options: RemoteOptions) -> None:
        self._server, self._options, self._keys = server, options, RemoteKeys(options.prefix)
        self._caller = server.caller

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._caller.server!r}, prefix={self._keys.prefix!r})"

    def open(self, id: str, owner: str) -> Reader | None:
        """Return the record of an id; None where it is not here, or the server is left alone for a moment.

        Its beginning comes now, the rest as tensors are read.

        Raises:
            LoadError: it is here and cannot be trusted, or the server does not answer.
        """
        try:
            return self._find(id, owner, self._options.part_bytes)
        except RestingError:
            return None
        except CallError as error:
            raise OutageError(id, str(error)) from None

    def write(self, record: Record, terms: Terms) -> None:
        """Keep a record, no longer than the chunks a patch was made from; the server has all of it when this returns.

        A record that is here already, with the same terms, stays as it is.

        Raises:
            CapacityError: it is larger than `largest_bytes`.
            StoreError: the server did not take it; nothing of it is to be found.
        """
        header = record.header
        terms = self._within_chunks(header, terms)
        record = replace(record, header=with_terms(header, terms, None, header.created))
        value = list(buffers(record))
        length = sum(memoryview(part).nbytes for part in value)
        if length > self._options.largest_bytes:
            raise CapacityError(
                f"{header.id[:12]} has {length} bytes, {self._caller.server} takes at most "
                f"{self._options.largest_bytes}: raise largest_bytes, or store smaller pieces."
            )
        present = self._header(header.id, header.owner)
        if present is not None and _ends(present) == _ends(record.header):
            return
        notes = [
            note
            for chunk in dict.fromkeys(header.chunks)
            for note in ((self._keys.patches(header.owner, chunk), header.id), (self._keys.owners(chunk), header.owner))
        ]
        key, until = self._keys.record(header.owner, header.id), _until(record.header, self._options.clock())
        self._caller.call(self._server.put, key, value, until, notes)

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record, and for a chunk every patch made from it; whether anything was here.

        Raises:
            StoreError: the server did not answer, so that it may still be there.
        """
        self._keys.record(owner, id)
        return self._caller.call(self._remove, id, owner) > 0

    def quarantine(self, id: str, owner: str, reason: str) -> bool:
        """Take a record out of the way if it does not verify: delete it alone, its patches stay; whether it went.

        Raises:
            StoreError: the server did not answer.
        """
        try:
            reader = self._find(id, owner, self._options.part_bytes)
            if reader is not None:
                verify(reader)
            return False
        except OutageError:
            raise
        except LoadError:
            _LOG.warning("%s on %s is deleted: %s", id[:12], self._caller.server, reason)
            return self._caller.call(self._server.delete, [self._keys.record(owner, id)]) > 0

    def close(self) -> None:
        """Let go of the connections."""
        self._server.close()

    def _find(self, id: str, owner: str, first_bytes: int) -> Reader | None:
        """Return the record of an id; None where it is not here or has expired.

        Raises:
            CallError: the server does not answer when it is asked for the beginning.
            LoadError: the record is here and cannot be trusted; OutageError: the server does not answer then.
        """
        key = self._keys.record(owner, id)
        found = self._caller.call(self._server.get, key, 0, first_bytes)
        if found is None:
            return None
        if found.length > self._options.largest_bytes:
            raise LoadError(
                id, f"it has {found.length} bytes, more than the {self._options.largest_bytes} that are read"
            )
        fetch = partial(self._fetch, id, key, found.length)
        source = RangeReader(id, found.length, fetch, found.data, self._options.part_bytes)
        reader = open_source(source.read_into, found.length, id, source.close)
        if reader.header.owner != owner:
            raise LoadError(id, "the server gave another owner's record")
        if self._expired(key, reader.header):
            self._caller.call(self._remove, id, owner)
            return None
        return reader

    def _fetch(self, id: str, key: str, length: int, start: int, stop: int) -> memoryview:
        try:
            found = self._caller.call(self._server.get, key, start, stop)
        except CallError as error:
            raise OutageError(id, str(error)) from None
        if found is None or (len(found.data), found.length) != (stop - start, length):
            raise LoadError(id, "it was deleted, evicted or replaced on the server while it was read")
        return found.data

    def _header(self, id: str, owner: str) -> RecordHeader | None:
        """Return the header of a record that is here; None where it cannot be trusted."""
        try:
            reader = self._find(id, owner, _HEAD_BYTES)
        except OutageError:
            raise
        except LoadError:
            return None
        return None if reader is None else reader.header

    def _expired(self, key: str, header: RecordHeader) -> bool:
        """Return whether a record's time is up; otherwise its idle time begins again."""
        now, idle = self._options.clock(), _ends(header)[1]
        used = None if idle is None else self._caller.call(self._server.used, key)
        last = now if used is None else used
        until = _until(header, last)
        if until is None or until <= now:
            return until is not None
        if idle is not None and (used is None or now - used > idle / 10):
            self._caller.call(self._server.touch, key, _until(header, now))
        return False

    def _within_chunks(self, header: RecordHeader, terms: Terms) -> Terms:
        """Return the terms with which a record ends no later than the chunks that it was made from."""
        now = self._options.clock()
        chunks = [(id, owner) for id in dict.fromkeys(header.chunks) for owner in dict.fromkeys((header.owner, SHARED))]
        headers = [self._header(*chunk) for chunk in chunks]
        ends = [end for found in headers if found is not None and (end := _until(found, now)) is not None]
        own = [] if terms.seconds is None else [terms.seconds]
        return replace(terms, seconds=min([*own, *(max(0.0, end - header.created) for end in ends)], default=None))

    def _remove(self, id: str, owner: str) -> int:
        """Delete patches first, so that what a crash leaves is found again by its chunk's notes."""
        owners = {owner, *(self._server.noted(self._keys.owners(id)) if owner == SHARED else ())}
        notes = {self._keys.patches(name, id): self._server.noted(self._keys.patches(name, id)) for name in owners}
        records = [self._keys.record(name, patch) for name in owners for patch in notes[self._keys.patches(name, id)]]
        deleted = self._server.delete([*records, self._keys.record(owner, id)])
        for folder, names in (*notes.items(), (self._keys.owners(id), list(owners))):
            self._server.forget(folder, names)
        return deleted


def _ends(header: RecordHeader) -> tuple[float | None, float | None]:
    """Return the Unix time at which a record ends and its idle seconds; None for never.

    Raises:
        LoadError: its terms are malformed.
    """
    try:
        terms = terms_of(header, Terms())
    except ValueError as error:
        raise LoadError(header.id, str(error)) from None
    end = None if terms.seconds is None else header.created + terms.seconds
    return end, terms.idle_seconds


def _until(header: RecordHeader, used: float) -> float | None:
    """Return when a record last used at a time expires, Unix time; None never."""
    end, idle = _ends(header)
    ends = [end, None if idle is None else used + idle]
    return min((each for each in ends if each is not None and each < _FAR), default=None)
