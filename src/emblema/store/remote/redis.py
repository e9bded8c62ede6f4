"""Chunks and patches in Redis or Valkey: one hash for each, its value in parts."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Unpack

from emblema.errors import LoadError, StoreError
from emblema.store.format import Reader, open_source
from emblema.store.record import SHARED, Record, Terms
from emblema.store.remote.calls import Caller, RemoteStatistics, RestingError, is_damaged
from emblema.store.remote.connection import open_client, scrub_address
from emblema.store.remote.hashes import HashWriter, unraced
from emblema.store.remote.head import Head, chunks_of
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.parts import Buffer, Lasting, PartedSource

log = logging.getLogger(__name__)


class RedisTier:
    """Records in one Redis or Valkey server (not a cluster), which any number of processes may share.

    A record is one hash: `head` (JSON: id, owner, length, terms), `generation` and its parts by number. It is written
    under another key and renamed, so that nobody sees half of one; it expires and is evicted as a whole. Its
    budget is the server's `maxmemory`; with an LRU policy there, what is evicted is a miss here.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as the redis library takes them; a password in it is never shown.
        prefix: of every key.
        keywords: `part_bytes`, `group`, `largest_bytes`, `policy`, `clock` as in RemoteOptions.

    Raises:
        StoreError: the redis library is not installed, or the address is not one. No server is asked yet.
    """

    name = "redis"

    def __init__(self, url: str, prefix: str = "emblema", **keywords: Unpack[RemoteKeywords]) -> None:
        try:
            import redis
        except ImportError:
            raise StoreError("The Redis tier needs the redis library: pip install emblema[redis]") from None
        options = RemoteOptions(prefix, **keywords)
        self._options = options
        self._keys = options.keys
        self._client, self._address = open_client(url, options.policy)
        self._caller = Caller(
            self._address,
            options.policy,
            (redis.RedisError, OSError),
            lambda error: not isinstance(error, redis.ResponseError | redis.AuthenticationError),
            lambda text: scrub_address(text, url),
        )
        self._writer = HashWriter(self._client, self._caller, options)

    def __repr__(self) -> str:
        return f"RedisTier({self._address!r}, prefix={self._keys.prefix!r})"

    @property
    def statistics(self) -> RemoteStatistics:
        return self._caller.statistics

    def open(self, id: str, owner: str) -> Reader | None:
        """The record of an id; None where it is not here, or the server is left alone for a moment.

        Its first part comes now, the others as tensors are read.

        Raises:
            LoadError: it is here and cannot be trusted, or the server does not answer.
        """
        self._keys.record(owner, id)
        return self._caller.read(lambda: self._find(id, owner))

    def write(self, record: Record, terms: Terms) -> None:
        """Keep a record; the server has all of it when this returns. One that is there already gets the new terms.

        Raises:
            CapacityError: it is larger than `largest_bytes`.
            StoreError: the server did not take it; nothing of it is to be found.
        """
        self._writer.write(record, terms)

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record, and for a chunk every patch made from it; whether anything was here.

        Raises:
            StoreError: the server did not answer, so that it may still be there.
        """
        self._keys.record(owner, id)
        deleted = self._caller.store(id, lambda: unraced(lambda: self._remove(id, owner)))
        self._caller.count("deletes", deleted)
        return deleted > 0

    def quarantine(self, id: str, owner: str, reason: str) -> bool:
        """Take a record out of the way if it does not verify: delete it alone, its patches stay; whether it went.

        Raises:
            StoreError: the server did not answer.
        """
        key = self._keys.record(owner, id)
        if not is_damaged(lambda: self._find(id, owner)):
            return False
        log.warning("%s on %s is deleted: %s", id[:12], self._address, reason)
        removed: int = self._caller.store(id, lambda: self._client.unlink(key))
        return removed > 0

    def close(self) -> None:
        """Let go of the connections."""
        self._client.connection_pool.disconnect()

    def _find(self, id: str, owner: str) -> Reader | None:
        key = self._keys.record(owner, id)
        fields = ("head", "generation", "0")
        try:
            text, generation, first = self._caller.call(lambda: self._client.hmget(key, *fields))
        except RestingError:
            raise
        except self._caller.failures as error:
            raise self._caller.outage(id, error) from None
        if text is None and generation is None and first is None:
            return None
        if text is None or generation is None or first is None:
            raise LoadError(id, "a part of it is gone from the server")
        self._caller.count("bytes_read", len(first))
        head = Head.parse(id, owner, text, self._options.largest_bytes)
        if head.lasting.expired(self._options.clock()):
            return None
        fetch = partial(self._fetch, head, generation)
        source = PartedSource(id, head.length, head.part_bytes, fetch, first, self._options.group)
        reader = open_source(source.read_into, head.length, id, source.close)
        if reader.header.owner != owner:
            raise LoadError(id, "the server gave another owner's record")
        self._touch(key, head.lasting)
        return reader

    def _fetch(self, head: Head, generation: bytes, start: int, count: int) -> Sequence[Buffer]:
        names = ["generation", *map(str, range(start, start + count))]
        key = self._keys.record(head.owner, head.id)
        try:
            found, *parts = self._caller.call(lambda: self._client.hmget(key, names))
        except self._caller.failures as error:
            raise self._caller.outage(head.id, error) from None
        self._caller.count("bytes_read", sum(len(part) for part in parts if part is not None))
        if found != generation or any(part is None for part in parts):
            raise LoadError(head.id, "it was deleted, evicted or replaced on the server while it was read")
        return list(parts)

    def _touch(self, key: str, lasting: Lasting) -> None:
        """Begin an idle time anew. Where the server does not answer, that is counted and the record expires earlier."""
        until = lasting.until(self._options.clock())
        if lasting.idle is not None and until is not None:
            with suppress(*self._caller.failures):
                self._caller.call(lambda: self._client.pexpireat(key, int(until * 1000)))

    def _remove(self, id: str, owner: str) -> int:
        """Patches first, in one transaction with the chunk; begun again where a patch is written meanwhile."""
        key, owners = self._keys.record(owner, id), {owner}
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.watch(key, self._keys.patches(owner, id))
            if owner == SHARED:
                pipeline.watch(self._keys.owners(id))
                owners |= {name.decode() for name in pipeline.smembers(self._keys.owners(id))}
                pipeline.watch(*(self._keys.patches(name, id) for name in owners))
            head = pipeline.hget(key, "head")
            patches = [
                self._keys.record(name, patch.decode())
                for name in owners
                for patch in pipeline.smembers(self._keys.patches(name, id))
            ]
            pipeline.multi()
            for record in (*patches, key):
                pipeline.unlink(record)
            for name in owners:
                pipeline.unlink(self._keys.patches(name, id))
                pipeline.srem(self._keys.owners(id), name)
            for chunk in chunks_of(head):
                pipeline.srem(self._keys.patches(owner, chunk), id)
            return sum(pipeline.execute()[: len(patches) + 1])
