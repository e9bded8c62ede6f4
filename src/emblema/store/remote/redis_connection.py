"""Connections to Redis whose replies have a deadline as a whole; the client's own time-out is one for each packet."""

import socket
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from emblema.errors import StoreError
from emblema.store.remote.calls import CallPolicy


class TimedSocket:
    """A socket that takes at most so many seconds from `restart` to the end of what is sent and received.

    Args:
        plain: a connected socket, with or without TLS.
        seconds: between one `restart` and the next.
    """

    def __init__(self, plain: socket.socket, seconds: float) -> None:
        self._plain = plain
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._plain.sendall(data)

    def recv(self, count: int, flags: int = 0) -> bytes:
        self._limit()
        return self._plain.recv(count, flags)

    def recv_into(self, buffer: bytearray) -> int:
        self._limit()
        return self._plain.recv_into(buffer)

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the reply is not complete in time")
        self._plain.settimeout(left)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def timed(connection: type[Any], seconds: float) -> type[Any]:
    """Return a connection class of the redis library, each of whose replies is whole within so many seconds."""

    class TimedConnection(connection):  # type: ignore[misc]
        def _connect(self) -> Any:
            return TimedSocket(super()._connect(), seconds)

        def send_packed_command(self, command: Any, check_health: bool = True) -> Any:
            self._restart()
            return super().send_packed_command(command, check_health)

        def read_response(self, *arguments: Any, **named: Any) -> Any:
            self._restart()
            return super().read_response(*arguments, **named)

        def _restart(self) -> None:
            if isinstance(self._sock, TimedSocket):
                self._sock.restart()

    return TimedConnection


def open_client(url: str, policy: CallPolicy) -> tuple[Any, str]:
    """Return a client that leaves retries and deadlines to us, and the address as it may be shown."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    kinds = {
        "redis": redis.Connection,
        "rediss": redis.SSLConnection,
        "unix": redis.UnixDomainSocketConnection,
    }
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        pool = redis.ConnectionPool.from_url(
            url,
            connection_class=timed(kinds[parts.scheme], policy.reply_seconds),
            socket_connect_timeout=policy.connect_seconds,
            socket_timeout=policy.reply_seconds,
            socket_read_size=2**20,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        return redis.Redis(connection_pool=pool), f"{parts.scheme}://{place}"
    except (KeyError, ValueError, TypeError):
        raise StoreError(
            "The address of the Redis tier is not one (it is not shown here, it may hold a password): write "
            "redis://[user:password@]host:port/number, rediss://… or unix://…"
        ) from None


def scrub_address(text: str, url: str) -> str:
    parts = urlsplit(url)
    for secret in filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query)):
        for form in (secret, unquote(secret)):
            text = text.replace(form, "***")
    return text
