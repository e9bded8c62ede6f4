"""Downloads, guarded: public addresses only, and never more bytes, hops or seconds than the limits allow.

A host's name is looked up once, every address of it is checked, and the connection goes to a checked address, so a
name that changes its mind between check and use (DNS rebinding) gains nothing. The request and the certificate bear the
name. Proxies are not used. httpcore speaks HTTP, in a thread with an event loop, where one time limit cuts whatever is
waited for: a connection, a handshake, a header, a byte.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import queue
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

from emblema.errors import MediaError
from emblema.media.addresses import is_public
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits

if TYPE_CHECKING:
    import httpcore2

T = TypeVar("T")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HOST = re.compile(r"[A-Za-z0-9._~:%-]+")
"""Characters of names and of addresses, with a zone."""
_GRACE_SECONDS = 1.0
"""A download that is not over so long after its time is left behind: its thread ends by itself."""
_LOOK_UPS = threading.BoundedSemaphore(64)
"""Names that are looked up at once: the system's look-up cannot be ended, and slow ones would pile up."""


def fetch(url: str, limits: MediaLimits = DEFAULT_LIMITS) -> bytes:
    """Fetch the bytes of an http, https or data address.

    Raises:
        MediaError: another scheme, a name or password in the address, a host that cannot be found or lies in a
            private, loopback, link-local, reserved or multicast network and is not in `limits.allowed_hosts`, too many
            redirects or one from https to http, an answer other than 200, or more bytes or seconds than the limits
            allow.
    """
    if url[:5].lower() == "data:":
        return _inline(url, limits)
    deadline = _Deadline(limits.download_seconds)
    return _in_time(url, deadline, lambda: _fetch(url, deadline, limits))


def check_address(url: str, limits: MediaLimits = DEFAULT_LIMITS) -> None:
    """Refuse what is no http or https address, and a host that `fetch` refuses; nothing is sent.

    Raises:
        MediaError: as `fetch`.
    """
    _addresses(_parse(url), _Deadline(limits.download_seconds), limits)


def post(url: str, body: bytes, content_type: str, limits: MediaLimits = DEFAULT_LIMITS) -> int:
    """Send bytes to an http or https address; return the status of the answer. Redirects are not followed.

    Raises:
        MediaError: the address is refused as by `fetch`, the host does not answer, or not within
            `limits.download_seconds`.
    """
    deadline = _Deadline(limits.download_seconds)

    async def send() -> int:
        async with _exchange(_parse(url), deadline, limits, "POST", content_type, body) as response:
            return int(response.status)

    return _in_time(url, deadline, send)


def _in_time(url: str, deadline: _Deadline, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, or give up on it a little after its time."""
    answer: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()

    # A thread of its own, because the caller's may run an event loop already.
    def run() -> None:
        try:
            answer.put(asyncio.run(work()))
        except BaseException as error:
            answer.put(error)

    threading.Thread(target=run, name="emblema-download", daemon=True).start()
    try:
        outcome = answer.get(timeout=deadline.left(url) + _GRACE_SECONDS)
    except queue.Empty:
        raise deadline.passed(url) from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def redirected(url: str, place: str) -> str:
    """Return the address that a redirect from `url` to `place` leads to.

    Raises:
        MediaError: it cannot be read, or leads from https to http, where anybody on the way could change the answer.
    """
    try:
        target = urljoin(url, place)
        downgraded = urlsplit(url).scheme == "https" and urlsplit(target).scheme == "http"
    except ValueError as error:
        raise MediaError(f"{_short(url)} redirects to an address that cannot be read ({error}).") from error
    if downgraded:
        raise MediaError(f"{_short(url)} redirects from https to {_short(target)}: give an address that stays secure.")
    return target


@dataclass(frozen=True, slots=True)
class _Target:
    """One hop: where to connect and what to ask for."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class _Deadline:
    """The moment at which a download has to be over, all hops together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self, url: str) -> float:
        """Seconds left, more than none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise self.passed(url)
        return left

    def passed(self, url: str) -> MediaError:
        return MediaError(f"{_short(url)} took longer than {self.seconds:g} s (MediaLimits.download_seconds).")


async def _fetch(url: str, deadline: _Deadline, limits: MediaLimits) -> bytes:
    target = url
    for _ in range(limits.redirects + 1):
        outcome = await _request(_parse(target), deadline, limits)
        if isinstance(outcome, bytes):
            return outcome
        target = redirected(target, outcome)
    raise MediaError(f"{_short(url)} redirects more than {limits.redirects} times.")


async def _request(target: _Target, deadline: _Deadline, limits: MediaLimits) -> bytes | str:
    """Request one address; return the body, or where a redirect points to."""
    name = _short(target.url)
    async with _exchange(target, deadline, limits, "GET") as response:
        fields = {key.lower(): value.decode("latin-1") for key, value in response.headers}
        if response.status in _REDIRECTS:
            if b"location" not in fields:
                raise MediaError(f"{name} redirects to nowhere.")
            return fields[b"location"]
        if response.status != 200:
            reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
            raise MediaError(f"{name} answered {response.status} {_one_line(reason)}.")
        return await _body(response, fields, name, limits)


@asynccontextmanager
async def _exchange(
    target: _Target, deadline: _Deadline, limits: MediaLimits, method: str, content_type: str = "", body: bytes = b""
) -> AsyncIterator[httpcore2.Response]:
    """Send a request to one address and give the answer's head; what fails inside the block becomes a `MediaError`."""
    # Not at the top: it takes longer to import than a picture to decode.
    import httpcore2

    name = _short(target.url)
    addresses = _addresses(target, deadline, limits)
    location = httpcore2.URL(
        scheme=b"https" if target.secure else b"http",
        host=target.host.encode("ascii"),
        port=target.port,
        target=target.path.encode("ascii"),
    )
    headers = [("Host", target.authority), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
    headers += [("User-Agent", "emblema"), ("Connection", "close")]
    if method == "POST":
        headers += [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    try:
        async with (
            asyncio.timeout(deadline.left(target.url)),
            httpcore2.AsyncConnectionPool(network_backend=_pinned(addresses, deadline)) as connections,
            connections.stream(method, location, headers=headers, content=body or None) as response,
        ):
            yield response
    except (TimeoutError, httpcore2.TimeoutException) as error:
        raise deadline.passed(target.url) from error
    except (OSError, ValueError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise MediaError(f"{name} could not be fetched ({_one_line(error) or type(error).__name__}).") from error


async def _body(response: httpcore2.Response, fields: dict[bytes, str], name: str, limits: MediaLimits) -> bytes:
    import httpcore2

    encoding = fields.get(b"content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaError(f"{name} came packed with {_one_line(encoding)}, though plain bytes were asked for.")
    promised = fields.get(b"content-length", "")
    too_large = f"{name} is larger than {limits.download_bytes} bytes (MediaLimits.download_bytes)."
    if promised.isdecimal() and int(promised) > limits.download_bytes:
        raise MediaError(too_large)
    body = bytearray()
    try:
        async for piece in response.aiter_stream():
            body += piece
            if len(body) > limits.download_bytes:
                raise MediaError(too_large)
    except httpcore2.RemoteProtocolError as error:
        whole = f" of {promised}" if promised else ""
        raise MediaError(f"{name} could not be fetched: it ended after {len(body)}{whole} bytes.") from error
    if not body:
        raise MediaError(f"{name} is empty.")
    return bytes(body)


def _pinned(addresses: list[str], deadline: _Deadline) -> httpcore2.AsyncNetworkBackend:
    """Return what connects to the first of these addresses that answers, whatever name is asked for."""
    import httpcore2

    class PinnedBackend(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            failure: Exception = httpcore2.ConnectError("no address")
            for index, address in enumerate(addresses):
                # An address that does not answer leaves time for the others.
                share = (deadline.end - time.monotonic()) / (len(addresses) - index)
                try:
                    return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout=max(0.0, share))
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failure = error
            raise failure

    return PinnedBackend()


def _parse(url: str) -> _Target:
    name = _short(url)
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode("ascii") if parts.hostname else ""
    except ValueError as error:
        raise MediaError(f"{name} is not an address that can be read ({error}).") from error
    if parts.scheme not in ("http", "https"):
        raise MediaError(f"{name}: only http, https and data addresses are fetched, not {parts.scheme or 'none'}.")
    if not host:
        raise MediaError(f"{name} names no host.")
    if _HOST.fullmatch(host) is None:
        raise MediaError(f"{name} names a host with characters that no host has.")
    if parts.username is not None or parts.password is not None:
        raise MediaError("An address with a name or password in it is not fetched: remove them.")
    secure = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character <= " " or character == "\x7f" for character in path):
        raise MediaError(f"{name} holds characters that have to be percent-encoded.")
    return _Target(url, secure, host, port or (443 if secure else 80), path)


def _addresses(target: _Target, deadline: _Deadline, limits: MediaLimits) -> list[str]:
    """Look the host's addresses up once; all have to be public unless the host is allowed by name."""
    found = _look_up(target, deadline)
    if target.host not in limits.allowed_hosts:
        for text in found:
            if not is_public(ipaddress.ip_address(text.partition("%")[0])):
                raise MediaError(
                    f"{_short(target.url)} lies in a private or reserved network ({text}) and is not fetched; a host "
                    "that you trust can be named in MediaLimits.allowed_hosts."
                )
    return found


def _look_up(target: _Target, deadline: _Deadline) -> list[str]:
    """Addresses of a host's name, asked for in a thread: the system's look-up knows no time-out."""
    answer: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()
    late = MediaError(f"Looking up the host {target.host!r} took longer than {deadline.seconds:g} s.")

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            answer.put(list(dict.fromkeys(str(row[4][0]) for row in rows)))
        except (OSError, ValueError) as error:
            answer.put(error)
        finally:
            places.release()

    places = _LOOK_UPS
    if not places.acquire(timeout=deadline.left(target.url)):
        raise late
    threading.Thread(target=ask, name="emblema-look-up", daemon=True).start()
    try:
        found = answer.get(timeout=deadline.left(target.url))
    except queue.Empty:
        raise late from None
    if isinstance(found, Exception) or not found:
        raise MediaError(f"The host {target.host!r} cannot be found ({found or 'no address'}).")
    return found


def _inline(url: str, limits: MediaLimits) -> bytes:
    """Return the bytes of a `data:` address (RFC 2397)."""
    head, comma, body = url[5:].partition(",")
    if not comma:
        raise MediaError("A data: address needs a comma before its data.")
    if len(body) > 4 * limits.download_bytes:
        raise MediaError(f"A data: address is larger than {limits.download_bytes} bytes (MediaLimits.download_bytes).")
    try:
        data = unquote_to_bytes(body)
    except UnicodeEncodeError as error:
        raise MediaError(f"A data: address holds characters that are no text ({error.reason}).") from error
    if head.lower().replace(" ", "").endswith(";base64"):
        try:
            data = base64.b64decode(b"".join(data.split()), validate=True)
        except binascii.Error as error:
            raise MediaError(f"A data: address holds broken base64 ({error}).") from error
    if not data:
        raise MediaError("A data: address is empty.")
    if len(data) > limits.download_bytes:
        raise MediaError(f"A data: address is larger than {limits.download_bytes} bytes (MediaLimits.download_bytes).")
    return data


def _one_line(text: object) -> str:
    """Return what a server sent as one short line of printable characters, for messages."""
    printable = "".join(character if character.isprintable() else " " for character in str(text)[:240])
    return " ".join(printable.split())


def _short(url: str) -> str:
    """Return a short address for messages, without its query, which may hold keys."""
    plain = url.partition("?")[0].partition("#")[0]
    return repr(plain if len(plain) <= 120 else plain[:117] + "…")
