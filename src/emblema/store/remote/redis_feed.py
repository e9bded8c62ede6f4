"""The deletions of processes on many machines: a stream in Redis or Valkey."""

from typing import Unpack

from emblema.errors import LoadError, StoreError
from emblema.store.deletion_feed import Deletions
from emblema.store.record import check_id
from emblema.store.remote.calls import RestingError
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.redis import make_caller, open_redis

KEPT = 1_000_000
"""Deletions that the server remembers, about."""
_BEGINNING = "0-0"


class RedisFeed:
    """A `DeletionFeed` on one server, whose order is the server's: no clock of a reader or writer counts.

    A server that may lose what it acknowledged (without `appendonly yes`) may lose deletions with it; readers notice
    that the stream is younger than they are, and delete what they keep.

    Args:
        url, prefix, keywords: as of `RedisTier`.
        kept: deletions that are remembered.
    """

    def __init__(self, url: str, prefix: str = "emblema", kept: int = KEPT, **keywords: Unpack[RemoteKeywords]) -> None:
        self._options, self._kept = RemoteOptions(prefix, **keywords), kept
        self._client, address = open_redis(url, self._options)
        self._caller = make_caller(url, address, self._options)
        self._key = f"{prefix}/deletions"

    def publish(self, owner: str, id: str) -> None:
        self._caller.store(check_id(id), self._add, owner, id)

    def _add(self, owner: str, id: str) -> None:
        # Twice after an answer that was lost, which does no harm.
        self._client.xadd(self._key, {"owner": owner, "id": id}, maxlen=self._kept, approximate=True)

    def read(self, after: str | None) -> Deletions:
        try:
            return self._caller.call(self._read, after)
        except RestingError:
            raise StoreError("the server of deletions is left alone for a moment") from None
        except (LoadError, KeyError, ValueError) as error:
            raise StoreError(f"the deletions cannot be read: {error}") from error
        except self._caller.failures as error:
            raise StoreError(f"the deletions cannot be read: {error}") from error

    def _read(self, after: str | None) -> Deletions:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.xrevrange(self._key, count=1)
        pipeline.xrange(self._key, min=f"({after or _BEGINNING}", max="+")
        # The entry that was read last, or an older one, is still there unless the stream was trimmed beyond it.
        pipeline.xrange(self._key, count=1)
        last, added, first = pipeline.execute()
        newest = last[0][0].decode() if last else _BEGINNING
        if after is None:
            return Deletions((), newest)
        names = tuple((fields[b"owner"].decode(), fields[b"id"].decode()) for _, fields in added)
        lost = _order(after) > _order(newest)
        trimmed = after != _BEGINNING and bool(first) and _order(first[0][0].decode()) > _order(after)
        return Deletions(names, newest, gap=lost or trimmed or (after == _BEGINNING and len(names) >= self._kept))

    def close(self) -> None:
        self._client.connection_pool.disconnect()


def _order(position: str) -> tuple[int, int]:
    first, _, second = position.partition("-")
    return int(first), int(second)
