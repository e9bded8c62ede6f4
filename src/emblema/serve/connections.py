"""Connections of a server: how many there are, and how long one may say nothing that is a request."""

import asyncio
import resource
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0
"""Seconds in which the headers of a request have to come."""
WRITE_SECONDS = 60.0
"""Seconds in which a client has to take some of its answer."""
_OTHER_FILES = 128
"""Descriptors that are left for what is no connection."""


class Connections:
    """The connections of one server. Beyond `most`, the one that has waited longest without a request is closed.

    Args:
        most: connections at a time; fewer where the process may open no more files.
    """

    def __init__(self, most: int) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = max(files // 2, files - _OTHER_FILES)
        self.most = most if files == resource.RLIM_INFINITY else min(most, spare)
        self._idle: OrderedDict[ClientConnection, None] = OrderedDict()
        self._all: set[ClientConnection] = set()

    def __len__(self) -> int:
        return len(self._all)

    def opened(self, connection: "ClientConnection") -> None:
        """Take a connection on, perhaps in another's place."""
        self._all.add(connection)
        self.waits(connection)
        if len(self._all) > self.most:
            # This one, where all others have requests.
            next(iter(self._idle)).abort()

    def waits(self, connection: "ClientConnection") -> None:
        """Note that a connection has no request."""
        self._idle[connection] = None

    def works(self, connection: "ClientConnection") -> None:
        """Note that a connection has a request."""
        self._idle.pop(connection, None)

    def closed(self, connection: "ClientConnection") -> None:
        """Forget a connection."""
        self._idle.pop(connection, None)
        self._all.discard(connection)


class ClientConnection(asyncio.Protocol):
    """One connection: uvicorn's own protocol, within limits of time.

    Args:
        connections: of the server.
        options: of uvicorn's protocol.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        self._connections = connections
        self._inner: Any = AutoHTTPProtocol(**options)
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._transport: asyncio.BaseTransport | None = None
        self._heading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)
        self._connections.opened(self)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        for timer in (self._heading, self._writing):
            if timer is not None:
                timer.cancel()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        # Between two requests, uvicorn waits a few seconds for a first byte; from that on it waits here.
        if self._is_busy:
            self._connections.works(self)
            if self._heading is not None:
                self._heading.cancel()
                self._heading = None
        else:
            self._connections.waits(self)
            self._expect()

    def _expect(self) -> None:
        if self._heading is None:
            self._heading = self._loop.call_later(HEADER_SECONDS, self.abort)

    def eof_received(self) -> bool | None:
        ended: bool | None = self._inner.eof_received()
        return ended

    def pause_writing(self) -> None:
        self._writing = self._loop.call_later(WRITE_SECONDS, self.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._inner.resume_writing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._connections.closed(self)
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is under way whose headers have come."""
        cycle = self._inner.cycle
        return cycle is not None and not cycle.response_complete
