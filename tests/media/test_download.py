import base64
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, media_bytes
from emblema.media.download import fetch, is_public, redirected

LOCAL = MediaLimits(allowed_hosts=frozenset({"127.0.0.1"}), download_seconds=5, download_bytes=100_000, redirects=2)


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
        elif path == "/slow-body":
            self.send_response(200)
            self.send_header("Content-Length", "5000")
            self.end_headers()
            self.drip(b"x" for _ in range(5000))
        elif path == "/slow-head":
            self.drip(b"x" for _ in range(5000))
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


def test_a_name_that_changes_its_mind_gains_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second look-up of a name would say 127.0.0.1; there is no second look-up."""
    asked: list[str] = []

    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        place = "203.0.113.7" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port))]

    reached: list[str] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        reached.append(address[0])
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr("emblema.media.download.is_public", lambda address: not address.is_loopback)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(MediaError, match="could not be fetched"):
        fetch(site.address("/picture", "rebinding.example"))
    assert asked == ["rebinding.example"]
    assert reached == ["203.0.113.7"]


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


@pytest.mark.parametrize("path", ["/slow-body", "/slow-head"])
def test_bytes_that_drip_are_cut_at_the_deadline(site: Site, path: str) -> None:
    limits = MediaLimits(allowed_hosts=LOCAL.allowed_hosts, download_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(MediaError, match=r"longer than 0\.3 s"):
        fetch(site.address(path), limits)
    assert time.monotonic() - started < 2


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = MediaLimits(allowed_hosts=LOCAL.allowed_hosts, download_seconds=0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for scheme in ("http", "https"):
            with pytest.raises(MediaError, match=r"longer than 0\.3 s"):
                fetch(f"{scheme}://127.0.0.1:{port}/", limits)
    with pytest.raises(MediaError, match="could not be fetched"):
        fetch(f"http://127.0.0.1:{port}/", limits)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(2) or [])
    with pytest.raises(MediaError, match="Looking up"):
        fetch("http://slow.example/", limits)


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
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2002:a00:1::", False),
    ],
)
def test_which_addresses_are_public(text: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(text)) is public
