"""How much memory requests take for bodies and decoded media: bounded for one, for a tenant and for a server."""

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from emblema.errors import BusyError
from emblema.serve.faults import ServeError
from emblema.work_pool import RETRY_SECONDS

BODY_COPIES = 3
"""A body is held as it came, as what was read of it, and while its media are taken out of it."""
_BEGINNING = 64 * 2**20
"""Bytes that a request counts for while its media are read, so that few enough are read at once."""


@dataclass(frozen=True, slots=True)
class ByteBounds:
    """Bytes that may be held.

    Attributes:
        request: of decoded media, for one request.
        tenant: of decoded media, for one tenant's requests together; half as much for their bodies.
        server: as much for all requests together.
    """

    request: int
    tenant: int
    server: int


class HeldBytes:
    """What all requests of a server hold. Any thread may use it.

    Args:
        bounds: on it.
    """

    def __init__(self, bounds: ByteBounds) -> None:
        self.bounds = bounds
        self.decoded = _TenantBytes(bounds.tenant, bounds.server)
        # Apart, so that bodies that wait to be read never take the room in which they are.
        self.bodies = _TenantBytes(bounds.tenant // 2, bounds.server // 2)

    def open(self, owner: str) -> "Holding":
        """Return what a request of a tenant holds: nothing yet."""
        return Holding(self, owner)

    @property
    def total(self) -> int:
        """Bytes that are held."""
        return self.decoded.total + self.bodies.total


class _TenantBytes:
    """Bytes of one kind by tenant, within what one tenant and all of them may have."""

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Future[None]]] = OrderedDict()

    @property
    def total(self) -> int:
        with self._lock:
            return self._held.total()

    def try_add(self, owner: str, size: int) -> bool:
        """Add bytes, if there is room for them."""
        with self._lock:
            return self._add(owner, size)

    def _add(self, owner: str, size: int) -> bool:
        if self._held[owner] + size > self._of_one or self._held.total() + size > self._of_all:
            return False
        self._held[owner] += size
        return True

    def remove(self, owner: str, size: int) -> None:
        """Take bytes away, and let the first of every tenant that waits look whether there is room."""
        with self._lock:
            self._held[owner] -= size
            if not self._held[owner]:
                del self._held[owner]
        self._wake()

    async def wait_to_add(self, owner: str, size: int) -> None:
        """Add bytes once there is room for them; tenants wait for their own, and for the server."""
        while True:
            future: Future[None] = Future()
            with self._lock:
                if self._add(owner, size):
                    break
                self._waiting.setdefault(owner, deque()).append(future)
            try:
                await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                self._wake()
                raise
        # Whoever is next may find room too.
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            firsts = []
            for owner, waiting in list(self._waiting.items()):
                if self._held[owner] < self._of_one and self._held.total() < self._of_all:
                    firsts.append(waiting.popleft())
                    del self._waiting[owner]
                    if waiting:
                        self._waiting[owner] = waiting
        for future in firsts:
            if future.set_running_or_notify_cancel():
                future.set_result(None)


class Holding:
    """What one request holds, until its block ends. Any thread may add to it.

    Args:
        held: of the server.
        owner: whose request it is.
    """

    def __init__(self, held: HeldBytes, owner: str) -> None:
        self._held, self._owner = held, owner
        self._lock = threading.Lock()
        self._body = self._decoded = self._begun = 0
        self._over = False

    def take_body(self, size: int) -> None:
        """Count bytes of a body as they come.

        Raises:
            BusyError: the tenant, or the server, holds too much.
        """
        with self._lock:
            self._take(self._held.bodies, BODY_COPIES * size)
            self._body += BODY_COPIES * size

    @contextmanager
    def keeping(self, size: int) -> Iterator[None]:
        """Count the bytes of a file while it is decoded; errors as `take_body`."""
        with self._lock:
            self._take(self._held.bodies, size)
        try:
            yield
        finally:
            self._held.bodies.remove(self._owner, size)

    async def begin(self) -> None:
        """Wait until there is room to read media, and count for some of it from now on."""
        if not self._begun:
            size = min(_BEGINNING, self._held.bounds.request)
            await self._held.decoded.wait_to_add(self._owner, size)
            with self._lock:
                self._begun = size

    def take_decoded(self, size: int) -> None:
        """Count decoded bytes, before they are there.

        Raises:
            ServeError: they are more than one request may have.
            BusyError: the tenant, or the server, holds too much.
        """
        with self._lock:
            decoded, most = self._decoded + size, self._held.bounds.request
            if decoded > most:
                raise ServeError(
                    413,
                    f"the request's media take {decoded} bytes or more when they are decoded, {most} may come at once: "
                    "send less or smaller ones",
                    "media_too_large",
                )
            self._take(self._held.decoded, max(0, decoded - max(self._begun, self._decoded)))
            self._decoded = decoded

    @property
    def decoded(self) -> int:
        """Bytes of decoded media that are counted."""
        return self._decoded

    def exchange(self, size: int, smaller: int) -> None:
        """Count other bytes in the place of decoded ones, which are let go; errors as `take_decoded`."""
        with self._lock:
            before = max(self._begun, self._decoded)
            self._decoded -= size
            spare = before - max(self._begun, self._decoded)
        self._held.decoded.remove(self._owner, spare)
        self.take_decoded(smaller)

    def settle(self) -> None:
        """Count what is decoded alone: no media are read any more."""
        with self._lock:
            spare, self._begun = max(0, self._begun - self._decoded), 0
        self._held.decoded.remove(self._owner, spare)

    def drop_decoded(self) -> None:
        """Note that nothing decoded is held any more."""
        with self._lock:
            size, self._begun, self._decoded = max(self._begun, self._decoded), 0, 0
        self._held.decoded.remove(self._owner, size)

    def _take(self, held: _TenantBytes, size: int) -> None:
        if self._over:
            raise ServeError(499, "the request has ended", "cancelled")
        if not held.try_add(self._owner, size):
            raise BusyError("too many bytes of requests are held already: ask again soon", RETRY_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_decoded()
        with self._lock:
            size, self._body, self._over = self._body, 0, True
        self._held.bodies.remove(self._owner, size)
