"""Real servers for the tests: redis-server as a process, moto's S3, and a proxy that makes either of them fail."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def absent(what: str) -> None:
    """Skip, or fail where the servers are required."""
    if os.environ.get("EMBLEMA_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{what}, and EMBLEMA_REQUIRE_SERVERS=1 asks for it")
    pytest.skip(what)


class RedisServer:
    """A redis-server that keeps nothing."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.program = shutil.which("redis-server") or shutil.which("valkey-server")
        if self.program is None:
            absent("redis-server is not installed (Debian: apt-get install redis-server)")
        self.folder = folder
        self.port = free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert self.program is not None
        self.process = subprocess.Popen(
            [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
            + ["--dir", str(self.folder), *self.options],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(2_000):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise RuntimeError("redis-server did not start within 40 s")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server with one bucket, `emblema-test`."""
    try:
        from moto.server import ThreadedMotoServer
    except ImportError:
        absent("moto's server is not installed (pip install 'moto[server]')")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with urlopen(Request(f"http://{host}:{port}/emblema-test", method="PUT")):
        pass
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


class FaultyProxy:
    """Passes TCP on to a server, or does what networks do.

    Attributes:
        hang: take connections and bytes, pass nothing on.
        refuse: close every connection at once.
        drop_after: bytes of an answer after which its connection is cut.
        trickle: seconds between the single bytes of an answer.
        swap: what to put in place of what in requests, of equal length.
        flip_at: which byte of a connection's answers to change.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._seen: list[object] = []
        self._marks = 0
        self.heal()
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        self.hang = False
        self.refuse = False
        self.drop_after: int | None = None
        self.trickle: float | None = None
        self.swap: tuple[bytes, bytes] | None = None
        self.flip_at: int | None = None

    def cut(self) -> None:
        """Close every connection that is open."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def connections(self) -> int:
        """How many were made, every one that was begun before this call included."""
        # They are taken in their order: once a last one of our own is seen, so are all before it.
        with socket.create_connection(("127.0.0.1", self.port)) as mark:
            self._marks += 1
            while mark.getsockname() not in self._seen:
                time.sleep(0.001)
        return len(self._seen) - self._marks

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            self._seen.append(address)
            if self.refuse:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, request: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if self.hang:
                    continue
                if request:
                    data = data.replace(*self.swap) if self.swap else data
                    passed = 0
                elif self.trickle is not None:
                    for byte in data:
                        target.sendall(bytes([byte]))
                        time.sleep(self.trickle)
                    continue
                elif self.drop_after is not None and passed + len(data) > self.drop_after:
                    target.sendall(data[: max(0, self.drop_after - passed)])
                    break
                elif self.flip_at is not None and passed <= self.flip_at < passed + len(data):
                    at = self.flip_at - passed
                    data = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
                target.sendall(data)
                passed += len(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
