"""Chunks and patches in Redis or Valkey: a value for each."""

import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack
from urllib.parse import unquote, urlsplit

from emblema.errors import StoreError
from emblema.store.remote.calls import Caller, CallPolicy
from emblema.store.remote.options import RemoteKeywords, RemoteOptions
from emblema.store.remote.tier import Buffer, Found, Note, ServerTier

_LARGEST = 2**29 - 2**21
"""Bytes of a record: the server takes half a GiB, unless it is told to take more."""


class RedisTier(ServerTier):
    """Records in one Redis or Valkey server (6.2 or later, not a cluster), which any number of processes may share.

    Its budget is the server's `maxmemory`; with an LRU policy there, what is evicted is a miss here.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as the redis library takes them; a password in it is never shown.
        prefix: of every key.
        keywords: `part_bytes`, `largest_bytes`, `policy`, `clock` as in RemoteOptions.

    Raises:
        StoreError: the redis library is not installed, or the address is not one. No server is asked yet.
    """

    def __init__(self, url: str, prefix: str = "emblema", **keywords: Unpack[RemoteKeywords]) -> None:
        options = RemoteOptions(prefix, **keywords)
        options = replace(options, largest_bytes=min(options.largest_bytes, _LARGEST))
        super().__init__(RedisServer(url, options.policy), options)


class RedisServer:
    """One server and what calls it; a ValueServer.

    Args:
        url: as of `RedisTier`.
        policy: time-outs and tries.

    Raises:
        StoreError: as of `RedisTier`.
    """

    def __init__(self, url: str, policy: CallPolicy) -> None:
        try:
            import redis
        except ImportError:
            raise StoreError("The Redis tier needs the redis library: pip install emblema[redis]") from None
        self.client, address = _open_client(url, policy, policy.reply_seconds)
        self._uploads, _ = _open_client(url, policy, policy.upload_seconds)
        self.caller = Caller(
            address,
            policy,
            (redis.RedisError, OSError),
            lambda error: not isinstance(error, redis.ResponseError | redis.AuthenticationError),
            lambda text: scrub_address(text, url),
        )

    def get(self, key: str, start: int, stop: int) -> Found | None:
        pipeline = self.client.pipeline(transaction=True)
        data, length = pipeline.getrange(key, start, stop - 1).strlen(key).execute()
        return Found(memoryview(data), length) if length else None

    def put(self, key: str, value: Sequence[Buffer], until: float | None, notes: Sequence[Note]) -> None:
        pipeline = self._uploads.pipeline(transaction=True)
        for folder, name in notes:
            pipeline.sadd(folder, name)
        pipeline.set(key, b"".join(value), pxat=None if until is None else max(1, int(until * 1000)))
        pipeline.execute()

    def used(self, key: str) -> float | None:
        return None

    def touch(self, key: str, until: float) -> None:
        self.client.pexpireat(key, int(until * 1000))

    def delete(self, keys: Sequence[str]) -> int:
        return int(self.client.unlink(*keys))

    def noted(self, folder: str) -> Sequence[str]:
        return [name.decode() for name in self.client.smembers(folder)]

    def forget(self, folder: str, names: Sequence[str]) -> None:
        if names:
            self.client.srem(folder, *names)

    def close(self) -> None:
        self.client.connection_pool.disconnect()
        self._uploads.connection_pool.disconnect()


class _TimedSocket:
    """A socket whose replies have a time as a whole; the client's own time-out is one for each packet."""

    def __init__(self, plain: socket.socket, seconds: float) -> None:
        self._plain, self._seconds = plain, seconds
        self._deadline = time.monotonic() + seconds

    def sendall(self, data: bytes) -> None:
        self._deadline = time.monotonic() + self._seconds
        self._limited().sendall(data)

    def recv(self, count: int, flags: int = 0) -> bytes:
        return self._limited().recv(count, flags)

    def recv_into(self, buffer: bytearray) -> int:
        return self._limited().recv_into(buffer)

    def _limited(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the reply is not complete in time")
        self._plain.settimeout(left)
        return self._plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def _timed(connection: type[Any], seconds: float) -> type[Any]:
    """Return a connection class of the redis library, each of whose replies is whole within so many seconds."""

    class TimedConnection(connection):  # type: ignore[misc]
        def _connect(self) -> Any:
            return _TimedSocket(super()._connect(), seconds)

    return TimedConnection


def _open_client(url: str, policy: CallPolicy, seconds: float) -> tuple[Any, str]:
    """Return a client whose commands take so many seconds, and the address as it may be shown."""
    import redis
    from redis.backoff import FullJitterBackoff
    from redis.retry import Retry

    kinds = {"redis": redis.Connection, "rediss": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection}
    # What took its whole time once would take it again.
    backoff = FullJitterBackoff(policy.longest_pause_seconds, policy.pause_seconds)
    retry = Retry(backoff, policy.retries, supported_errors=(redis.ConnectionError,))
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        pool = redis.ConnectionPool.from_url(
            url,
            connection_class=_timed(kinds[parts.scheme], seconds),
            socket_connect_timeout=policy.connect_seconds,
            socket_timeout=seconds,
            socket_read_size=2**20,
            retry=retry,
            retry_on_error=[redis.ConnectionError],
            protocol=2,
        )
        return redis.Redis(connection_pool=pool), f"{parts.scheme}://{place}"
    except (KeyError, ValueError, TypeError):
        raise StoreError(
            "The address of the Redis tier is not one (it is not shown here, it may hold a password): write "
            "redis://[user:password@]host:port/number, rediss://… or unix://…"
        ) from None


def scrub_address(text: str, url: str) -> str:
    """Return a message without the secrets of an address."""
    parts = urlsplit(url)
    for secret in filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query)):
        for form in (secret, unquote(secret)):
            text = text.replace(form, "***")
    return text
