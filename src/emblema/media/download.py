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
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote_to_bytes, urljoin, urlsplit

from emblema.errors import MediaError
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits

if TYPE_CHECKING:
    import httpcore2

T = TypeVar("T")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
"""Content encodings that are unpacked."""
_ANY_HEADER = zlib.MAX_WBITS | 32
"""For zlib: the header says whether it is gzip's or its own."""
_HOST = re.compile(r"[A-Za-z0-9._~:%-]+")
"""Characters of names and of addresses, with a zone."""
_GRACE_SECONDS = 1.0
"""A download that is not over so long after its time is left behind: its thread ends by itself."""
_LOOK_UPS = threading.BoundedSemaphore(64)
"""Names that are looked up at once: the system's look-up cannot be ended, and slow ones would pile up."""
_UNICAST_V6, _TRANSLATED = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")
"""All that IANA has given out; and NAT64, whose last four bytes are an IPv4 address."""
_REFUSED = tuple(
    map(
        ip_network,
        # Protocol assignments (192.0.0.192 is Oracle's metadata server), AS112, AMT, relays, and Azure's server for
        # agents; Teredo, ORCHID, drones, 6to4, AS112, documentation.
        ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24", "168.63.129.16/32")
        + ("2001::/23", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
"""Blocks where no medium is, though IANA's registries, or Python's copy of them, call them globally reachable."""


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
    try:
        # A thread of its own, because the caller's may run an event loop already.
        return _begin(lambda: asyncio.run(_fetch(url, limits))).result(limits.download_seconds + _GRACE_SECONDS)
    except TimeoutError as error:
        seconds = f"{limits.download_seconds:g} s"
        raise MediaError(f"{_short(url)} took longer than {seconds} (the limit download_seconds).") from error


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is in the public internet; of an IPv4 address inside an IPv6 one, whether that is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _TRANSLATED:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _UNICAST_V6:
            return False
    return address.is_global and not address.is_multicast and not any(address in block for block in _REFUSED)


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


def _begin(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that nothing waits for when the process ends."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="emblema-download", daemon=True).start()
    return answer


async def _fetch(url: str, limits: MediaLimits) -> bytes:
    deadline = asyncio.get_running_loop().time() + limits.download_seconds
    target = url
    for _ in range(limits.redirects + 1):
        outcome = await _request(target, deadline, limits)
        if isinstance(outcome, bytes):
            return outcome
        target = redirected(target, outcome)
    raise MediaError(f"{_short(url)} redirects more than {limits.redirects} times.")


async def _request(url: str, deadline: float, limits: MediaLimits) -> bytes | str:
    """Request one address; return the body, or where a redirect points to.

    Raises:
        MediaError: as `fetch`.
        TimeoutError: the deadline, a time of the running loop, has passed.
    """
    # Not at the top: it takes longer to import than a picture to decode.
    import httpcore2

    name, target = _short(url), _parse(url)
    host = target.host.decode()
    addresses = await _look_up(host, target.port or 0, deadline, limits.download_seconds)
    refused = next((text for text in addresses if not is_public(ip_address(text.partition("%")[0]))), None)
    if refused is not None and host not in limits.allowed_hosts:
        raise MediaError(
            f"{name} lies in a private or reserved network ({refused}) and is not fetched; a host that you trust can "
            f"be named in allowed_hosts: `emblema serve --set allowed_hosts={host}`."
        )
    port = "" if target.port == {b"http": 80, b"https": 443}[target.scheme] else f":{target.port}"
    headers = [("Host", (f"[{host}]" if ":" in host else host) + port), ("Accept", "*/*"), ("User-Agent", "emblema")]
    headers += [("Accept-Encoding", "identity"), ("Connection", "close")]
    try:
        async with (
            asyncio.timeout_at(deadline),
            httpcore2.AsyncConnectionPool(network_backend=_pinned(addresses, deadline)) as connections,
            connections.stream("GET", target, headers=headers) as response,
        ):
            fields = {key.lower(): value.decode("latin-1").strip() for key, value in response.headers}
            if response.status in _REDIRECTS:
                if b"location" not in fields:
                    raise MediaError(f"{name} redirects to nowhere.")
                return _spelled(fields[b"location"].encode("latin-1"))
            if response.status != 200:
                reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
                raise MediaError(f"{name} answered {response.status} {_one_line(reason)}.")
            return await _body(response, fields, name, limits.download_bytes)
    except httpcore2.TimeoutException as error:
        raise TimeoutError from error
    except TimeoutError:
        raise
    except (OSError, ValueError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise MediaError(f"{name} could not be fetched ({_one_line(error) or type(error).__name__}).") from error


async def _body(response: httpcore2.Response, fields: dict[bytes, str], name: str, most: int) -> bytes:
    import httpcore2

    # Some servers pack what was asked for as plain bytes.
    encoding = fields.get(b"content-encoding", "").lower()
    if encoding not in ("", "identity", *_PACKED):
        raise MediaError(f"{name} came packed with {_one_line(encoding)}, though plain bytes were asked for.")
    promised, body = fields.get(b"content-length", ""), bytearray()
    too_large = MediaError(f"{name} is larger than {most} bytes (the limit download_bytes).")
    if promised.isdecimal() and int(promised) > most:
        raise too_large
    try:
        async for piece in response.aiter_stream():
            body += piece
            if len(body) > most:
                raise too_large
    except httpcore2.RemoteProtocolError as error:
        whole = f" of {promised}" if promised else ""
        raise MediaError(f"{name} could not be fetched: it ended after {len(body)}{whole} bytes.") from error
    if encoding in _PACKED:
        try:
            body = _unpacked(bytes(body), most + 1)
        except (zlib.error, EOFError) as error:
            raise MediaError(f"{name} came packed with gzip or deflate and cannot be unpacked ({error}).") from error
        if len(body) > most:
            raise too_large
    if not body:
        raise MediaError(f"{name} is empty.")
    return bytes(body)


def _unpacked(packed: bytes, most: int) -> bytearray:
    """Return what gzip or deflate holds, up to a number of bytes; files in gzip's form may follow each other."""
    found, form = bytearray(), _ANY_HEADER
    try:
        zlib.decompressobj(form).decompress(packed, 1)
    except zlib.error:
        # Deflate without a header, as some servers send it under that name.
        form = -zlib.MAX_WBITS
    while packed and len(found) < most:
        decoder = zlib.decompressobj(form)
        found += decoder.decompress(packed, most - len(found))
        if not decoder.eof and len(found) < most:
            raise EOFError("it ended too soon")
        packed, form = decoder.unused_data.lstrip(b"\0"), _ANY_HEADER
    return found


def _spelled(text: bytes) -> str:
    """Return an address in which what has no place there is percent-encoded; others send it as it is."""
    return "".join(chr(byte) if 0x20 < byte < 0x7F else f"%{byte:02X}" for byte in text)


def _pinned(addresses: list[str], deadline: float) -> httpcore2.AsyncNetworkBackend:
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
                share = (deadline - asyncio.get_running_loop().time()) / (len(addresses) - index)
                try:
                    return await httpcore2.AnyIOBackend().connect_tcp(address, port, timeout=max(0.0, share))
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failure = error
            raise failure

    return PinnedBackend()


def _parse(url: str) -> httpcore2.URL:
    """Return the parts of an address, checked; the host in ASCII."""
    import httpcore2

    name = _short(url)
    try:
        parts = urlsplit(url)
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
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    path = "".join(character if character.isascii() else quote(character) for character in path)
    if not path.isascii() or any(character <= " " or character == "\x7f" for character in path):
        raise MediaError(f"{name} holds characters that have to be percent-encoded.")
    port = port or (443 if parts.scheme == "https" else 80)
    return httpcore2.URL(scheme=parts.scheme.encode(), host=host.encode(), port=port, target=path.encode())


async def _look_up(host: str, port: int, deadline: float, seconds: float) -> list[str]:
    """Return the addresses of a name, asked for in a thread: the system's look-up knows no time-out."""
    late = MediaError(f"Looking up the host {host!r} took longer than {seconds:g} s.")

    def ask() -> list[str]:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(row[4][0]) for row in rows))
        finally:
            places.release()

    places, left = _LOOK_UPS, deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimeoutError
    if not places.acquire(timeout=left):
        raise late
    try:
        async with asyncio.timeout_at(deadline):
            found = await asyncio.wrap_future(_begin(ask))
    except TimeoutError:
        raise late from None
    except (OSError, ValueError) as error:
        raise MediaError(f"The host {host!r} cannot be found ({error}).") from error
    if not found:
        raise MediaError(f"The host {host!r} cannot be found (no address).")
    return found


def _inline(url: str, limits: MediaLimits) -> bytes:
    """Return the bytes of a `data:` address (RFC 2397)."""
    head, comma, body = url[5:].partition(",")
    if not comma:
        raise MediaError("A data: address needs a comma before its data.")
    if len(body) > 4 * limits.download_bytes:
        raise MediaError(f"A data: address is larger than {limits.download_bytes} bytes (the limit download_bytes).")
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
        raise MediaError(f"A data: address is larger than {limits.download_bytes} bytes (the limit download_bytes).")
    return data


def _one_line(text: object) -> str:
    """Return what a server sent as one short line of printable characters, for messages."""
    printable = "".join(character if character.isprintable() else " " for character in str(text)[:240])
    return " ".join(printable.split())


def _short(url: str) -> str:
    """Return a short address for messages, without its query, which may hold keys."""
    plain = url.partition("?")[0].partition("#")[0]
    return repr(plain if len(plain) <= 120 else plain[:117] + "…")
