"""Chunks and patches in Redis or Valkey: one hash for each, its value in parts."""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import islice
from typing import Any, ParamSpec, Unpack

from emblema.errors import LoadError, StoreError
from emblema.store.format import Reader, buffers
from emblema.store.record import SHARED, Record, RecordHeader, is_id
from emblema.store.remote.calls import Caller, RestingError, Result
from emblema.store.remote.options import Expiry, RemoteKeywords, RemoteOptions, check_part_bytes
from emblema.store.remote.parts import Buffer, PartedSource, split
from emblema.store.remote.redis_connection import open_client, scrub_address
from emblema.store.remote.server import ServerTier

Given = ParamSpec("Given")
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


def _unraced(transaction: Callable[Given, Result]) -> Callable[Given, Result]:
    """Make a transaction begin again where others changed its keys meanwhile; StoreError where they keep doing so."""

    @wraps(transaction)
    def repeated(*arguments: Given.args, **named: Given.kwargs) -> Result:
        from redis import WatchError

        for _ in range(32):
            with suppress(WatchError):
                return transaction(*arguments, **named)
        raise StoreError("A record in Redis is changed by others all the time: try again later.")

    return repeated


class RedisTier(ServerTier):
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

    def __init__(self, url: str, prefix: str = "emblema", **keywords: Unpack[RemoteKeywords]) -> None:
        options = RemoteOptions(prefix, **keywords)
        self._client, address = open_redis(url, options)
        super().__init__(options, make_caller(url, address, options))

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _find(self, id: str, owner: str) -> Reader | None:
        key = self._keys.record(owner, id)
        try:
            text, generation, first = self._caller.call(self._client.hmget, key, "head", "generation", "0")
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
        reader = self._open(source, owner)
        self._touch(key, head.expiry)
        return reader

    def _fetch(self, head: RecordHead, generation: bytes, start: int, count: int) -> Sequence[Buffer]:
        names = ["generation", *map(str, range(start, start + count))]
        key = self._keys.record(head.owner, head.id)
        try:
            found, *parts = self._caller.call(self._client.hmget, key, names)
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
                self._caller.call(self._client.pexpireat, key, int(until * 1000))

    def _send(self, head: RecordHead, parts: Iterator[Buffer]) -> None:
        """Write a record under another key, a group of parts at a time, then put it in its place."""
        generation = secrets.token_hex(16)
        unfinished = f"{self._keys.record(head.owner, head.id)}/new/{generation}"
        kept, number = False, 0
        try:
            while group := list(islice(parts, self._options.group)):
                self._caller.store(head.id, self._send_group, unfinished, number, group)
                number += len(group)
            kept = self._caller.store(head.id, self._commit, head, unfinished, generation)
            if not kept:
                self._caller.store(head.id, self._renew, head)
        finally:
            if not kept:
                # A server that is full should not keep the parts until their time is up.
                with suppress(*self._caller.failures):
                    self._caller.call(self._client.unlink, unfinished)

    def _send_group(self, unfinished: str, start: int, parts: Sequence[Buffer]) -> None:
        # One transaction, so that no part is ever there without an end to its time.
        pipeline = self._client.pipeline(transaction=True)
        for index, part in enumerate(parts):
            pipeline.hset(unfinished, str(start + index), part)
        pipeline.expire(unfinished, _UNFINISHED_SECONDS)
        pipeline.execute()

    def _chunk_ends(self, header: RecordHeader) -> list[float]:
        pipeline = self._client.pipeline(transaction=False)
        for chunk in header.chunks:
            pipeline.pttl(self._keys.record(header.owner, chunk))
            pipeline.pttl(self._keys.record(SHARED, chunk))
        return [self._options.clock() + left / 1000 for left in pipeline.execute() if left >= 0]

    def _put(self, record: Record, length: int, expiry: Expiry) -> int:
        """Keep a record; one that is there already gets the new terms."""
        header = record.header
        head = RecordHead(header.id, header.owner, length, self._options.part_bytes, header.chunks, expiry)
        if self._caller.store(header.id, self._renew, head):
            return 0
        self._send(head, split(buffers(record), self._options.part_bytes))
        return length

    def _drop(self, key: str) -> bool:
        return bool(self._client.unlink(key))

    @_unraced
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

    @_unraced
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

    @_unraced
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


def open_redis(url: str, options: RemoteOptions) -> tuple[Any, str]:
    """Return a client and its address as it may be shown; `StoreError` without the library, or for no address."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise StoreError("The Redis tier needs the redis library: pip install emblema[redis]") from None
    return open_client(url, options.policy)


def make_caller(url: str, address: str, options: RemoteOptions) -> Caller:
    """Return what calls a server within its time and counts."""
    import redis

    return Caller(
        address,
        options.policy,
        (redis.RedisError, OSError),
        lambda error: not isinstance(error, redis.ResponseError | redis.AuthenticationError),
        lambda text: scrub_address(text, url),
    )


def _chunks_of(text: bytes | None) -> list[str]:
    """Return what a record that is about to go was made from; where that cannot be read, a note of it stays."""
    try:
        chunks = json.loads(text or b"{}").get("chunks", [])
        return [chunk for chunk in chunks if is_id(chunk)]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []
