"""An address that answers as slowly as a test likes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from tests.serve.sent import png_of


class SlowPlace:
    """Answers every request with a picture once it may, or after some seconds.

    Attributes:
        asked: how many requests have come.
        free: set once it may answer at once.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._body = seconds, png_of(Image.new("RGB", (64, 64), (200, 30, 30)))
        self.asked, self.free = 0, threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._run, daemon=True).start()

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/{number}"

    def _run(self) -> None:
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            self.asked += 1
            try:
                connection.recv(4_096)
                self.free.wait(self._seconds)
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self._body)
                connection.sendall(head + self._body)
            except OSError:
                return

    def close(self) -> None:
        self.free.set()
        self._socket.close()


@contextmanager
def slow_place(seconds: float) -> Iterator[SlowPlace]:
    """Open such a place until the block ends."""
    place = SlowPlace(seconds)
    try:
        yield place
    finally:
        place.close()


def pdf(pages: int, side: int) -> bytes:
    """Return a document of blank pages of `side` points: a page has four times its square of pixels."""
    kids = b" ".join(b"%d 0 R" % (3 + page) for page in range(pages))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[" + kids + b"]/Count %d>>" % pages]
    objects += [b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]>>" % (side, side)] * pages
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, made) for number, made in enumerate(objects, 1))
    return b"%PDF-1.4\n" + body + b"trailer<</Size %d/Root 1 0 R>>\n%%%%EOF" % (len(objects) + 1)
