"""Running a server: its socket and its end."""

import ctypes
import gc
import socket
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from emblema.errors import EmblemaError
from emblema.serve.connections import ClientConnection, Connections
from emblema.serve.logs import log_lines
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import BACKLOG, address_of

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of malloc.h."""
_LARGE_BLOCK = 8 * 2**20


def run(listening: socket.socket, settings: ServeSettings) -> None:
    """Serve on a socket until the process is told to end; `EmblemaError` where the model cannot be loaded.

    The address is printed once the server answers there.
    """
    from emblema.serve.app import make_app

    begin(settings)
    failures: list[BaseException] = []

    def loaded(error: BaseException | None) -> None:
        if error is None:
            tell_ready(listening, settings)
            return
        failures.append(error)
        server.should_exit = True

    config = make_config(settings, make_app(settings, loaded))
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    if failures:
        raise EmblemaError(f"the server could not start: {failures[0]}") from failures[0]


def begin(settings: ServeSettings) -> None:
    """Have the process write a server's lines, and keep no memory that it does not use."""
    log_lines("emblema", "uvicorn.error", level=settings.log_level)
    give_large_blocks_back()


def tell_ready(listening: socket.socket, settings: ServeSettings) -> None:
    """Print the address of a server that answers now, and that has loaded all that stays."""
    collect_beside_program()
    host, port = listening.getsockname()[:2]
    print(f"ready on {address_of(host, port, settings.ssl_certfile is not None)}", flush=True)


def make_config(settings: ServeSettings, app: FastAPI, **options: Any) -> uvicorn.Config:
    """Return how an application is served: within bounds on connections, headers, and the time to end."""
    return uvicorn.Config(
        app,
        http=partial(ClientConnection, Connections(settings.connections)),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        h11_max_incomplete_event_size=64 * 2**10,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        **options,
    )


def give_large_blocks_back() -> None:
    """Have large blocks of memory given back to the system as soon as they are free, where the C library can.

    Left alone, glibc keeps blocks of up to 32 MB in the heap of the thread that freed them. Pillow's have 16 MB each:
    the heaps of all threads that read pictures together outgrow what requests may hold.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def collect_beside_program() -> None:
    """Leave all that the process holds now, which stays to its end, out of later collections of cycles.

    Python collects cycles that have lived for a while only once they are a quarter of all objects. Beside the program
    and its model that takes many minutes, in which requests whose clients have left hold their bodies and pictures.
    """
    gc.collect()
    gc.freeze()
    # Counts what is left: a quarter of that is collected from now on.
    gc.collect()
