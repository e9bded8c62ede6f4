"""An HTTP server on this machine, for the time of a block."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar


class LocalServer(ThreadingHTTPServer):
    """A server on a free port. `ended` is set when its block ends, for answers that wait."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.ended = threading.Event()


Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Serve until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()
