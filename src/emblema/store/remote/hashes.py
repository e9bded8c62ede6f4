"""Writing a record to Redis as one hash: a group of parts at a time, under another key until all of it is there."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store.format import buffers, size
from emblema.store.record import SHARED, Record, Terms
from emblema.store.remote.calls import Caller
from emblema.store.remote.head import Head
from emblema.store.remote.options import RemoteOptions
from emblema.store.remote.parts import Buffer, Lasting, split

Result = TypeVar("Result")
UNFINISHED_SECONDS = 600
"""For how long the parts of a write that was cut off stay with the server."""


class HashWriter:
    """The writing half of a RedisTier, whose arguments these are."""

    def __init__(self, client: Any, caller: Caller, options: RemoteOptions) -> None:
        self._client = client
        self._caller = caller
        self._options = options
        self._keys = options.keys

    def write(self, record: Record, terms: Terms) -> None:
        """As RedisTier.write."""
        header, length = record.header, size(record)
        if length > self._options.largest_bytes:
            raise CapacityError(
                f"{header.id[:12]} has {length} bytes, the Redis tier takes at most {self._options.largest_bytes}: "
                "raise largest_bytes, or store smaller pieces."
            )
        lasting = self._caller.store(header.id, lambda: self._within(record, Lasting.of(header.created, terms)))
        head = Head(header.id, header.owner, length, self._options.part_bytes, header.chunks, lasting)
        if not self._caller.store(header.id, lambda: unraced(lambda: self._renew(head))):
            self._send(head, split(buffers(record), self._options.part_bytes))
            self._caller.count("bytes_written", length)
        self._caller.count("writes")

    def _send(self, head: Head, parts: Iterator[Buffer]) -> None:
        """Write a record under another key, a group of parts at a time, then put it in its place."""
        generation = secrets.token_hex(16)
        unfinished = f"{self._keys.record(head.owner, head.id)}/new/{generation}"
        kept, number = False, 0
        try:
            while group := list(islice(parts, self._options.group)):
                self._caller.store(head.id, partial(self._send_group, unfinished, number, group))
                number += len(group)
            kept = self._caller.store(head.id, lambda: unraced(lambda: self._commit(head, unfinished, generation)))
            if not kept:
                self._caller.store(head.id, lambda: unraced(lambda: self._renew(head)))
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
        pipeline.expire(unfinished, UNFINISHED_SECONDS)
        pipeline.execute()

    def _within(self, record: Record, lasting: Lasting) -> Lasting:
        """No longer than the chunks a patch was made from, as far as they are here and expire."""
        header = record.header
        if not header.chunks:
            return lasting
        pipeline = self._client.pipeline(transaction=False)
        for chunk in header.chunks:
            pipeline.pttl(self._keys.record(header.owner, chunk))
            pipeline.pttl(self._keys.record(SHARED, chunk))
        ends = [self._options.clock() + left / 1000 for left in pipeline.execute() if left >= 0]
        ends += [] if lasting.expires is None else [lasting.expires]
        return Lasting(min(ends, default=None), lasting.idle)

    def _renew(self, head: Head) -> bool:
        """Give a record that is there already new terms; False where there is none, or it is not whole."""
        key = self._keys.record(head.owner, head.id)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.watch(key)
            present = self._present(pipeline, head)
            if present is None:
                return False
            pipeline.multi()
            pipeline.hset(key, "head", replace(present, lasting=head.lasting).dump())
            self._expire(pipeline, key, head.lasting)
            pipeline.execute()
        return True

    def _present(self, pipeline: Any, head: Head) -> Head | None:
        """The head of the record that is there, if it is whole."""
        key = self._keys.record(head.owner, head.id)
        text, held = pipeline.hget(key, "head"), pipeline.hlen(key)
        try:
            present = Head.parse(head.id, head.owner, text or b"", self._options.largest_bytes)
        except LoadError:
            return None
        whole = held == present.parts + 2 and not present.lasting.expired(self._options.clock())
        return present if whole else None

    def _commit(self, head: Head, unfinished: str, generation: str) -> bool:
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
            self._expire(pipeline, key, head.lasting)
            pipeline.execute()
        return True

    def _expire(self, pipeline: Any, key: str, lasting: Lasting) -> None:
        until = lasting.until(self._options.clock())
        if until is None:
            pipeline.persist(key)
        else:
            pipeline.pexpireat(key, int(until * 1000))


def unraced(action: Callable[[], Result]) -> Result:
    """What a transaction returns, begun again where others changed its keys meanwhile.

    Raises:
        StoreError: others kept changing them.
    """
    from redis import WatchError

    for _ in range(32):
        with suppress(WatchError):
            return action()
    raise StoreError("A record in Redis is changed by others all the time: try again later.")
