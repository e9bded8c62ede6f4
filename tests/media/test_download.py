import asyncio
import base64
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, media_bytes
from emblema.media.addresses import is_public
from emblema.media.download import fetch, redirected

LOCAL = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}), download_seconds=30, download_bytes=100_000, redirects=2)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Site(ThreadingHTTPServer):
    """A local server; `served` counts the requests that reached it."""

    daemon_threads = True
    picture = b""
    served = 0

    def address(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Site

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
        if path == "/picture":
            self.answer(self.server.picture, Content_Type="text/html")
        elif path == "/echo":
            self.answer(query.encode())
        elif path == "/text":
            self.answer(b"<html>no picture</html>", Content_Type="image/png")
        elif path == "/empty":
            self.answer()
        elif path == "/missing":
            self.answer(b"nothing", 404)
        elif path == "/large":
            self.answer(bytes(10), length=100_001)
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.drip(bytes(50_000) for _ in range(1000))
        elif path == "/chunked":
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )
        elif path == "/chunked-cut":
            self.wfile.write(CHUNKED + b"3\r\nabc\r\nff\r\nde")
        elif path == "/short":
            self.answer(b"abc", length=10)
        elif path == "/packed":
            self.answer(b"abc", Content_Encoding="gzip")
        elif path == "/nonsense":
            self.wfile.write(b"\0\1\2 no http at all\r\n\r\n")
        elif path == "/status":
            self.wfile.write(b"HTTP/1.1 99999 \x1b[31m\r\n\r\n")
        elif path == "/reason":
            self.wfile.write(b"HTTP/1.1 500 no\x0bgood\x85\x1b[31m\r\n\r\n")
        elif path == "/nowhere":
            self.answer(status=302)
        elif path == "/redirect":
            self.answer(status=302, Location=query)
        elif path == "/again":
            self.answer(status=302, Location=self.path)
        elif path == "/host":
            self.answer(self.headers["Host"].encode())

    def do_POST(self) -> None:
        self.answer(status=500)


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
    with pytest.raises(MediaError, match=r"second\.example.*10\.0\.0\.1"):
        fetch(site.address("/redirect?http://second.example/", "first.example"), limits)
    assert asked == ["first.example", "second.example"]


@pytest.mark.slow
def test_an_address_that_does_not_answer_leaves_time_for_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.media.download.is_public", lambda address: True)
    named(monkeypatch, ["127.0.0.9", "127.0.0.1"])
    assert fetch(site.address("/picture", "two.example")) == site.picture
    with deaf() as port, Site(("127.0.0.2", port), Handler) as second:
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
def deaf() -> Iterator[int]:
    """A port whose queue of connections is full: the next attempt gets no answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection is given to `answer`, in a thread."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
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
    with deaf() as port:
        refused_in_time(f"{scheme}://127.0.0.1:{port}/")


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
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as open_sockets:
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())

        def serve() -> None:
            time.sleep(0.3)
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                time.sleep(0.8)
                secure = context.wrap_socket(connection, server_side=True)
                dripping(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5000)(secure)

        threading.Thread(target=serve, daemon=True).start()
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


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff0e::1", False),
        ("2001:db8::1", False),
        ("168.63.129.15", True),
        ("168.63.129.16", False),
        ("192.0.0.192", False),
        ("192.0.0.9", False),
        ("100.100.100.200", False),
        ("169.254.169.254", False),
        ("192.88.99.1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("198.19.255.255", False),
        ("198.51.100.1", False),
        ("203.0.113.1", False),
        ("3fff::1", False),
        ("3fff:0fff:ffff::1", False),
        ("3fff:1000::1", True),
        ("2001::1", False),
        ("2001:2::1", False),
        ("2001:1ff:ffff::1", False),
        ("2001:4860:4860::8888", True),
        ("2002:808:808::1", False),
        ("2620:4f:8000::1", False),
        ("100::1", False),
        ("100:0:0:1::1", False),
        ("5f00::1", False),
        ("fd00:ec2::254", False),
        ("64:ff9b:1::1", False),
        ("64:ff9b::a83f:8110", False),
        ("::ffff:168.63.129.16", False),
        ("::ffff:100.100.100.200", False),
        ("::8.8.8.8", False),
        ("4000::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2002:a00:1::", False),
    ],
)
def test_which_addresses_are_public(text: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(text)) is public
