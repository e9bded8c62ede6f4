"""A chat request as clients write it, and what the engine is asked for it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from emblema.engine.generation import GenerateRequest
from emblema.engine.retrieval import Retrieval
from emblema.kv.chunk import Chunk, Clip
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import bounded
from emblema.serve.faults import ServeError
from emblema.serve.parts import (
    CacheContent,
    CacheOptions,
    CollectionChoice,
    Content,
    MediaContent,
    TextContent,
    text_length,
)
from emblema.session.decoding import Sampling

OTHER_ENGINE = "is not offered here: `emblema vllm-serve` serves a model with it"
_UNSERVED: Mapping[str, Sequence[object]] = {
    "tools": ([],), "functions": ([],), "audio": (), "modalities": ([], ["text"]), "n": (1,),
    "response_format": ({"type": "text"},),
}  # fmt: skip
"""Fields that another engine serves, and values of them that ask for nothing."""
LONGEST_REPLY = 1_024
"""Tokens of a reply whose request does not say."""


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Content]


class ChatStreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool = False


class ChatRequest(CollectionChoice):
    """The body of `POST /v1/chat/completions`. Fields that are not known are passed over."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str = Field(max_length=1_000)
    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    stream: bool = False
    stream_options: ChatStreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    strategy: str | None = Field(None, max_length=100)
    max_kl: float | None = Field(None, ge=0)
    survivors: Literal["drop", "keep"] = "drop"
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 4:
            raise ValueError("give at most 4 stop strings")
        return stop or None

    def refuse_unserved(self) -> None:
        """Raise `ServeError` for a field that would change the answer and is not served here."""
        extra = self.model_extra or {}
        for name, harmless in _UNSERVED.items():
            if extra.get(name) not in (None, *harmless):
                said = "n above 1" if name == "n" else name
                raise ServeError(400, f"{said} {OTHER_ENGINE}", "unsupported_parameter", name)
        if self.collections and (self.logprobs or self.top_logprobs):
            raise ServeError(400, "logprobs are not told of a reply that may search collections", None, "logprobs")
        for name in ("cache_salt", "salt"):
            if extra.get(name) is not None:
                raise ServeError(400, f"{name} is not a client's to choose: it follows from the key", None, name)

    @property
    def media(self) -> Iterator[MediaContent | CacheContent]:
        """The parts with media and the caches, in order."""
        for message in self.messages:
            if not isinstance(message.content, str):
                yield from (part for part in message.content if not isinstance(part, TextContent))

    def kept_seconds(self, part: MediaContent | CacheContent) -> int | None:
        """Return how long a part is to be kept at least; None where it has no breakpoint."""
        own = None if isinstance(part, CacheContent) else part.prompt_cache_breakpoint
        return None if own is None else own.seconds(self.prompt_cache_options)

    @property
    def text_length(self) -> int:
        """Characters of all text together."""
        return sum(text_length(message.content) for message in self.messages)

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen; greedily unless a temperature is given."""
        most = self.max_completion_tokens or self.max_tokens or LONGEST_REPLY
        knobs = {"temperature": self.temperature or 0.0, "top_p": 1.0 if self.top_p is None else self.top_p}
        seed = None if self.seed is None else self.seed % 2**63
        return Sampling.of(stop=self.stop, max_new_tokens=most, seed=seed, **knobs)


MediaItem = Chunk | Clip | dict[str, Any]
"""A piece that is known, or a content item with media."""
Read = Callable[[MediaContent | CacheContent], Awaitable[Sequence[str | MediaItem]]]
"""Reads a part with media, or a cache."""


async def generate_request(
    body: ChatRequest, read: Read, strategy: str, policy: Policy, retrieval: Retrieval | None
) -> GenerateRequest:
    """Return what the engine is asked; a strategy and a bound of the policy that the request says win over those given.

    Errors are those of `read`, and `EmblemaError` where a field is out of range.
    """
    turns: list[dict[str, Any]] = []
    for message in body.messages:
        content: str | list[Any]
        if isinstance(message.content, str):
            content = message.content
        else:
            content = []
            for part in message.content:
                content += [part.text] if isinstance(part, TextContent) else await read(part)
        turns.append({"role": "system" if message.role == "developer" else message.role, "content": content})
    bounds = None if body.max_kl is None else replace(policy, max_kl=body.max_kl)
    return GenerateRequest(
        turns,
        bounded(body.strategy or strategy, bounds),
        body.sampling,
        retrieval=retrieval,
        survivors=body.survivors,
        likeliest=(body.top_logprobs or 0) if body.logprobs else None,
        shorten=body.max_completion_tokens is None and body.max_tokens is None,
    )
