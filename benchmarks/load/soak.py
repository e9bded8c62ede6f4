"""A server under mixed load, and what its process holds meanwhile (`python -m benchmarks soak-serve`).

The server's process is read from outside, so that what is counted is all that it holds. Its allocator gives blocks back
when they are freed (`ALLOCATOR`), so that what grows is what the server holds.
"""

import json
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy
import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.load.chat_client import JSON
from benchmarks.load.requests import AssistantText, Picture, TrafficShape, traffic_of
from benchmarks.load.server_arm import content_of, picture_bytes
from benchmarks.load.servers import free_port, leader, running
from benchmarks.table import Bar, Table
from emblema.errors import EmblemaError

CLIENTS = 6
BODY_BYTES = 2 * 2**20
"""Largest body that the soaked server takes, so that larger ones are quickly made."""
QUOTA_BYTES = 64 * 2**20
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(128 * 2**10)}
"""Blocks of so many bytes are the system's again once they are freed: glibc's own bound, kept where it is at first."""
MALFORMED = (b"{", b"\xff\xfe", b'{"model": 3}', b"[]")
CHATS = "/v1/chat/completions"
READ = ("/metrics", "/v1/files", "/v1/models", "/health")
WARM = 1 / 3
"""Share of the soak before growth is counted: caches fill, pools start their threads, combinations are learnt."""
MEMORY = 0.05
"""Growth over the rest of memory that the store does not count, as a share of it. A leak of a few kilobytes a request
passes it in half an hour; what the allocator gives back late does not."""
HANDLES, THREADS = 4.0, 2.0
"""Growth of handles and threads over the rest. A leak of one in a hundred requests passes both; the clients' own
connections come and go around their mean."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What the server's process held: bytes in memory, those of them that the store counts, threads, open files."""

    seconds: float
    resident: int
    counted: int
    threads: int
    handles: int

    @property
    def uncounted(self) -> int:
        """Bytes that the store does not count: program, model, requests under way, what leaks."""
        return self.resident - self.counted


@dataclass
class ServeSoak:
    """All that a soak gave: samples in order, and how often each kind of request ended in each way."""

    samples: list[ProcessSample] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def bars(self) -> tuple[Bar, ...]:
        """Return everything that has to hold."""
        rest = settled(self.samples)
        memory = growth(rest, lambda sample: sample.uncounted) / median(sample.uncounted for sample in rest)
        failed = sum(count for (_, end), count in self.outcomes.items() if "50" in end.replace("503", ""))

        def held(name: str, value: float, bound: float) -> Bar:
            return Bar(name, value, bound, least=False, count=len(rest))

        return (
            held("growth of memory that the store does not count, share of it", memory, MEMORY),
            held("growth of open handles", growth(rest, lambda sample: sample.handles), HANDLES),
            held("growth of threads", growth(rest, lambda sample: sample.threads), THREADS),
            Bar("requests that failed within the server", failed, 0, least=False, count=self.outcomes.total()),
        )

    def table(self) -> Table:
        """Return how every kind of request ended."""
        ends = tuple((kind, end, count) for (kind, end), count in sorted(self.outcomes.items()))
        note = "Growth is that of the straight line that fits the samples after the first third best."
        return Table("requests", "How requests ended", note, ("kind", "end", "requests"), ends, bars=self.bars())


def settled(samples: Sequence[ProcessSample]) -> list[ProcessSample]:
    """Return the samples after the first third of the time."""
    return [sample for sample in samples if sample.seconds >= WARM * samples[-1].seconds]


def growth(samples: Sequence[ProcessSample], figure: Callable[[ProcessSample], float]) -> float:
    """Return by how much the line through samples rises from the first to the last; NaN of fewer than three."""
    times = [sample.seconds for sample in samples]
    if len(set(times)) < 3:
        return float("nan")
    slope = float(numpy.polyfit(times, [figure(sample) for sample in samples], 1)[0])
    return slope * (times[-1] - times[0])


def sample_process(pid: int, address: str, seconds: float) -> ProcessSample:
    """Read a process, children aside, and what its metrics say."""
    try:
        process = psutil.Process(pid)
        resident, threads, handles = process.memory_info().rss, process.num_threads(), process.num_fds()
        text = httpx.get(f"{address}/metrics", timeout=120, trust_env=False).text
    except (psutil.Error, httpx.HTTPError) as error:
        raise EmblemaError(f"the server cannot be read ({error}): it has ended") from error
    held = re.findall(r'emblema_store_bytes{tier="(?:device|host|prefix)"} (\S+)', text)
    return ProcessSample(seconds, resident, sum(int(float(value)) for value in held), threads, handles)


class SoakClient:
    """One client of the mixed load, of chats over pages that come again and of pages that it uploads."""

    def __init__(self, address: str, seed: int, bodies: Sequence[Mapping[str, Any]], pages: Sequence[bytes]) -> None:
        # Every request has a connection of its own.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=address, timeout=120, limits=limits, trust_env=False)
        self.random, self.bodies, self.pages = random.Random(seed), bodies, pages
        self.kinds: dict[str, tuple[int, Callable[[], str]]] = {
            "whole": (4, lambda: self.ask(self.chat())),
            "streamed": (4, lambda: self.ask(self.chat(stream=True))),
            "slow stream": (1, lambda: self.stream(left=False)),
            "left stream": (2, lambda: self.stream(left=True, temperature=2.0, max_tokens=400)),
            "left upload": (1, self.left_upload),
            "oversized": (1, lambda: self.ask(b"[" * (BODY_BYTES + 1))),
            "malformed": (1, lambda: self.ask(self.random.choice([*MALFORMED, self.chat()[:-20]]))),
            "unknown": (1, lambda: self.read(f"/v1/files/file-{self.random.getrandbits(64):x}")),
            "upload, use, delete": (2, self.upload),
            "reads": (2, lambda: self.read(self.random.choice(READ))),
        }

    def next(self) -> tuple[str, str]:
        """Send one request of a kind that is drawn; return the kind, and how it ended."""
        kinds = list(self.kinds)
        kind = self.random.choices(kinds, [self.kinds[name][0] for name in kinds])[0]
        try:
            return kind, self.kinds[kind][1]()
        except (OSError, httpx.HTTPError) as error:
            return kind, type(error).__name__

    def chat(self, **changes: Any) -> bytes:
        """Return the body of a chat under one of the strategies."""
        strategy = self.random.choice(["auto", "auto", "blind", "full", "patch-25%"])
        return json.dumps({**self.random.choice(self.bodies), "strategy": strategy, **changes}).encode()

    def ask(self, body: bytes) -> str:
        """Send a chat, and return its status."""
        return str(self.http.post(CHATS, content=body, headers=JSON).status_code)

    def read(self, path: str) -> str:
        """Read a path, and return its status."""
        return str(self.http.get(path).status_code)

    def stream(self, left: bool, **changes: Any) -> str:
        """Read a stream slowly, or leave it after its first bytes."""
        body = self.chat(stream=True, **changes)
        with self.http.stream("POST", CHATS, content=body, headers=JSON) as reply:
            for place, _ in enumerate(reply.iter_raw(8)):
                if left and place == 7:
                    break
                time.sleep(0.05 if not left and place < 20 else 0)
            return f"{reply.status_code}{', left' * left}"

    def left_upload(self) -> str:
        """Promise a body and leave in the middle of it."""
        place = self.http.base_url
        with socket.create_connection((place.host, place.port), 60) as connection:
            head = f"POST /v1/files HTTP/1.1\r\nHost: {place.host}:{place.port}\r\nContent-Length: 100000\r\n"
            connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n".encode())
        return "left"

    def upload(self) -> str:
        """Upload a page that nobody has seen, ask about it, and delete it."""
        page = self.random.choice(self.pages) + self.random.randbytes(8)
        reply = self.http.post("/v1/files", files={"file": ("p.png", page)})
        if reply.status_code != 200:
            return str(reply.status_code)
        id = reply.json()["id"]
        parts = [{"type": "file", "file": {"file_id": id}}, {"type": "text", "text": "which land ?"}]
        asked = self.ask(self.chat(messages=[{"role": "user", "content": parts}]))
        return f"{asked}, {self.http.delete(f'/v1/files/{id}').status_code}"


def soak_server(minutes: float, seed: int, folder: Path, notify: Callable[[ProcessSample], None]) -> ServeSoak:
    """Soak a server of the bundled model, its store in a folder; `notify` is called with every sample."""
    found, stop, lock = ServeSoak(), threading.Event(), threading.Lock()
    traffic = traffic_of(TrafficShape("rag", requests=32, pages=10, shown=6), seed)
    images = [page.image() for page in traffic.pages]
    shown = [
        content_of(
            [
                images[own.page] if isinstance(own, Picture) else own
                for own in request.pieces
                if not isinstance(own, AssistantText)
            ]
        )
        for request in traffic.requests
    ]
    bodies = [{"model": "reference", "max_tokens": 8, "messages": [{"role": "user", "content": own}]} for own in shown]
    pages = [picture_bytes(image) for image in images]
    settings = [f"body_bytes={BODY_BYTES}", f"quota_bytes={QUOTA_BYTES}"]
    line = [sys.executable, "-m", "emblema.cli", "serve", "reference", "--store", str(folder / "store")]
    line += [word for setting in settings for word in ("--set", setting)]
    with running(line, folder / "server.log", free_port(), ALLOCATOR) as address:
        pid = leader(urlsplit(address).port)

        def work(number: int) -> None:
            client = SoakClient(address, seed * 1_000 + number, bodies, pages)
            while not stop.is_set():
                outcome = client.next()
                with lock:
                    found.outcomes[outcome] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            clients, began = [pool.submit(work, number) for number in range(CLIENTS)], time.monotonic()
            try:
                while time.monotonic() - began < 60 * minutes:
                    time.sleep(max(1.0, 0.6 * minutes))
                    found.samples.append(sample_process(pid, address, time.monotonic() - began))
                    notify(found.samples[-1])
            finally:
                stop.set()
        for client in clients:
            client.result()
    return found
