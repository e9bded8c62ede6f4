"""Which hosts are reached: public addresses and allowed ones, looked up once, with the certificate of the name."""

import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest

from emblema.errors import MediaError
from emblema.media import MediaLimits
from emblema.media.download import fetch, is_public
from tests.media.sites import LOCAL, Handler, Site, deaf, named, serving, trust


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


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 80)) for place in ("8.8.8.8", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    with pytest.raises(MediaError, match=r"192\.168\.0\.1"):
        fetch("http://two.example/")


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
