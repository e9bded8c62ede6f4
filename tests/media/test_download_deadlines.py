"""A download ends at its deadline, whatever a server, a name or a redirect does."""

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from emblema.errors import MediaError
from emblema.media import MediaLimits
from emblema.media.download import fetch
from tests.media.sites import LOCAL, Site, accepting, deaf, dripping, serving, silent, trust


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
