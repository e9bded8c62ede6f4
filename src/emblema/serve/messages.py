"""A chat request as clients write it."""

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from emblema.kv.chunk import Chunk, Clip
from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError
from emblema.serve.parts import (
    CacheContent,
    CacheOptions,
    CollectionChoice,
    Contents,
    MediaContent,
    TextContent,
    text_length,
)
from emblema.serve.reply_fields import OTHER_SAMPLING, ResponseFormat, SamplingFields
from emblema.serve.tools import TOOLS, ToolCall, ToolUse
from emblema.session.chat_template import ChatTemplate
from emblema.session.decoding import Sampling
from emblema.session.grammar import Grammar, GrammarCompiler
from emblema.session.prompt_reader import SlidPart
from emblema.session.tool_calls import rules_of_calls, texts_in

MESSAGES = 2_048
"""Messages of a conversation at most, as OpenAI has it."""
LONGEST_REPLY = 1_024
"""Tokens of a reply whose request does not say."""


class ChatMessage(ClientBody):
    """One turn of a conversation. An assistant's may be empty."""

    passed = {
        "name": None, "refusal": None, "annotations": None, "reasoning": None, "reasoning_content": None,
    }  # fmt: skip
    elsewhere = {"function_call": (), "audio": ()}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Contents = ""
    tool_calls: list[ToolCall] = Field([], max_length=TOOLS)
    tool_call_id: str | None = Field(None, max_length=200)

    @model_validator(mode="after")
    def _others_say_something(self) -> Self:
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise PydanticCustomError("missing", "Field required", {"field": "content"})
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "an assistant's message alone has tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise PydanticCustomError("tool_call_id", "a tool's message has a tool_call_id, and no other has one")
        return self

    @property
    def calls_length(self) -> int:
        """Characters of its calls."""
        return sum(len(call.function.name) + len(call.function.arguments) for call in self.tool_calls)


class ChatRequest(ClientBody, SamplingFields, CollectionChoice, ToolUse):
    """The body of `POST /v1/chat/completions`."""

    passed = {
        "user": None, "metadata": None, "store": None, "service_tier": None, "safety_identifier": None,
        "prompt_cache_retention": None, "function_call": ("none", "auto"), "verbosity": ("medium",),
        "add_generation_prompt": (True,), "continue_final_message": (False,), "skip_special_tokens": (True,),
        "echo": (False,),
    }  # fmt: skip
    elsewhere = OTHER_SAMPLING | {
        "functions": ([],), "function_call": (), "audio": (), "modalities": ([], ["text"]), "bad_words": ([],),
        "reasoning_effort": (), "chat_template": (), "chat_template_kwargs": ({},),
    }  # fmt: skip
    model: str = Field(max_length=1_000)
    messages: list[ChatMessage] = Field(min_length=1, max_length=MESSAGES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    strategy: str | None = Field(None, max_length=100)
    max_kl: float | None = Field(None, ge=0)
    survivors: Literal["drop", "keep"] = "drop"
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None

    def refuse_conflicts(self) -> None:
        """Refuse fields that cannot be followed, alone or together.

        Raises:
            EmblemaError: there are some.
        """
        self.refuse_wrong()
        if self.collections and (self.logprobs or self.top_logprobs):
            raise ServeError(400, "logprobs are not told of a reply that may search collections", None, "logprobs")
        if self.collections and self.n > 1:
            raise ServeError(400, "a reply that may search collections is made alone: n is 1", None, "n")
        if self.collections and self.offered:
            raise ServeError(400, "a reply that may search collections calls no tools", None, "tools")
        if self.collections and self.held:
            said = "a reply that may search collections cannot be held to a form"
            raise ServeError(400, said, None, "response_format")

    @property
    def held(self) -> bool:
        """Whether the reply is held to a grammar."""
        return bool(self.forced) or (self.response_format is not None and self.response_format.type != "text")

    def grammar(self, compiler: GrammarCompiler, template: ChatTemplate) -> Grammar:
        """Return what a held reply is held to; errors are those of `GrammarCompiler`.

        Args:
            compiler: of the model.
            template: of the model, which says how it writes calls.
        """
        answer = None if self.response_format is None else self.response_format.rule
        if not self.forced and not self.offered:
            return compiler.of_rules(f"start: {answer}")
        tools, answer = (self.forced, None) if self.forced else (self.offered, answer)
        return compiler.of_rules(
            rules_of_calls(tools, marked=template.marks_calls, most=self.most_calls, answer=answer)
        )

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
        told = sum(text_length(message.content) + message.calls_length for message in self.messages)
        return told + sum(map(len, texts_in(self.offered)))

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen; greedily unless a temperature is given."""
        return self.sampling_of(self.max_completion_tokens or self.max_tokens or LONGEST_REPLY)


MediaItem = Chunk | Clip | dict[str, Any]
"""A piece that is known, or a content item with media."""
ReadItem = str | MediaItem | SlidPart
"""What a part of a request becomes in a prompt."""


def chunk_count(item: ReadItem) -> int:
    """Return how many chunks an item has in a prompt; text has none."""
    if isinstance(item, str):
        return 0
    if isinstance(item, SlidPart):
        return chunk_count(item.piece)
    if isinstance(item, dict):
        return len(item[item["type"]].chunks)
    return len(item.chunks) if isinstance(item, Clip) else 1
