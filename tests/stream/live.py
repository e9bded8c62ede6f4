"""Live video served on this machine: MPEG-TS over HTTP, a connection as a script of clips and ends."""

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

import av
import numpy as np

from tests.stream.servers import LocalServer, running

Script = Callable[[int], Iterator[bytes]]


def clip(values: range, begin: float = 0.0, rate: int = 10, size: tuple[int, int] = (64, 48)) -> bytes:
    """Return a transport stream of noise of these mean brightnesses, its time stamps from `begin` seconds on."""
    noise = np.random.default_rng(0).integers(-20, 21, (size[1], size[0], 1))
    out = io.BytesIO()
    with av.open(out, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=rate, options={"qscale": "2", "g": "1", "bf": "0"})
        (stream.width, stream.height), stream.pix_fmt = size, "yuv420p"
        for index, value in enumerate(values):
            frame = av.VideoFrame.from_ndarray((noise + [value] * 3).astype(np.uint8), "rgb24")
            frame.pts = index + round(begin * rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


class Camera(LocalServer):
    """Answers connection n with what the script gives for it; a script that raises OSError breaks it off."""

    def __init__(self, script: Script) -> None:
        super().__init__(Handler)
        self.script, self.connections = script, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/live?key=secret"


class Handler(BaseHTTPRequestHandler):
    server: Camera
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        number, self.server.connections = self.server.connections, self.server.connections + 1
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in self.server.script(number):
                if piece:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


def camera(script: Script) -> AbstractContextManager[Camera]:
    return running(Camera(script))
