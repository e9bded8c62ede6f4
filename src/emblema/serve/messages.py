"""A chat request as clients write it, and what the engine is asked for it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from emblema.engine.generation import GenerateRequest
from emblema.engine.retrieval import Retrieval
from emblema.kv.chunk import Chunk, Clip
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import bounded
from emblema.serve.faults import ServeError
from emblema.serve.settings import ServeSettings
from emblema.session.decoding import Sampling

OTHER_ENGINE = "is not offered here: `emblema vllm-serve` serves a model with it"
LONGEST_KEPT = 2_592_000
"""Seconds that a cache may be kept for."""
_UNSERVED: Mapping[str, Sequence[object]] = {
    "tools": ([],), "functions": ([],), "audio": (), "modalities": ([], ["text"]), "n": (1,),
    "response_format": ({"type": "text"},),
}  # fmt: skip
"""Fields that another engine serves, and values of them that ask for nothing."""
LONGEST_REPLY = 1_024
"""Tokens of a reply whose request does not say."""
KEPT = 1_800
"""Seconds that a part is kept for where its breakpoint does not say."""
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(ttl: str) -> int:
    """Return the seconds of a time such as `30m`; `ValueError` where it is none, or too long."""
    number, unit = ttl[:-1], UNITS.get(ttl[-1:])
    if unit is None or not number.isdecimal() or not 0 < int(number[:9]) * unit <= LONGEST_KEPT:
        raise ValueError("give a time from 1s to 30d, such as 30m or 12h")
    return int(number) * unit


def _checked(ttl: str) -> str:
    seconds_of(ttl)
    return ttl


TimeToLive = Annotated[str, Field(max_length=9), AfterValidator(_checked)]


class CacheBreakpoint(BaseModel):
    """Asks that a part with media is kept, wherever it stands."""

    mode: Literal["explicit"]
    ttl: TimeToLive | None = None


class CacheOptions(BaseModel):
    """How breakpoints of a request are kept that do not say it themselves."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: TimeToLive | None = None


class TextContent(BaseModel):
    """Text."""

    type: Literal["text"]
    text: str


class Address(BaseModel):
    """Where a picture or clip is: `data:`, `http:` or `https:`."""

    url: str


class ImageContent(BaseModel):
    """A picture."""

    type: Literal["image_url"]
    image_url: Address
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class VideoContent(BaseModel):
    """A clip."""

    type: Literal["video_url"]
    video_url: Address
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class FileReference(BaseModel):
    """An uploaded file, or one that is sent along as a data address."""

    file_id: str | None = Field(None, max_length=200)
    file_data: str | None = None
    filename: str | None = None


class FileContent(BaseModel):
    """A picture, clip or document by the id of its upload."""

    type: Literal["file"]
    file: FileReference
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class CacheReference(BaseModel):
    """A cache by its id."""

    cache_id: str = Field(max_length=200)


class CacheContent(BaseModel):
    """All parts of a cache, in their order."""

    type: Literal["cache"]
    cache: CacheReference


MediaContent = ImageContent | VideoContent | FileContent
Content = Annotated[TextContent | MediaContent | CacheContent, Field(discriminator="type")]


def text_length(content: str | Sequence[BaseModel]) -> int:
    """Return the characters of a message's text."""
    texts = [content] if isinstance(content, str) else [part.text for part in content if isinstance(part, TextContent)]
    return sum(map(len, texts))


def refuse_large(settings: ServeSettings, media: int, characters: int) -> None:
    """Raise `ServeError` for a request with too many parts with media, or too much text."""
    if media > settings.parts:
        raise ServeError(400, f"the request has {media} parts with media; {settings.parts} may come at once")
    if characters > settings.text_bytes:
        raise ServeError(400, f"the request has {characters} characters; {settings.text_bytes} may come at once")


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Content]


class RetrievalOptions(BaseModel):
    """How the model asks for what is in collections. What is left out is as the server's settings say."""

    count: int = Field(1, ge=1, le=8)
    most: int = Field(1, ge=1, le=4)
    start: str | None = Field("<search>", min_length=1, max_length=1_000)
    end: str = Field("</search>", min_length=1, max_length=1_000)


class ChatStreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool = False


class ChatRequest(BaseModel):
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
    collections: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field([], max_length=8)
    retrieval: RetrievalOptions | None = None

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
        if own is None:
            return None
        ttl = own.ttl or (self.prompt_cache_options or CacheOptions()).ttl
        return KEPT if ttl is None else seconds_of(ttl)

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

    Raises:
        EmblemaError: a part cannot be read, or a field is out of range.
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
