"""An OpenAI client as small as a load generator needs. A first token is timed by asking for one token alone."""

import base64
import http.client
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from emblema.errors import EmblemaError


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A server's answer.

    Attributes:
        text: of the answer.
        seconds: until the answer was there; with one token asked for, the time to the first token.
        prompt_tokens, cached_tokens: as the server counts them.
        linking: what the plugin reports of the request; empty without it.
    """

    text: str
    seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    linking: Mapping[str, Any] = field(default_factory=dict)


def picture_url(picture: Image.Image) -> str:
    """Return a picture as a data address."""
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def content_of(parts: Sequence[str | Image.Image]) -> list[dict[str, Any]]:
    """Return a user's message in OpenAI's form."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": picture_url(part)}}
        for part in parts
    ]


class Client:
    """Asks one server; any number of threads may share it.

    Args:
        address: `http://host:port`.
        model: the name the server gives the model.
    """

    def __init__(self, address: str, model: str, timeout: float = 300.0) -> None:
        self.address, self.model, self.timeout = address, model, timeout

    def ask(
        self,
        content: Sequence[Mapping[str, Any]],
        *,
        strategy: str | None = None,
        tokens: int = 16,
        salt: str | None = None,
        capture: bool = True,
    ) -> ServerReply:
        """Ask one user's turn, greedy.

        Args:
            content: see `content_of`.
            strategy: the plugin's, where the server has it.
            tokens: the answer's length at most.
            salt: the tenant's `cache_salt`.
            capture: whether the plugin may keep what it sees.

        Raises:
            EmblemaError: the server refused, or broke off.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": list(content)}],
            "max_tokens": tokens,
            "temperature": 0.0,
        }
        if strategy is not None:
            body["kv_transfer_params"] = {"emblema": {"strategy": strategy, "capture": capture}}
        if salt is not None:
            body["cache_salt"] = salt
        found, seconds = self.post(body)
        usage = found["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return ServerReply(
            found["choices"][0]["message"]["content"] or "",
            seconds,
            int(usage["prompt_tokens"]),
            int(details.get("cached_tokens") or 0),
            (found.get("kv_transfer_params") or {}).get("emblema") or {},
        )

    def post(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Send a request as it is; return the whole answer, and the seconds until it was there.

        Raises:
            EmblemaError: the server refused, or broke off.
        """
        return self.send(json.dumps(body).encode())

    def send(self, data: bytes) -> tuple[dict[str, Any], float]:
        """Send a request that is JSON already; as `post`."""
        place = urlsplit(self.address)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=self.timeout)
        began = time.perf_counter()
        try:
            connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise EmblemaError(f"{self.address} broke off: {error}") from error
        finally:
            connection.close()
        seconds = time.perf_counter() - began
        if reply.status != 200:
            raise EmblemaError(f"{self.address} answered {reply.status}: {text[:400]!r}")
        return json.loads(text), seconds
