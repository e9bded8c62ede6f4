"""Chunks and patches in Redis or Valkey: one hash for each, its value in parts."""

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Unpack

from emblema.errors import LoadError, StoreError
from emblema.store.format import Reader, buffers, size
from emblema.store.record import SHARED, Record, Terms, is_id
from emblema.store.remote.calls import Caller, RemoteStatistics, RestingError, Result, is_damaged
from emblema.store.remote.options import Expiry, RemoteKeywords, RemoteOptions, check_part_bytes
from emblema.store.remote.parts import Buffer, PartedSource, open_parts, split
from emblema.store.remote.redis_connection import open_client, scrub_address

_LOG = logging.getLogger(__name__)
_UNFINISHED_SECONDS = 600
"""For how long the parts of a write that was cut off stay with the server."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    """Whose a record is, how it is cut and how long it is kept.

    Attributes:
        id: of the record.
        owner: of the record.
        length: bytes of its file.
        part_bytes: of every part but the last.
        chunks: what a patch was made from.
        expiry: until when it is kept.
    """

    id: str
    owner: str
    length: int
    part_bytes: int
    chunks: tuple[str, ...]
    expiry: Expiry

    @property
    def parts(self) -> int:
        return -(-self.length // self.part_bytes)

    def dump(self) -> str:
        fields = {
            "id": self.id,
            "owner": self.owner,
            "bytes": self.length,
            "part_bytes": self.part_bytes,
            "chunks": list(self.chunks),
            "expires": self.expiry.expires,
            "idle": self.expiry.idle,
        }
        return json.dumps(fields, allow_nan=False)

    @classmethod
    def parse(cls, id: str, owner: str, text: bytes, largest: int) -> "RecordHead":
        """Return the head of a record.

        Raises:
            LoadError: it is damaged, another record's, or speaks of more than `largest` bytes.
        """
        try:
            fields = json.loads(text)
            length, part_bytes = fields["bytes"], fields["part_bytes"]
            expiry = Expiry(fields["expires"], fields["idle"])
            sound = (
                (fields["id"], fields["owner"]) == (id, owner)
                and type(length) is int
                and type(part_bytes) is int
                and 0 < length <= largest
                and all(type(value) in (int, float, type(None)) for value in (expiry.expires, expiry.idle))
            )
            if not sound:
                raise ValueError
            chunks = tuple(_chunks_of(text))
            return cls(id, owner, length, check_part_bytes(part_bytes), chunks, expiry)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, StoreError):
            raise LoadError(id, "its head on the server is damaged or another record's") from None


class RedisTier:
    """Records in one Redis or Valkey server (not a cluster), which any number of processes may share.

    A record is one hash: `head` (JSON: id, owner, length, terms), `generation` and its parts by number. It is written
    under another key and renamed, so that no reader sees half of one; it expires and is evicted as a whole. Its
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

    def __repr__(self) -> str:
        return f"RedisTier({self._address!r}, prefix={self._keys.prefix!r})"

    @property
    def statistics(self) -> RemoteStatistics:
        return self._caller.statistics

    def open(self, id: str, owner: str) -> Reader | None:
        """Return the record of an id; None where it is not here, or the server is left alone for a moment.

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
        header, length = record.header, size(record)
        self._options.check_size(header.id, length)
        expiry = self._caller.store(header.id, lambda: self._within(record, Expiry.of(header.created, terms)))
        head = RecordHead(header.id, header.owner, length, self._options.part_bytes, header.chunks, expiry)
        if not self._caller.store(header.id, lambda: _unraced(lambda: self._renew(head))):
            self._send(head, split(buffers(record), self._options.part_bytes))
            self._caller.count("bytes_written", length)
        self._caller.count("writes")

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record, and for a chunk every patch made from it; whether anything was here.

        Raises:
            StoreError: the server did not answer, so that it may still be there.
        """
        self._keys.record(owner, id)
        deleted = self._caller.store(id, lambda: _unraced(lambda: self._remove(id, owner)))
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
        _LOG.warning("%s on %s is deleted: %s", id[:12], self._address, reason)
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
        head = RecordHead.parse(id, owner, text, self._options.largest_bytes)
        if head.expiry.expired(self._options.clock()):
            return None
        fetch = partial(self._fetch, head, generation)
        source = PartedSource(id, head.length, head.part_bytes, fetch, first, self._options.group)
        reader = open_parts(source, owner)
        self._touch(key, head.expiry)
        return reader

    def _fetch(self, head: RecordHead, generation: bytes, start: int, count: int) -> Sequence[Buffer]:
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

    def _touch(self, key: str, expiry: Expiry) -> None:
        """Begin an idle time again. Where the server does not answer, that is counted; the record expires earlier."""
        until = expiry.until(self._options.clock())
        if expiry.idle is not None and until is not None:
            with suppress(*self._caller.failures):
                self._caller.call(lambda: self._client.pexpireat(key, int(until * 1000)))

    def _send(self, head: RecordHead, parts: Iterator[Buffer]) -> None:
        """Write a record under another key, a group of parts at a time, then put it in its place."""
        generation = secrets.token_hex(16)
        unfinished = f"{self._keys.record(head.owner, head.id)}/new/{generation}"
        kept, number = False, 0
        try:
            while group := list(islice(parts, self._options.group)):
                self._caller.store(head.id, partial(self._send_group, unfinished, number, group))
                number += len(group)
            kept = self._caller.store(head.id, lambda: _unraced(lambda: self._commit(head, unfinished, generation)))
            if not kept:
                self._caller.store(head.id, lambda: _unraced(lambda: self._renew(head)))
        finally:
            if not kept:
                # A server that is full should not keep the parts until their time is up.
                with suppress(*self._caller.failures):
                    self._caller.call(lambda: self._client.unlink(unfinished))

    def _send_group(self, unfinished: str, start: int, parts: Sequence[Buffer]) -> None:
        # One transaction, so that no part is ever there without an end to its time.
        pipeline = self._client.pipeline(transaction=True)
        for index, part in enumerate(parts):
            pipeline.hset(unfinished, str(start + index), part)
        pipeline.expire(unfinished, _UNFINISHED_SECONDS)
        pipeline.execute()

    def _within(self, record: Record, expiry: Expiry) -> Expiry:
        """Return terms that end no later than those of the chunks a patch was made from, where these are here."""
        header = record.header
        if not header.chunks:
            return expiry
        pipeline = self._client.pipeline(transaction=False)
        for chunk in header.chunks:
            pipeline.pttl(self._keys.record(header.owner, chunk))
            pipeline.pttl(self._keys.record(SHARED, chunk))
        ends = [self._options.clock() + left / 1000 for left in pipeline.execute() if left >= 0]
        ends += [] if expiry.expires is None else [expiry.expires]
        return Expiry(min(ends, default=None), expiry.idle)

    def _renew(self, head: RecordHead) -> bool:
        """Give a record that is there already new terms; False where there is none, or it is not whole."""
        key = self._keys.record(head.owner, head.id)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.watch(key)
            present = self._present(pipeline, head)
            if present is None:
                return False
            pipeline.multi()
            pipeline.hset(key, "head", replace(present, expiry=head.expiry).dump())
            self._expire(pipeline, key, head.expiry)
            pipeline.execute()
        return True

    def _present(self, pipeline: Any, head: RecordHead) -> RecordHead | None:
        """Return the head of the record that is there, if it is whole."""
        key = self._keys.record(head.owner, head.id)
        text, held = pipeline.hget(key, "head"), pipeline.hlen(key)
        try:
            present = RecordHead.parse(head.id, head.owner, text or b"", self._options.largest_bytes)
        except LoadError:
            return None
        whole = held == present.parts + 2 and not present.expiry.expired(self._options.clock())
        return present if whole else None

    def _commit(self, head: RecordHead, unfinished: str, generation: str) -> bool:
        """Put a finished record in its place, with the notes beside its chunks; False where another came first."""
        key = self._keys.record(head.owner, head.id)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.watch(key)
            if pipeline.hget(key, "generation") == generation.encode():
                # An earlier try was carried out and only its answer was lost.
                return True
            if self._present(pipeline, head) is not None:
                return False
            if pipeline.hlen(unfinished) != head.parts:
                raise StoreError(f"{head.id[:12]} was not kept: the server evicted parts of it as it was written.")
            pipeline.multi()
            for chunk in dict.fromkeys(head.chunks):
                pipeline.sadd(self._keys.patches(head.owner, chunk), head.id)
                pipeline.sadd(self._keys.owners(chunk), head.owner)
            pipeline.hset(unfinished, mapping={"head": head.dump(), "generation": generation})
            pipeline.rename(unfinished, key)
            self._expire(pipeline, key, head.expiry)
            pipeline.execute()
        return True

    def _expire(self, pipeline: Any, key: str, expiry: Expiry) -> None:
        until = expiry.until(self._options.clock())
        if until is None:
            pipeline.persist(key)
        else:
            pipeline.pexpireat(key, int(until * 1000))

    def _remove(self, id: str, owner: str) -> int:
        """Delete patches first, in one transaction with the chunk; it fails where one is written meanwhile."""
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
            for chunk in _chunks_of(head):
                pipeline.srem(self._keys.patches(owner, chunk), id)
            return sum(pipeline.execute()[: len(patches) + 1])


def _chunks_of(text: bytes | None) -> list[str]:
    """Return what a record that is about to go was made from; where that cannot be read, a note of it stays."""
    try:
        chunks = json.loads(text or b"{}").get("chunks", [])
        return [chunk for chunk in chunks if is_id(chunk)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def _unraced(action: Callable[[], Result]) -> Result:
    """Return what a transaction returns, begun again where others changed its keys meanwhile.

    Raises:
        StoreError: others kept changing them.
    """
    from redis import WatchError

    for _ in range(32):
        with suppress(WatchError):
            return action()
    raise StoreError("A record in Redis is changed by others all the time: try again later.")
