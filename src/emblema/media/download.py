"""Downloads, guarded: public addresses only, and never more bytes, hops or seconds than the limits allow.

A host's name is looked up once, every address of it is checked, and the connection goes to a checked address,
so a name that changes its mind between check and use (DNS rebinding) gains nothing. Proxies are not used.
"""

import base64
import binascii
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

from emblema.errors import MediaError
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_PIECE = 65_536

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


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
    target = url
    for _ in range(limits.redirects + 1):
        outcome = _request(_parse(target), deadline, limits)
        if isinstance(outcome, bytes):
            return outcome
        target = redirected(target, outcome)
    raise MediaError(f"{_short(url)} redirects more than {limits.redirects} times.")


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


def is_public(address: Address) -> bool:
    """Return whether an address is in the public internet, also the IPv4 address inside a translated IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _TRANSLATED:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        tunnelled = [address.sixtofour, *(address.teredo or ())]
        if address.is_site_local or not all(is_public(part) for part in tunnelled if part is not None):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


@dataclass(frozen=True, slots=True)
class _Target:
    """One hop: where to connect and what to ask for."""

    url: str
    secure: bool
    host: str
    port: int
    path: str


class _Deadline:
    """The moment at which a download has to be over, all hops together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self, url: str) -> float:
        """Seconds left, more than none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise MediaError(f"{_short(url)} took longer than {self.seconds:g} s.")
        return left

    @contextmanager
    def watching(self, connection: "_PinnedConnection") -> Iterator[None]:
        """Cut the connection at the deadline: a socket's own time-out starts again at each byte that drips in."""
        timer = threading.Timer(self.left(connection.target.url), connection.cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class _PinnedConnection(HTTPConnection):
    """A connection to addresses that were checked before; the certificate is checked against the host's name."""

    def __init__(self, target: _Target, addresses: list[str], deadline: _Deadline) -> None:
        super().__init__(target.host, target.port)
        self.target = target
        self.addresses = addresses
        self.deadline = deadline
        self.was_cut = False

    def connect(self) -> None:
        failure: OSError | None = None
        for address in self.addresses:
            try:
                plain = socket.create_connection((address, self.target.port), self.deadline.left(self.target.url))
                break
            except OSError as error:
                failure = error
        else:
            raise failure or OSError("no address")
        self.sock = plain
        if self.target.secure:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self.target.host)

    def cut(self) -> None:
        """End every read and write in progress; called from the timer's thread."""
        self.was_cut = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # Already closed: nothing is left to cut.


def _request(target: _Target, deadline: _Deadline, limits: MediaLimits) -> bytes | str:
    """Request one address; return the body, or where a redirect points to."""
    connection = _PinnedConnection(target, _addresses(target, deadline, limits), deadline)
    name = _short(target.url)
    try:
        with deadline.watching(connection):
            headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "emblema", "Connection": "close"}
            connection.request("GET", target.path, headers=headers)
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                place = response.headers.get("Location")
                if place is None:
                    raise MediaError(f"{name} redirects to nowhere.")
                return place
            if response.status != 200:
                raise MediaError(f"{name} answered {response.status} {_one_line(response.reason)}.")
            return _body(response, name, deadline, target.url, limits)
    except (OSError, HTTPException, ValueError) as error:
        if connection.was_cut or isinstance(error, TimeoutError):
            raise MediaError(f"{name} took longer than {deadline.seconds:g} s.") from error
        raise MediaError(f"{name} could not be fetched ({_one_line(error) or type(error).__name__}).") from error
    finally:
        connection.close()


def _body(response: HTTPResponse, name: str, deadline: _Deadline, url: str, limits: MediaLimits) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaError(f"{name} came packed with {_one_line(encoding)}, though plain bytes were asked for.")
    promised = response.length
    too_large = f"{name} is larger than {limits.download_bytes} bytes (MediaLimits.download_bytes)."
    if promised is not None and promised > limits.download_bytes:
        raise MediaError(too_large)
    body = bytearray()
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > limits.download_bytes:
            raise MediaError(too_large)
        deadline.left(url)
    deadline.left(url)
    if promised is not None and len(body) < promised:
        raise MediaError(f"{name} ended after {len(body)} of {promised} bytes.")
    if not body:
        raise MediaError(f"{name} is empty.")
    return bytes(body)


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

    def ask() -> None:
        try:
            rows = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            answer.put(list(dict.fromkeys(str(row[4][0]) for row in rows)))
        except (OSError, ValueError) as error:
            answer.put(error)

    threading.Thread(target=ask, name="emblema-look-up", daemon=True).start()
    try:
        found = answer.get(timeout=deadline.left(target.url))
    except queue.Empty as error:
        raise MediaError(f"Looking up the host {target.host!r} took longer than {deadline.seconds:g} s.") from error
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
