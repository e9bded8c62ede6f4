"""A server under mixed load for half an hour, and what its process holds meanwhile (`python -m benchmarks soak-serve`).

Clients ask in turns of every kind: whole and streamed answers, streams read slowly, streams and uploads left half way,
bodies that are too large or malformed, unknown ids, uploads that are used and deleted. The server's process is read
from outside, so that what is counted is all that it holds.

Memory is what the process has of the system, and so also what its allocator keeps after it was freed. Of a table of the
bundled model, a few megabytes a layer, glibc keeps nearly all: in holes between other blocks, which grow for many
minutes and hide what leaks. Such blocks are given back here when they are freed, as the larger ones of larger models
are by themselves, so that what grows is what the server holds.
"""

import http.client
import json
import os
import random
import re
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.vllm.client import content_of, picture_url
from benchmarks.vllm.load import of_pages
from benchmarks.vllm.server import free_port, running
from emblema.errors import EmblemaError

CLIENTS = 6
POOL_SEED = 11
BODY_BYTES = 2 * 2**20
"""Largest body that the soaked server takes, so that larger ones are quickly made."""
QUOTA_BYTES = 64 * 2**20
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(128 * 2**10)}
"""Blocks of so many bytes are the system's again once they are freed: glibc's own bound, kept where it is at first."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What the server's process held.

    Attributes:
        seconds: since the load began.
        resident: bytes in memory; counted: of those, what the store says that it holds there, which has bounds of its
            own; threads: of the process; handles: open file descriptors.
        requests: that had been ended by then.
    """

    seconds: float
    resident: int
    counted: int
    threads: int
    handles: int
    requests: int


@dataclass
class ServeSoak:
    """All that a soak gave.

    Attributes:
        samples: in order.
        outcomes: how often each kind of request ended in each way.
        seconds: that the load lasted.
    """

    samples: list[ProcessSample] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0


def sample_process(pid: int, address: str, seconds: float, requests: int) -> ProcessSample:
    """Read a process from /proc, children aside, and what its metrics say.

    Raises:
        EmblemaError: the system has no /proc, or the process has ended.
    """
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError as error:
        raise EmblemaError(
            f"the server's process cannot be read ({error}); a soak needs Linux, and a server"
        ) from error
    resident, threads = 1024 * int(status["VmRSS"].split()[0]), int(status["Threads"])
    return ProcessSample(seconds, resident, counted_bytes(address), threads, handles, requests)


def counted_bytes(address: str) -> int:
    """Return the bytes that a server's store says it holds in memory.

    Raises:
        EmblemaError: the server does not answer.
    """
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=120) as reply:
            text = reply.read().decode()
    except OSError as error:
        raise EmblemaError(f"{address}/metrics cannot be read: {error}") from error
    return sum(
        int(float(value)) for _, value in re.findall(r'emblema_store_bytes{tier="(device|host|prefix)"} (\S+)', text)
    )


class SoakClient:
    """One client of the mixed load; each kind of request is a method that returns how it ended.

    Args:
        address: of the server.
        model: its name there.
        seed: of what it draws.
        bodies: chat requests over pages that come again.
        pages: pictures to upload, as bytes.
    """

    def __init__(
        self, address: str, model: str, seed: int, bodies: Sequence[Mapping[str, Any]], pages: Sequence[bytes]
    ) -> None:
        place = urlsplit(address)
        self.host, self.port = place.hostname or "", place.port or 0
        self.model, self.random, self.bodies, self.pages = model, random.Random(seed), bodies, pages
        self.kinds: dict[str, tuple[int, Callable[[], str]]] = {
            "whole": (4, self.whole),
            "streamed": (4, self.streamed),
            "slow stream": (1, self.slow_stream),
            "left stream": (2, self.left_stream),
            "left upload": (1, self.left_upload),
            "oversized": (1, self.oversized),
            "malformed": (1, self.malformed),
            "unknown": (1, self.unknown),
            "upload, use, delete": (2, self.upload),
            "reads": (2, self.reads),
        }

    def next(self) -> tuple[str, str]:
        """Send one request of a kind that is drawn; return the kind, and how it ended."""
        kinds = list(self.kinds)
        kind = self.random.choices(kinds, [self.kinds[name][0] for name in kinds])[0]
        try:
            return kind, self.kinds[kind][1]()
        except (OSError, http.client.HTTPException) as error:
            return kind, type(error).__name__

    def whole(self) -> str:
        return self._status("POST", "/v1/chat/completions", self._chat())[0]

    def streamed(self) -> str:
        return self._status("POST", "/v1/chat/completions", self._chat(stream=True))[0]

    def slow_stream(self) -> str:
        """Read a stream eight bytes at a time with breaks."""
        with self._connected() as connection:
            self._send(connection, "POST", "/v1/chat/completions", self._chat(stream=True))
            reply = connection.getresponse()
            for _ in range(20):
                if not reply.read(8):
                    break
                time.sleep(0.05)
            reply.read()
            return str(reply.status)

    def left_stream(self) -> str:
        """Leave after the first bytes of a long stream."""
        with self._connected() as connection:
            body = self._chat(stream=True, temperature=2.0, max_tokens=400)
            self._send(connection, "POST", "/v1/chat/completions", body)
            reply = connection.getresponse()
            reply.read(64)
            return f"{reply.status}, left"

    def left_upload(self) -> str:
        """Promise a body and leave in the middle of it."""
        with socket.create_connection((self.host, self.port), 60) as connection:
            head = f"POST /v1/files HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Length: 100000\r\n"
            connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n".encode())
        return "left"

    def oversized(self) -> str:
        return self._status("POST", "/v1/chat/completions", b"[" * (BODY_BYTES + 1))[0]

    def malformed(self) -> str:
        body = self.random.choice([b"{", b"\xff\xfe", b'{"model": 3}', b"[]", self._chat()[:-20]])
        return self._status("POST", "/v1/chat/completions", body)[0]

    def unknown(self) -> str:
        return self._status("GET", f"/v1/files/file-{self.random.getrandbits(64):x}")[0]

    def reads(self) -> str:
        return self._status("GET", self.random.choice(["/metrics", "/v1/files", "/v1/models", "/health"]))[0]

    def upload(self) -> str:
        """Upload a page that nobody has seen, ask about it, and delete it."""
        page = self.random.choice(self.pages) + self.random.randbytes(8)
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="p.png"\r\n\r\n' + page + b"\r\n--b--\r\n"
        status, text = self._status("POST", "/v1/files", form, "multipart/form-data; boundary=b")
        if status != "200":
            return status
        id = json.loads(text)["id"]
        parts = [{"type": "file", "file": {"file_id": id}}, {"type": "text", "text": "which land ?"}]
        asked = self._status("POST", "/v1/chat/completions", self._chat(messages=[{"role": "user", "content": parts}]))
        return f"{asked[0]}, {self._status('DELETE', f'/v1/files/{id}')[0]}"

    def _chat(self, **changes: Any) -> bytes:
        strategy = self.random.choice(["auto", "auto", "blind", "full", "patch-25%"])
        return json.dumps({**self.random.choice(self.bodies), "strategy": strategy, **changes}).encode()

    def _status(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[str, bytes]:
        with self._connected() as connection:
            # The server may have answered and closed before it read all of it.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._send(connection, method, path, body, kind)
            reply = connection.getresponse()
            return str(reply.status), reply.read()

    def _connected(self) -> "_Connection":
        return _Connection(self.host, self.port, timeout=120)

    def _send(
        self, connection: "_Connection", method: str, path: str, body: bytes | None, kind: str = "application/json"
    ) -> None:
        connection.request(method, path, body, {"Content-Type": kind} if body is not None else {})


class _Connection(http.client.HTTPConnection):
    """A connection that closes at the end of its block."""

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *given: object) -> None:
        self.close()


def soak_server(minutes: float, seed: int, folder: Path, notify: Callable[[ProcessSample], None]) -> ServeSoak:
    """Soak a server of the bundled model.

    Args:
        folder: of its store and log.
        notify: called with every sample, about a hundred of them.

    Raises:
        EmblemaError: the server did not start, or ended.
    """
    found, stop = ServeSoak(), threading.Event()
    talks = of_pages(8, seed)
    bodies = [
        {"model": "reference", "max_tokens": 8, "messages": [{"role": "user", "content": content_of(turn.parts)}]}
        for turn in talks.turns
    ]
    pages = [picture_bytes(page) for page in of_pages(1, seed + POOL_SEED).pool]
    store, log = folder / "store", folder / "server.log"
    settings = [f"body_bytes={BODY_BYTES}", f"quota_bytes={QUOTA_BYTES}"]
    line = [sys.executable, "-m", "emblema.cli", "serve", "reference", "--store", str(store)]
    line += [word for setting in settings for word in ("--set", setting)]
    environment = {"OMP_NUM_THREADS": "1", **ALLOCATOR}
    with running(line, log, free_port(), environment) as address:
        pid = process_at(address)

        def work(number: int) -> None:
            client = SoakClient(address, "reference", seed * 1_000 + number, bodies, pages)
            while not stop.is_set():
                outcome = client.next()
                with lock:
                    found.outcomes[outcome] += 1

        lock = threading.Lock()
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(CLIENTS)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() - began < 60 * minutes:
                time.sleep(max(1.0, 0.6 * minutes))
                now = time.monotonic() - began
                found.samples.append(sample_process(pid, address, now, sum(found.outcomes.values())))
                notify(found.samples[-1])
        finally:
            stop.set()
            for thread in threads:
                thread.join(180)
        found.seconds = time.monotonic() - began
    return found


def picture_bytes(picture: Any) -> bytes:
    """Return a picture as PNG."""
    import base64

    return base64.b64decode(picture_url(picture).partition(",")[2])


def process_at(address: str) -> int:
    """Return the id of this process's child that listens at an address.

    Raises:
        EmblemaError: there is none.
    """
    port = str(urlsplit(address).port)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if port in words and "serve" in words and int(parent) == os.getpid():
            return int(folder.name)
    raise EmblemaError(f"no process of ours serves {address}; a soak needs Linux")
