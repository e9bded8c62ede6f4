"""A client of vLLM's own server with the plugin, as small as the tests need it."""

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.prompts import asked
from emblema.errors import EmblemaError

PATIENCE = 60.0
BETWEEN = 0.25
"""Seconds between two looks: the server forms patches after 0.2 s without a step."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A server's answer; `linking` is what the plugin reports of the request."""

    text: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    linking: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """Asks one server; any number of threads may share it."""

    def __init__(self, address: str, model: str, timeout: float = 300.0) -> None:
        self.address, self.model, self.timeout = address, model, timeout

    def ask(
        self,
        content: Sequence[Mapping[str, Any]],
        *,
        strategy: str | None = None,
        tokens: int = 16,
        capture: bool = True,
    ) -> ServerReply:
        """Ask one user's turn, greedy; `capture`, with a strategy: whether the plugin may keep what it sees."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": list(content)}],
            "max_tokens": tokens,
            "temperature": 0.0,
        }
        if strategy is not None:
            body["kv_transfer_params"] = {"emblema": {"strategy": strategy, "capture": capture}}
        found = self.post(body)
        usage = found["usage"]
        return ServerReply(
            found["choices"][0]["message"]["content"] or "",
            int(usage["prompt_tokens"]),
            int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            (found.get("kv_transfer_params") or {}).get("emblema") or {},
        )

    def post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request as it is; return the whole answer.

        Raises:
            EmblemaError: the server refused.
        """
        place = urlsplit(self.address)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=self.timeout)
        try:
            head = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), head)
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise EmblemaError(f"{self.address} answered {reply.status}: {text[:400]!r}")
        found: dict[str, Any] = json.loads(text)
        return found


def ready(client: Client, content: Sequence[Any], strategy: str) -> None:
    """Show a prompt until all of its pieces are stored."""
    until = time.monotonic() + PATIENCE
    while not client.ask(content, strategy=strategy, tokens=1).linking.get("stored"):
        assert time.monotonic() < until, "nothing was stored: is this a server with the emblema connector?"
        time.sleep(BETWEEN)


def server_counts(client: Client) -> dict[str, float]:
    """Return the server's counters of the plugin."""
    with urllib.request.urlopen(f"{client.address}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    found: dict[str, float] = {}
    for match in filter(None, map(re.compile(r"vllm:(emblema_\w+)_total(?:\{.*\})? (\S+)").fullmatch, lines)):
        found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def pages_of(item: TaskItem) -> list[Image.Image]:
    """Return the pictures of an item in order."""
    return [media.content for media in item.media if isinstance(media.content, Image.Image)]


def texts_of(item: TaskItem, index: int) -> list[str]:
    """Return a question's text, as it comes after the pages."""
    return [part for part in asked(item.form, item.questions[index]) if isinstance(part, str)]
