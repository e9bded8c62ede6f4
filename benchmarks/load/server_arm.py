"""A server as an arm: a tenant with a key of its own, asked over HTTP by requests whose answers are streamed."""

import base64
import io
import json
import time
from collections.abc import Sequence
from typing import Any

from PIL import Image

from benchmarks.load.chat_client import ChatClient
from benchmarks.load.requests import AssistantText, LoadRequest, Picture, Traffic
from benchmarks.load.servers import LoadServer
from benchmarks.load.stages import SERVE, VLLM, LoadAnswer
from emblema.errors import EmblemaError, PromptError

PATIENCE = 120.0
"""Seconds that uploads may take until they are prefilled."""
SHOWN_TOGETHER = 8
"""Pages in a prompt that shows them for the first time."""


def picture_bytes(picture: Image.Image) -> bytes:
    """Return a picture as PNG."""
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def content_of(parts: Sequence[str | Image.Image]) -> list[dict[str, Any]]:
    """Return a user's message in OpenAI's form, pictures as data addresses."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            found.append({"type": "text", "text": part})
        else:
            address = f"data:image/png;base64,{base64.b64encode(picture_bytes(part)).decode()}"
            found.append({"type": "image_url", "image_url": {"url": address}})
    return found


class ServerArm(ChatClient):
    """Answers requests by one strategy as one tenant.

    Pages that are not sent with prompts `emblema serve` is given before. Other servers are shown them, and they are
    sent with every prompt.

    Args:
        name: the strategy.
        tenant: a name of its own.
        any_margin: whether an answer after a second pass stands by any margin: those of random weights have none.
    """

    def __init__(self, name: str, server: LoadServer, traffic: Traffic, tenant: str, any_margin: bool = False) -> None:
        super().__init__(server.address, server.engine, server.keys.add(tenant))
        self.name, self.server, self.traffic = name, server, traffic
        self._options: dict[str, Any] = {"strategy": name}
        if any_margin and server.engine == VLLM:
            self._options = {"kv_transfer_params": {"emblema": {"strategy": name, "margin": 0}}}
        self._parts: dict[int, dict[str, Any]] = {}
        if traffic.inline:
            return
        if any(isinstance(piece, Picture) and piece.slid for request in traffic.requests for piece in request.pieces):
            raise PromptError("no server takes slid pages: measure `rag-slid` on the engine")
        if server.engine == SERVE:
            self._upload()
        else:
            self._show()

    def ask(self, request: LoadRequest, tokens: int) -> LoadAnswer:
        """Answer, one request alone."""
        body = self.body(request, tokens)
        return self.send(body, time.perf_counter())

    def body(self, request: LoadRequest, tokens: int) -> bytes:
        """Return what is sent: a request for a stream, greedy."""
        body = {
            "model": self.server.model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "messages": self._messages(request),
            **self._options,
        }  # fmt: skip
        return json.dumps(body).encode()

    def _messages(self, request: LoadRequest) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": []}]
        for piece in request.pieces:
            if isinstance(piece, AssistantText):
                messages += [{"role": "assistant", "content": piece.text}, {"role": "user", "content": []}]
            else:
                messages[-1]["content"].append(self._part(piece))
        return messages

    def _part(self, piece: str | Picture) -> dict[str, Any]:
        if isinstance(piece, str):
            return {"type": "text", "text": piece}
        if piece.page not in self._parts:
            self._parts[piece.page] = content_of([self.traffic.pages[piece.page].image()])[0]
        return self._parts[piece.page]

    def _upload(self) -> None:
        for number, page in enumerate(self.traffic.pages):
            with self.replied(
                "POST", "/v1/files", files={"file": (f"{number}.png", picture_bytes(page.image()))}
            ) as made:
                self._parts[number] = {"type": "file", "file": {"file_id": json.loads(made.read())["id"]}}
        until = time.monotonic() + PATIENCE
        while True:
            with self.replied("GET", "/v1/files") as listed:
                if all(file["status"] == "processed" for file in json.loads(listed.read())["data"]):
                    return
            if time.monotonic() > until:
                raise EmblemaError(f"{self.address} has not prefilled its files in {PATIENCE:g} s")
            time.sleep(0.2)

    def _show(self) -> None:
        """Show all pages once."""
        numbers = range(len(self.traffic.pages))
        for start in range(0, len(numbers), SHOWN_TOGETHER):
            shown = tuple(map(Picture, numbers[start : start + SHOWN_TOGETHER]))
            self.ask(LoadRequest((*shown, "which land ?")), 1)
        self.settle()
