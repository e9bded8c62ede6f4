"""Servers that downloads are tried on: a site, and ones that drip, say nothing or take no connection."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from emblema.media import MediaLimits

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


def named(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Have names looked up give these addresses, one list after the other; return the names that were asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        places = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr("emblema.media.download.socket.getaddrinfo", look_up)
    return asked


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


def trust(monkeypatch: pytest.MonkeyPatch, folder: Path) -> trustme.CA:
    """Make a certificate authority that this process trusts for the test."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "authority.pem"))
    return authority
