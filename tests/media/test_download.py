import asyncio
import base64
import gzip
import socket
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_image, media_bytes
from emblema.media.download import fetch, redirected
from tests.media.sites import LOCAL, Site, serving


def test_an_allowed_host_is_fetched(site: Site, picture: Image.Image) -> None:
    url = site.address("/picture")
    assert fetch(url, LOCAL) == site.picture
    assert media_bytes(load_image(url, LOCAL)) == media_bytes(picture)
    assert fetch(site.address("/echo?a=1&b=%20c#part"), LOCAL) == b"a=1&b=%20c"
    assert fetch(site.address("/chunked"), LOCAL) == b"abcde"


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


def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert fetch(site.address("/picture"), LOCAL) == site.picture


def test_a_caller_with_an_event_loop_may_fetch(site: Site) -> None:
    async def run() -> bytes:
        return fetch(site.address("/picture"), LOCAL)

    assert asyncio.run(run()) == site.picture


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


def test_headers_without_end_are_refused() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X: " + b"y" * 60_000 + b"\r\n")

    with serving(answer) as port, pytest.raises(MediaError, match="could not be fetched"):
        fetch(f"http://127.0.0.1:{port}/", LOCAL)


def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MediaError, match="could not be fetched"):
        fetch(f"http://127.0.0.1:{port}/", LOCAL)


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
