"""Running a server: its socket and its end."""

import gc
import socket

import uvicorn

from emblema.errors import EmblemaError
from emblema.serve.app import make_app
from emblema.serve.logs import log_lines
from emblema.serve.settings import ServeSettings

_BACKLOG = 1_024


def run(settings: ServeSettings) -> None:
    """Serve until the process is told to end; `EmblemaError` where the address is taken or the model not loaded."""
    log_lines("emblema", "uvicorn.error")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        raise EmblemaError(f"{settings.host}:{settings.port} cannot be listened at: {error.strerror}") from error
    host, port = listening.getsockname()[:2]
    print(f"Emblema serves {settings.name} on http://{host}:{port}", flush=True)
    failures: list[None] = []

    def loaded(well: bool) -> None:
        if well:
            collect_beside_program()
            return
        failures.append(None)
        server.should_exit = True

    config = uvicorn.Config(
        make_app(settings, loaded),
        log_config=None,
        access_log=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
        h11_max_incomplete_event_size=64 * 2**10,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    if failures:
        raise EmblemaError("the server could not start: its log says why")


def collect_beside_program() -> None:
    """Leave all that the process holds now, which stays to its end, out of later collections of cycles.

    Python collects cycles that have lived for a while only once they are a quarter of all objects. Beside the program
    and its model that takes many minutes, in which requests whose clients have left hold their bodies and pictures.
    """
    gc.collect()
    gc.freeze()
    # Counts what is left: a quarter of that is collected from now on.
    gc.collect()
