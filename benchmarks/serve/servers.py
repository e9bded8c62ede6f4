"""Servers of both engines for a measurement, with a tenant for each method, and what clients send them."""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from benchmarks.serve.soak import picture_bytes
from benchmarks.vllm.client import content_of
from benchmarks.vllm.server import device_options, free_port, running
from emblema.errors import EmblemaError
from emblema.serve.keys import KeyRing
from emblema.vllm.serving import command, environment

EMBEDDED, VLLM = "embedded", "vllm"
ENGINES = (EMBEDDED, VLLM)
PATIENCE = 120.0
"""Seconds that uploads may take until they are prefilled."""


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """One request as its client saw it.

    Attributes:
        text: of the answer.
        ttft: seconds from its arrival to the first event with text, or to its end where there is none.
        ended: seconds from the run's beginning until it ended.
        tokens: made; `cached` and `prompt`: rows taken, and all rows, as the server counts them.
    """

    text: str
    ttft: float
    ended: float
    tokens: int
    cached: int
    prompt: int


@dataclass(frozen=True, slots=True)
class LoadServer:
    """A running server.

    Attributes:
        engine: of `ENGINES`.
        address: `http://host:port`.
        model: what it calls the model.
        keys: of its tenants.
    """

    engine: str
    address: str
    model: str
    keys: KeyRing

    def tenant(self, name: str) -> "LoadTenant":
        """Return a new tenant, which shares nothing with others."""
        return LoadTenant(self, self.keys.add(name))


@dataclass(frozen=True, slots=True)
class LoadTenant:
    """A client with a key of its own."""

    server: LoadServer
    key: str

    def ask(self, body: bytes, arrival: float, began: float) -> StreamedAnswer:
        """Send a request that asks for a stream, and read it.

        Args:
            body: see `stream_body`.
            arrival: when it arrived, by `time.perf_counter`; `began`: when the run did.

        Raises:
            EmblemaError: the server refused, or broke off.
        """
        text, first, usage, address = "", None, dict[str, Any](), self.server.address
        connection = self._connection()
        try:
            connection.request("POST", "/v1/chat/completions", body, self._headers("application/json"))
            reply = connection.getresponse()
            if reply.status != 200:
                raise EmblemaError(f"{address} answered {reply.status}: {reply.read(400)!r}")
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise EmblemaError(f"{address} ended a stream: {event['error']['message']}")
                usage = event.get("usage") or usage
                fresh = event["choices"][0]["delta"].get("content") if event["choices"] else ""
                if fresh and first is None:
                    first = time.perf_counter()
                text += fresh or ""
        except (OSError, http.client.HTTPException) as error:
            raise EmblemaError(f"{address} broke off: {error}") from error
        finally:
            connection.close()
        now = time.perf_counter()
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        ttft = (first or now) - arrival
        return StreamedAnswer(text, ttft, now - began, usage["completion_tokens"], cached, usage["prompt_tokens"])

    def upload(self, pages: Sequence[Image.Image]) -> dict[int, str]:
        """Upload pictures and return their files' ids by `id(picture)`, once the embedded engine has prefilled them.

        Raises:
            EmblemaError: the server refused, or has not prefilled them in time.
        """
        found: dict[int, str] = {}
        for number, page in enumerate(pages):
            head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{number}.png"\r\n\r\n'
            form = head.encode() + picture_bytes(page) + b"\r\n--b--\r\n"
            found[id(page)] = self._sent("POST", "/v1/files", form, "multipart/form-data; boundary=b")["id"]
        until = time.monotonic() + PATIENCE
        while self.server.engine == EMBEDDED and not self._processed():
            if time.monotonic() > until:
                raise EmblemaError(f"{self.server.address} has not prefilled its files in {PATIENCE:g} s")
            time.sleep(0.2)
        return found

    def _processed(self) -> bool:
        return all(file["status"] == "processed" for file in self._sent("GET", "/v1/files")["data"])

    def _sent(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        connection = self._connection()
        try:
            connection.request(method, path, body, self._headers(kind))
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise EmblemaError(f"{self.server.address} broke off: {error}") from error
        finally:
            connection.close()
        if reply.status != 200:
            raise EmblemaError(f"{self.server.address}{path} answered {reply.status}: {text[:400]!r}")
        return json.loads(text)

    def _connection(self) -> http.client.HTTPConnection:
        place = urlsplit(self.server.address)
        return http.client.HTTPConnection(place.hostname or "", place.port, timeout=600)

    def _headers(self, kind: str) -> dict[str, str]:
        return {"Content-Type": kind, "Authorization": f"Bearer {self.key}"}


def stream_body(
    model: str, parts: Sequence[str | Image.Image], strategy: str, tokens: int, files: Mapping[int, str]
) -> bytes:
    """Return the body of a request that asks for a stream, greedy.

    Args:
        parts: texts and pictures in order.
        tokens: of an answer, at the most.
        files: ids of uploaded pictures, by `id(picture)`; others are sent.
    """
    content: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, str) and id(part) in files:
            content.append({"type": "file", "file": {"file_id": files[id(part)]}})
        else:
            content += content_of([part])
    body = {
        "model": model, "max_tokens": tokens, "temperature": 0, "strategy": strategy, "stream": True,
        "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": content}],
    }  # fmt: skip
    return json.dumps(body).encode()


@contextmanager
def serving(engine: str, model: str, folder: Path) -> Iterator[LoadServer]:
    """Run a server of an engine for as long as the block runs.

    Args:
        engine: of `ENGINES`.
        model: a bundled one.
        folder: for its store and log.

    Raises:
        EmblemaError: it did not start, or vLLM is not installed here.
    """
    port = free_port()
    store, log = folder / f"store-{port}", folder / f"{port}.log"
    given = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if engine == EMBEDDED:
        line = [sys.executable, "-m", "emblema.cli", "serve", model, "--store", str(store)]
    else:
        line = command(model, store, more=[*device_options()[1], "--dtype", "float32"])
        given |= environment(os.environ)
    # Made first: a server that has keys asks for one from the beginning.
    keys = KeyRing(store / "serve")
    keys.add("nobody")
    with running(line, log, port, given) as address:
        yield LoadServer(engine, address, model, keys)
