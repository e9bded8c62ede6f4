"""What a server finds out before it loads its model: its name, its keys, its address, its strategy.

Nothing here needs torch but a strategy that is not the usual one.
"""

import socket
import ssl

from emblema.errors import EmblemaError
from emblema.models.names import check_model_name
from emblema.serve.keys import KeyRing, check_open
from emblema.serve.settings import ServeSettings

USUAL_STRATEGY = str(ServeSettings.model_fields["strategy"].default)
BACKLOG = 1_024
"""Connections that the system holds until they are taken."""


def check_start(settings: ServeSettings) -> None:
    """Refuse what a server could not start with, but for its address.

    Raises:
        EmblemaError: the model's name can be none, others would be let in without a key, the certificate is none, or
            there is no such strategy.
    """
    check_model_name(settings.model)
    check_certificate(settings)
    check_open(KeyRing(settings.folder), settings)
    if settings.strategy != USUAL_STRATEGY:
        from emblema.link.strategies.registry import parse

        parse(settings.strategy)


def check_certificate(settings: ServeSettings) -> None:
    """Refuse a certificate that cannot be read, or has no key that fits, with `EmblemaError`."""
    if settings.ssl_certfile is None and settings.ssl_keyfile is not None:
        raise EmblemaError("ssl_keyfile is given without ssl_certfile: give both")
    try:
        if settings.ssl_certfile is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except OSError as error:
        raise EmblemaError(f"{settings.ssl_certfile} is no certificate with its key: {error}") from error


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one.

    Raises:
        EmblemaError: the address is taken, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends small pieces of a reply at once; others wait for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise EmblemaError(
            f"{address_of(host, port)} cannot be listened at ({error.strerror or error}): end what listens there, or "
            "choose another address with --host and --port"
        ) from error
    return listening


def check_address(host: str, port: int) -> None:
    """Refuse an address that another process will listen at, where that would fail; errors as `listen_at`."""
    listen_at(host, port).close()


def address_of(host: str, port: int, secure: bool = False) -> str:
    """Return the address that browsers take, without a path."""
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
