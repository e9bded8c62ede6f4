"""A client of one server: requests over HTTP whose answers are streamed, as an OpenAI client sends them."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.load.servers import processor_seconds, settle
from benchmarks.load.stages import SGLANG, LoadAnswer
from emblema.errors import EmblemaError

JSON = {"Content-Type": "application/json"}


class ChatClient:
    """Sends chats to one server with one key; `engine` says which server it is."""

    def __init__(self, address: str, engine: str, key: str = "") -> None:
        self.address, self.engine = address, engine
        head = {"Authorization": f"Bearer {key}"} if key else {}
        # As many clients as there are requests at a rate may wait together.
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.Client(base_url=address, timeout=600, headers=head, limits=limits, trust_env=False)

    def settle(self) -> None:
        """Wait until the server has nothing to do."""
        settle(self.address)

    def processor(self) -> float:
        """Return the processor seconds of the server's processes."""
        return processor_seconds(urlsplit(self.address).port)

    def counted(self, name: str) -> float:
        """Return what the server's `/metrics` have of a count, over all of its labels; 0 where there is none."""
        with self.replied("GET", "/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def send(self, body: bytes, arrival: float) -> LoadAnswer:
        """Send a request for a stream, and read the stream; times count from its arrival, by `time.perf_counter`."""
        text, first, usage = "", None, dict[str, Any]()
        with self.replied("POST", "/v1/chat/completions", content=body, headers=JSON) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise EmblemaError(f"{self.address} ended a stream: {event['error']['message']}")
                usage = event.get("usage") or usage
                fresh = event["choices"][0]["delta"].get("content") if event["choices"] else ""
                if fresh and first is None:
                    first = time.perf_counter()
                text += fresh or ""
        now, prompt = time.perf_counter(), int(usage["prompt_tokens"])
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        # SGLang reports linked rows in no stream.
        computed = None if self.engine == SGLANG else prompt - cached
        tokens = int(usage["completion_tokens"])
        return LoadAnswer(text, (first or now) - arrival, now - arrival, prompt, computed, tokens)

    @contextmanager
    def replied(self, method: str, path: str, **sent: Any) -> Iterator[httpx.Response]:
        """Send a request, and yield the response, whose body is not read.

        Raises:
            EmblemaError: the status is another than 200, or the connection broke.
        """
        try:
            with self._http.stream(method, path, **sent) as reply:
                if reply.status_code != 200:
                    raise EmblemaError(f"{reply.url} answered {reply.status_code}: {reply.read()[:400]!r}")
                yield reply
        except httpx.HTTPError as error:
            raise EmblemaError(f"{self.address} broke off: {error}") from error
