import asyncio
import base64
import gzip
import ipaddress
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, media_bytes
from emblema.media.download import fetch, is_public, redirected

LOCAL = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}), download_seconds=30, download_bytes=100_000, redirects=2)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RAW = {
    "/chunked": CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "/chunked-cut": CHUNKED + b"3\r\nabc\r\nff\r\nde",
    "/nonsense": b"\0\1\2 no http at all\r\n\r\n",
    "/status": b"HTTP/1.1 99999 \x1b[31m\r\n\r\n",
    "/reason": b"HTTP/1.1 500 no\x0bgood\x85\x1b[31m\r\n\r\n",
}
"""Answers as a server sends them, by path."""


class Site(ThreadingHTTPServer):
    """A local server; `served` counts the requests that reached it."""

    daemon_threads = True
    picture = b""
    served = 0

    def address(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Site
    places = {"space": b"/a b\xc3\xa9", "octets": b"/a%20b\xc3\xa9", "none": b""}

    def log_message(self, *_: object) -> None:
        return

    def answer(self, body: bytes = b"", status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def drip(self, pieces: Iterator[bytes]) -> None:
        try:
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            return

    def do_GET(self) -> None:
        self.server.served += 1
        path, _, query = self.path.partition("?")
        name, _, data = query.partition(":")
        answers: dict[str, Callable[[], None]] = {
            "/picture": lambda: self.answer(self.server.picture, Content_Type="text/html"),
            "/echo": lambda: self.answer(query.encode()),
            "/text": lambda: self.answer(b"<html>no picture</html>", Content_Type="image/png"),
            "/empty": self.answer,
            "/missing": lambda: self.answer(b"nothing", 404),
            "/large": lambda: self.answer(bytes(10), length=100_001),
            "/short": lambda: self.answer(b"abc", length=10),
            "/packed": lambda: self.answer(b"abc", Content_Encoding="gzip"),
            "/packing": lambda: self.answer(bytes.fromhex(data), Content_Encoding=name),
            "/a%20b%C3%A9": lambda: self.answer(b"spelled"),
            "/nowhere": lambda: self.answer(status=302),
            "/redirect": lambda: self.answer(status=302, Location=query),
            "/again": lambda: self.answer(status=302, Location=self.path),
            "/host": lambda: self.answer(self.headers["Host"].encode()),
        }
        if path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.drip(bytes(50_000) for _ in range(1000))
        elif path == "/raw":
            moved = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nlOcAtIoN:  "
            self.wfile.write(moved + self.places[query] + b" \r\n\r\n")
        elif path in RAW:
            self.wfile.write(RAW[path])
        else:
            answers[path]()


@pytest.fixture
def site(picture: Image.Image, encode: Callable[..., bytes]) -> Iterator[Site]:
    with Site(("127.0.0.1", 0), Handler) as server:
        server.picture = encode(picture)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_allowed_host_is_fetched(site: Site, picture: Image.Image) -> None:
    url = site.address("/picture")
    assert fetch(url, LOCAL) == site.picture
    assert media_bytes(load_image(url, LOCAL)) == media_bytes(picture)
    assert fetch(site.address("/echo?a=1&b=%20c#part"), LOCAL) == b"a=1&b=%20c"
    assert fetch(site.address("/chunked"), LOCAL) == b"abcde"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "10.0.0.1"],
)
def test_private_addresses_are_refused_and_never_reached(site: Site, host: str) -> None:
    with pytest.raises(MediaError, match="private|cannot be found"):
        fetch(site.address("/picture", host))
    assert site.served == 0


def test_a_redirect_to_a_private_address_is_refused(site: Site) -> None:
    with pytest.raises(MediaError, match="private"):
        fetch(site.address(f"/redirect?{site.address('/picture', 'localhost')}"), LOCAL)
    assert site.served == 1
    for place in ("file:///etc/passwd", "data:text/plain,abc", "gopher://127.0.0.1/"):
        with pytest.raises(MediaError, match="only http"):
            fetch(site.address(f"/redirect?{place}"), LOCAL)


def test_redirects_are_followed_and_counted(site: Site) -> None:
    assert fetch(site.address("/redirect?/redirect?picture"), LOCAL) == site.picture
    assert fetch(site.address(f"/redirect?{site.address('/picture')}"), LOCAL) == site.picture
    with pytest.raises(MediaError, match="more than 2 times"):
        fetch(site.address("/redirect?/redirect?/redirect?/picture"), LOCAL)
    with pytest.raises(MediaError, match="nowhere"):
        fetch(site.address("/nowhere"), LOCAL)


@pytest.mark.parametrize(
    ("url", "place", "target"),
    [
        ("https://a.example/x/y", "z?q=1", "https://a.example/x/z?q=1"),
        ("https://a.example/", "//b.example/", "https://b.example/"),
        ("https://a.example/", "HTTPS://b.example/", "https://b.example/"),
        ("http://a.example/", "http://b.example/", "http://b.example/"),
        ("http://a.example/", "https://b.example/", "https://b.example/"),
    ],
)
def test_where_a_redirect_leads(url: str, place: str, target: str) -> None:
    assert redirected(url, place) == target


@pytest.mark.parametrize(
    ("url", "place", "message"),
    [
        ("https://a.example/", "http://a.example/", "from https to 'http://a.example/': give"),
        ("HTTPS://a.example/", "HTTP://a.example/?key=secret", "from https to 'HTTP://a.example/': give"),
        ("https://a.example/", "ht\ntp://a.example/", "from https to"),
        ("http://a.example/", "http://[::1", "cannot be read"),
    ],
)
def test_where_no_redirect_may_lead(url: str, place: str, message: str) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        redirected(url, place)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("query", ["space", "octets"])
def test_a_redirect_is_followed_as_the_server_spells_it(site: Site, query: str) -> None:
    """curl and browsers encode what has no place in an address; header names are in any case."""
    assert fetch(site.address(f"/raw?{query}"), LOCAL) == b"spelled"
    port = site.server_port
    for place in (f"//127.0.0.1:{port}/picture", f"HTTP://127.0.0.1:{port}/picture", "./x/../picture", "/picture#part"):
        assert fetch(site.address(f"/redirect?{place}"), LOCAL) == site.picture
    with pytest.raises(MediaError, match="redirects more than 2 times"):
        fetch(site.address("/raw?none"), LOCAL)


def test_letters_of_other_scripts_in_an_address_are_encoded(site: Site) -> None:
    assert fetch(site.address("/echo?naïve"), LOCAL) == b"na%C3%AFve"


def packing(site: Site, name: str, data: bytes) -> str:
    return site.address(f"/packing?{name}:{data.hex()}")


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
        ("gzip", lambda data: gzip.compress(data) + bytes(8)),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", bytes),
    ],
)
def test_what_a_server_packs_unasked_is_unpacked(site: Site, name: str, pack: Callable[[bytes], bytes]) -> None:
    assert fetch(packing(site, name, pack(site.picture)), LOCAL) == site.picture


def test_what_is_packed_is_within_the_limits_and_whole(site: Site) -> None:
    for name, data, message in [
        ("gzip", gzip.compress(bytes(100_001)), "larger than 100000 bytes"),
        ("gzip", gzip.compress(bytes(20_000_000)), "larger than 100000 bytes"),
        ("gzip", gzip.compress(site.picture)[:-20], "packed with gzip or deflate and cannot be unpacked"),
        ("gzip", gzip.compress(site.picture)[:-1] + b"x", "cannot be unpacked"),
        ("br", site.picture, "packed with br"),
        ("gzip,gzip", site.picture, "packed with gzip,gzip"),
        ("gzip", gzip.compress(b""), "is empty"),
    ]:
        with pytest.raises(MediaError, match=message):
            fetch(packing(site, name, data), LOCAL)
    assert len(fetch(packing(site, "gzip", gzip.compress(bytes(100_000))), LOCAL)) == 100_000


def test_a_redirect_to_a_broken_address(site: Site) -> None:
    with pytest.raises(MediaError, match="redirects to an address that cannot be read"):
        fetch(site.address("/redirect?http://[::1"), LOCAL)


@pytest.mark.parametrize("path", ["/status", "/reason"])
def test_what_a_server_says_is_told_on_one_printable_line(site: Site, path: str) -> None:
    with pytest.raises(MediaError) as caught:
        fetch(site.address(path), LOCAL)
    assert str(caught.value).isprintable()


def named(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Have names looked up give these addresses, one list after the other; return the names that were asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        places = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr("emblema.media.download.socket.getaddrinfo", look_up)
    return asked


def test_a_name_that_changes_its_mind_gains_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second look-up of a name would say 127.0.0.1; there is no second look-up."""
    monkeypatch.setattr("emblema.media.download.is_public", lambda address: str(address) == "127.0.0.2")
    asked = named(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
    with Site(("127.0.0.2", site.server_port), Handler) as checked:
        threading.Thread(target=checked.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        host = f"rebinding.example:{site.server_port}"
        assert fetch(f"http://{host}/host") == host.encode()
        checked.shutdown()
    assert asked == ["rebinding.example"]
    assert (checked.served, site.served) == (1, 0)


def test_a_redirect_is_looked_up_and_checked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.media.download.is_public", lambda address: not address.is_private)
    asked = named(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
    limits = MediaLimits(allowed_hosts=frozenset({"first.example"}), download_seconds=30)
    with pytest.raises(MediaError, match=r"second\.example.*10\.0\.0\.1.*--set allowed_hosts=second\.example`"):
        fetch(site.address("/redirect?http://second.example/", "first.example"), limits)
    assert asked == ["first.example", "second.example"]


@pytest.mark.slow
def test_an_address_that_does_not_answer_leaves_time_for_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.media.download.is_public", lambda address: True)
    named(monkeypatch, ["127.0.0.9", "127.0.0.1"])
    assert fetch(site.address("/picture", "two.example")) == site.picture
    with deaf() as server, Site(("127.0.0.2", port := server.getsockname()[1]), Handler) as second:
        threading.Thread(target=second.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        named(monkeypatch, ["127.0.0.1", "127.0.0.2"])
        assert fetch(f"http://two.example:{port}/echo?a", MediaLimits(download_seconds=6)) == b"a"
        second.shutdown()


def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert fetch(site.address("/picture"), LOCAL) == site.picture


def test_a_caller_with_an_event_loop_may_fetch(site: Site) -> None:
    async def run() -> bytes:
        return fetch(site.address("/picture"), LOCAL)

    assert asyncio.run(run()) == site.picture


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 80)) for place in ("8.8.8.8", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    with pytest.raises(MediaError, match=r"192\.168\.0\.1"):
        fetch("http://two.example/")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/text", "not a picture"),
        ("/empty", "empty"),
        ("/missing", "404"),
        ("/large", "larger"),
        ("/endless", "larger"),
        ("/short", "3 of 10"),
        ("/chunked-cut", "could not be fetched"),
        ("/packed", "gzip"),
        ("/nonsense", "could not be fetched"),
    ],
)
def test_answers_that_are_no_good(site: Site, path: str, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        load_image(site.address(path), LOCAL)


@contextmanager
def deaf() -> Iterator[socket.socket]:
    """A server whose queue of connections is full: the next attempt gets no answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server


def accepting(server: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Give each connection to `answer`, in a thread, until the server is shut down."""

    def talk(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            answer(connection)

    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=talk, args=(connection,), daemon=True).start()


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection is given to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accepting, args=(server, answer), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def dripping(data: bytes) -> Callable[[socket.socket], None]:
    """Send bytes one by one, five hundred a second."""

    def answer(connection: socket.socket) -> None:
        connection.recv(65_536)
        for place in range(len(data)):
            connection.sendall(data[place : place + 1])
            time.sleep(0.002)

    return answer


def silent(connection: socket.socket) -> None:
    time.sleep(20)


def refused_in_time(url: str, seconds: float = 0.5) -> None:
    began = time.monotonic()
    with pytest.raises(MediaError, match="longer than"):
        fetch(url, MediaLimits(allowed_hosts=LOCAL.allowed_hosts, download_seconds=seconds, redirects=1_000_000))
    assert time.monotonic() - began < seconds + 6


HELLO = bytes.fromhex("160303400002003ffc0303")
"""What a TLS server begins with: a record of 16 kB, with a hello."""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_nobody_takes_is_cut_at_the_deadline(scheme: str) -> None:
    with deaf() as server:
        refused_in_time(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_says_nothing_is_cut_at_the_deadline(scheme: str) -> None:
    with serving(silent) as port:
        refused_in_time(f"{scheme}://127.0.0.1:{port}/")


def test_a_handshake_that_drips_is_cut_at_the_deadline() -> None:
    with serving(dripping(HELLO + bytes(100_000))) as port:
        refused_in_time(f"https://127.0.0.1:{port}/")


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"y" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\ny\r\n" * 5000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    ],
    ids=["headers", "one header", "body", "chunks", "informations"],
)
def test_an_answer_that_drips_is_cut_at_the_deadline(answer: bytes) -> None:
    with serving(dripping(answer)) as port:
        refused_in_time(f"http://127.0.0.1:{port}/")


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_an_end_that_drips_is_cut_at_the_deadline(
    secure: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under TLS too, where the end of a connection is a conversation of its own."""
    authority = trust(monkeypatch, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def answer(connection: socket.socket) -> None:
        wrapped = context.wrap_socket(connection, server_side=True) if secure else connection
        dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"y" * 20_000)(wrapped)

    with serving(answer) as port:
        refused_in_time(f"{'https' if secure else 'http'}://127.0.0.1:{port}/", 1.0)


@pytest.mark.slow
def test_a_slow_connection_and_a_slow_handshake_leave_no_more_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The connection takes a second, the handshake passes the deadline, then the answer drips: 16.9 s, 1.5 allowed."""
    authority = trust(monkeypatch, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def answer(connection: socket.socket) -> None:
        time.sleep(0.8)
        secure = context.wrap_socket(connection, server_side=True)
        dripping(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5000)(secure)

    with deaf() as server:
        threading.Timer(0.3, accepting, (server, answer)).start()
        refused_in_time(f"https://127.0.0.1:{server.getsockname()[1]}/", 1.5)
        server.shutdown(socket.SHUT_RDWR)


def test_redirects_without_end_are_cut_at_the_deadline(site: Site) -> None:
    refused_in_time(site.address("/again"))
    with pytest.raises(MediaError, match="more than 2 times"):
        fetch(site.address("/again"), LOCAL)


def test_headers_without_end_are_refused() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X: " + b"y" * 60_000 + b"\r\n")

    with serving(answer) as port, pytest.raises(MediaError, match="could not be fetched"):
        fetch(f"http://127.0.0.1:{port}/", LOCAL)


def test_a_look_up_is_cut_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(20) and [])
    began = time.monotonic()
    with pytest.raises(MediaError, match="Looking up"):
        fetch("http://slow.example/", MediaLimits(download_seconds=0.3))
    assert time.monotonic() - began < 10
    ended.set()


@pytest.mark.slow
def test_look_ups_that_do_not_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, asked = threading.Event(), []

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        blocked.wait(20)
        return []

    monkeypatch.setattr("emblema.media.download._LOOK_UPS", threading.BoundedSemaphore(2))
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for number in range(4):
        with pytest.raises(MediaError, match="Looking up"):
            fetch(f"http://slow-{number}.example/", MediaLimits(download_seconds=1))
    blocked.set()
    assert asked == ["slow-0.example", "slow-1.example"]


def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MediaError, match="could not be fetched"):
        fetch(f"http://127.0.0.1:{port}/", LOCAL)


def trust(monkeypatch: pytest.MonkeyPatch, folder: Path) -> trustme.CA:
    """Make a certificate authority that this process trusts for the test."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "authority.pem"))
    return authority


def test_the_certificate_has_to_be_that_of_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connection goes to an address; the handshake names the host, and its certificate is checked against it."""
    authority = trust(monkeypatch, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("good.example").configure_cert(context)
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    monkeypatch.setattr("emblema.media.download.is_public", lambda address: True)
    named(monkeypatch, ["127.0.0.1"])

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            request = secure.recv(65_536)
            host = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"host:"))
            secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(host), host))

    with serving(answer) as port:
        assert fetch(f"https://good.example:{port}/").lower() == f"host: good.example:{port}".encode()
        for url in (f"https://other.example:{port}/", f"https://127.0.0.1:{port}/"):
            with pytest.raises(MediaError, match="could not be fetched.*ertificate"):
                fetch(url)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(MediaError, match="could not be fetched.*ertificate"):
            fetch(f"https://good.example:{port}/")
    assert names[:2] == ["good.example", "other.example"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/a.png", "only http"),
        ("file:///etc/passwd", "only http"),
        ("http://", "no host"),
        ("http:///a.png", "no host"),
        ("http://user:word@example.org/", "password"),
        ("http://example.org:port/", "cannot|not an address"),
        ("http://example.org:99999/", "not an address"),
        ("http://[::1/", "not an address"),
        ("http://example.org/a b", "percent"),
        ("http://example.org/a\r\nHost: other", "percent|not an address|removed|cannot be found|private"),
        ("http://" + "a" * 70 + ".example/", "not an address"),
        ("http://nowhere.invalid/", "cannot be found"),
        ("http://example.org\0/", "no host has"),
        ("http://exam ple.org/", "no host has"),
        ("http://a.example\\b/", "no host has"),
    ],
)
def test_addresses_that_make_no_sense(url: str, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        fetch(url, MediaLimits(download_seconds=10))


def test_messages_do_not_repeat_the_query(site: Site) -> None:
    with pytest.raises(MediaError) as caught:
        fetch(site.address("/missing?token=secret"), LOCAL)
    assert "secret" not in str(caught.value)


def test_data_addresses(picture: Image.Image, encode: Callable[..., bytes]) -> None:
    text = base64.b64encode(encode(picture)).decode()
    assert media_bytes(load_image(f"data:image/png;base64,{text}")) == media_bytes(picture)
    assert media_bytes(load_image(f"DATA:;BASE64,{text[:40]}\n{text[40:]}")) == media_bytes(picture)
    assert fetch("data:,a%20b") == b"a b"
    for url, message in [
        ("data:image/png;base64", "comma"),
        ("data:;base64,@@@", "base64"),
        ("data:;base64,abc", "base64"),
        ("data:,", "empty"),
        ("data:,\ud800", "no text"),
        ("data:;base64,\udfff", "no text"),
        (f"data:,{'a' * 1001}", "larger"),
        (f"data:,{'%41' * 1001}", "larger"),
        (f"data:,{'%41' * 2000}", "larger"),
    ]:
        with pytest.raises(MediaError, match=message):
            fetch(url, MediaLimits(download_bytes=1000))


PUBLIC = [
    "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "168.63.129.15", "3fff:1000::1",
    "2001:4860:4860::8888",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff0e::1", "2001:db8::1",
    "168.63.129.16", "192.0.0.192", "192.0.0.9", "100.100.100.200", "192.88.99.1", "192.0.2.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "3fff::1", "3fff:0fff:ffff::1", "2001::1", "2001:2::1",
    "2001:1ff:ffff::1", "2002:808:808::1", "2620:4f:8000::1", "100::1", "100:0:0:1::1", "5f00::1", "fd00:ec2::254",
    "64:ff9b:1::1", "64:ff9b::a83f:8110", "::ffff:168.63.129.16", "::ffff:100.100.100.200", "::8.8.8.8", "4000::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::",
]  # fmt: skip


@pytest.mark.parametrize("text", [*PUBLIC, *PRIVATE])
def test_which_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text)) is (text in PUBLIC)
