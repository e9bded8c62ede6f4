"""The deletions of processes on many machines: a stream in Redis or Valkey."""

from collections.abc import Mapping

from emblema.store.deletion_feed import FIRST, Deletions
from emblema.store.record import Name, check_id
from emblema.store.remote.calls import CallPolicy
from emblema.store.remote.redis import RedisServer

KEPT = 1_000_000
"""Deletions that the server remembers, about."""
_BEGINNING = "0-0"


class RedisFeed:
    """A `DeletionFeed` on one server, whose order is the server's: no clock of a reader or writer counts.

    A server that may lose what it acknowledged (without `appendonly yes`) may lose deletions with it; readers notice
    that the stream is younger than they are, and delete what they keep.

    Args:
        url, prefix, policy: as of `RedisTier`.
        kept: deletions that are remembered.
    """

    def __init__(
        self, url: str, prefix: str = "emblema", kept: int = KEPT, *, policy: CallPolicy | None = None
    ) -> None:
        self._server, self._kept = RedisServer(url, policy or CallPolicy()), kept
        self._client, self._caller = self._server.client, self._server.caller
        self._key = f"{prefix}/deletions"

    def publish(self, owner: str, id: str) -> None:
        self._caller.call(self._add, owner, check_id(id))

    def _add(self, owner: str, id: str) -> None:
        # Twice after an answer that was lost, which does no harm.
        self._client.xadd(self._key, {"owner": owner, "id": id}, maxlen=self._kept, approximate=True)

    def read(self, after: str | None) -> Deletions:
        return self._caller.call(self._read, after)

    def _read(self, after: str | None) -> Deletions:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.xrevrange(self._key, count=1)
        pipeline.xrange(self._key, min=after or _BEGINNING, max="+")
        last, found = pipeline.execute()
        if not last:
            owner, id = FIRST
            return Deletions((), self._client.xadd(self._key, {"owner": owner, "id": id}).decode(), after is not None)
        newest = last[0][0].decode()
        if after is None:
            return Deletions((), newest)
        # The entry that was read last is still there, unless it was trimmed, or the stream is another.
        whole = bool(found) and found[0][0].decode() == after
        names = [_name(fields) for _, fields in found[1:]]
        if not whole or None in names:
            return Deletions((), newest, gap=True)
        return Deletions(tuple(name for name in names if name is not None), newest)

    def close(self) -> None:
        self._server.close()


def _name(fields: Mapping[bytes, bytes]) -> Name | None:
    """Return what an entry deletes; None for one of another form, which may delete anything."""
    owner, id = fields.get(b"owner"), fields.get(b"id")
    return None if owner is None or id is None else (owner.decode(errors="replace"), id.decode(errors="replace"))
