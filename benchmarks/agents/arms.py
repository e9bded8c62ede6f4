"""Who answers a session: the embedded engine by a strategy, or a server's client; each keeps what it was shown."""

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from PIL import Image

from benchmarks.agents.rules import KeptPicture
from benchmarks.agents.sessions import AgentSession, SessionRequest
from benchmarks.load.chat_client import ChatClient
from benchmarks.load.engine_arm import answer_of
from benchmarks.load.server_arm import picture_bytes
from benchmarks.load.stages import AUTO, ENGINE, FULL, PREFIX, SERVE, STOCK, VLLM, LoadAnswer
from benchmarks.window.arms import RowCounter
from emblema.engine.engine import Engine
from emblema.engine.generation import GenerateRequest
from emblema.kv.chunk import EncodedChunk
from emblema.link.policy.policy import Policy
from emblema.session.decoding import Sampling
from emblema.session.replies import last_reply
from emblema.session.requests import SurvivorChoice

KEEP = "auto, kept"
"""`auto` that takes what an earlier request of the conversation had for its pictures (`survivors="keep"`)."""
EXTRA = "vllm:emblema_extra_tokens_total"
"""Counts rows of pictures that were prefilled alone, and of questions that were read twice."""
CLIENT, AGAINST = "server", "against"
"""A server that runs already, and another one that it is compared with."""


class SessionArm(Protocol):
    """Answers the requests of one session."""

    engine_name: str
    method: str

    def ask(self, session: AgentSession, request: SessionRequest, tokens: int) -> LoadAnswer:
        """Answer a request with so many tokens at the most."""

    def settle(self) -> None:
        """Wait until nothing is left to do."""


def survivors_of(method: str) -> SurvivorChoice:
    """Return what a method does with rows of an earlier request."""
    return "keep" if method == KEEP else "drop"


def strategy_of(method: str) -> str:
    """Return the strategy of a method."""
    return AUTO if method == KEEP else method


class ClientArm:
    """A server's client under one key.

    Attributes:
        fields: what it sends beside OpenAI's fields, such as a strategy.
    """

    def __init__(
        self, engine_name: str, method: str, client: ChatClient, model: str, fields: dict[str, Any] | None = None
    ) -> None:
        self.engine_name, self.method = engine_name, method
        self.client, self.model, self.fields = client, model, fields or {}
        self._parts: dict[tuple[AgentSession, KeptPicture], dict[str, Any]] = {}

    def ask(self, session: AgentSession, request: SessionRequest, tokens: int) -> LoadAnswer:
        """Answer a request; writing it is not timed. Rows that the plugin ran beside the prompt's own count too."""
        body = self.body(session, request, tokens)
        if self.engine_name != VLLM:
            return self.send(body)
        before = self.client.counted(EXTRA)
        answer = self.send(body)
        self.settle()
        return replace(answer, computed=(answer.computed or 0) + round(self.client.counted(EXTRA) - before))

    def body(self, session: AgentSession, request: SessionRequest, tokens: int) -> bytes:
        """Return what is sent."""
        messages = session.messages(request, lambda picture: self._part(session, picture))
        body = {
            "model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "messages": messages,
        }  # fmt: skip
        return json.dumps(body | self.fields).encode()

    def send(self, body: bytes) -> LoadAnswer:
        """Send a request now."""
        return self.client.send(body, time.perf_counter())

    def settle(self) -> None:
        """Wait until the server has nothing to do, where it runs on this machine as a process that is known."""
        if self.engine_name not in (CLIENT, AGAINST):
            self.client.settle()

    def _part(self, session: AgentSession, picture: KeptPicture) -> dict[str, Any]:
        key = (session, picture)
        if key not in self._parts:
            data = base64.b64encode(picture_bytes(session.world.image(picture))).decode()
            self._parts[key] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return self._parts[key]


class EmbeddedArm:
    """The embedded engine by one method, with a store of its own on the weights of `model`."""

    def __init__(self, engine_name: str, method: str, model: Engine, counter: RowCounter) -> None:
        self.engine_name, self.method, self.counter = engine_name, method, counter
        policy = Policy() if strategy_of(method) == AUTO else Policy.quiet()
        self.engine = Engine(model.adapter.model, model.processor, policy=policy)
        self._shown: dict[KeptPicture, Image.Image] = {}
        self._encoded: dict[KeptPicture, Sequence[EncodedChunk]] = {}

    def ask(self, session: AgentSession, request: SessionRequest, tokens: int) -> LoadAnswer:
        """Answer, and do all that is left to do after it."""
        # Drawing a screen is the client's work.
        self._shown |= {kept: session.world.image(kept) for kept in request.kept if kept not in self._shown}
        rows, began = self.counter.rows, time.perf_counter()
        messages = session.messages(request, self._part)
        asked = GenerateRequest(
            messages, strategy_of(self.method), Sampling(max_new_tokens=tokens), survivors=survivors_of(self.method)
        )
        pieces = self.engine.steps(asked)
        ttft = time.perf_counter() - began
        reply = last_reply(pieces)
        self.engine.settle()
        ended = time.perf_counter() - began
        if self.method == FULL:
            self.engine.forget_prompts()
        return answer_of(reply, ttft, ended, self.counter.rows - rows)

    def settle(self) -> None:
        """Do all that is left to do."""
        self.engine.settle()

    def _part(self, picture: KeptPicture) -> Any:
        if strategy_of(self.method) == AUTO:
            return {"type": "image", "image": self._shown[picture]}
        # As an engine with a cache of its encoder's output; no picture is prefilled alone.
        if picture not in self._encoded:
            self._encoded[picture] = self.engine.encode(self._shown[picture])
        return self._encoded[picture]


METHODS: dict[str, tuple[str, ...]] = {
    ENGINE: (FULL, PREFIX, AUTO, KEEP),
    SERVE: (FULL, PREFIX, AUTO, KEEP),
    VLLM: (AUTO, KEEP),
    STOCK: ("stock",),
}
"""What is measured of each engine; vLLM with the plugin has `full` too where stock vLLM is not measured beside it."""


def fields_of(engine: str, method: str, any_margin: bool = False) -> dict[str, Any]:
    """Return what a server that the benchmark starts is sent beside OpenAI's fields.

    Args:
        any_margin: whether an answer after a second pass stands by any margin: those of random weights have none.
    """
    if engine == STOCK:
        return {}
    kept = {"survivors": "keep"} if method == KEEP else {}
    options = {"strategy": strategy_of(method), **kept}
    if engine == VLLM:
        return {"kv_transfer_params": {"emblema": options | ({"margin": 0} if any_margin else {})}}
    return options
