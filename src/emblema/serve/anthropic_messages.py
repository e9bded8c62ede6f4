"""Anthropic's Messages: a body in terms of a chat completion, and how its answer is written."""

import json
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from fastapi import Response
from pydantic import Field

from emblema.serve.chat import Called, TranslatedBody, answer_translated, translated
from emblema.serve.client_body import ClientBody, object_of
from emblema.serve.faults import ServeError, anthropic_error, error_body
from emblema.serve.replies import Answer, Choice, Entries, Json
from emblema.session.replies import Reply

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KEPT = "5m"
"""How long a part with `cache_control` is kept where it does not say, as Anthropic has it."""


class MessageTurn(ClientBody):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str | list[Json]


class MessagesBody(TranslatedBody):
    """The body of `POST /v1/messages`. What a chat completion has too is checked there."""

    passed = {
        "metadata": None, "service_tier": None, "thinking": ({"type": "disabled"},), "container": (), "betas": None,
    }  # fmt: skip
    elsewhere = {"thinking": (), "top_k": (0, -1), "mcp_servers": ([],), "context_management": ()}
    max_tokens: int = Field(ge=1)
    messages: list[MessageTurn] = Field(min_length=1, max_length=100_000)
    system: str | list[Json] | None = None
    stop_sequences: list[str] = []
    temperature: float | None = Field(None, ge=0, le=1)
    tool_choice: Json | None = None
    output_config: Json = {}


def chat_of(body: MessagesBody) -> Json:
    """Return the chat completion that a body asks for; `ServeError` where a part of it is not offered."""
    chat = body.shared
    turns: list[Json] = []
    if body.system:
        turns.append({"role": "system", "content": translated(body.system, _part, "system")})
    for index, turn in enumerate(body.messages):
        turns += _turns(turn, f"messages[{index}].content")
    chat |= {"messages": turns, "max_completion_tokens": body.max_tokens, "stop": body.stop_sequences or None}
    chat["tools"] = [_tool(tool) for tool in body.tools] or None
    if body.tool_choice is not None:
        chat["tool_choice"] = _choice(body.tool_choice)
        if body.tool_choice.get("disable_parallel_tool_use"):
            chat["parallel_tool_calls"] = False
    for name in body.output_config.keys() - {"format"}:
        raise ServeError(400, f"output_config.{name[:80]} is not known here: leave it out", None, "output_config")
    wanted = body.output_config.get("format")
    if wanted is not None:
        wanted = object_of(wanted, "output_config.format")
        schema = {"name": "reply", "schema": wanted.get("schema"), "strict": True}
        chat["response_format"] = {"type": wanted.get("type"), "json_schema": schema}
    return {name: value for name, value in chat.items() if value is not None}


def _tool(tool: Json) -> Json:
    if tool.get("type", "custom") != "custom":
        kind = str(tool["type"])[:80]
        raise ServeError(400, f"tools: {kind!r} is not offered here: give tools with an input_schema", None, "tools")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _choice(choice: Json) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    named = {"any": "required", "auto": "auto", "none": "none"}
    kind = str(choice.get("type"))
    if kind not in named:
        raise ServeError(400, f"tool_choice: {kind[:80]!r} is none of auto, any, tool, none", None, "tool_choice")
    return named[kind]


def _turns(turn: MessageTurn, where: str) -> Iterator[Json]:
    """Yield the chat turns of one turn: results of tools have turns of their own, before what the user says."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    said, calls = [], []
    for index, block in enumerate(turn.content):
        match block:
            case {"type": "tool_result"}:
                content = translated(block.get("content") or "", _part, f"{where}[{index}].content")
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
            case {"type": "tool_use"}:
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case {"type": "thinking" | "redacted_thinking"}:
                # Of another model: chat templates leave it out too.
                continue
            case _:
                said.append(_part(block, f"{where}[{index}]"))
    if calls:
        yield {"role": turn.role, "content": said or None, "tool_calls": calls}
    elif said:
        yield {"role": turn.role, "content": said}


def _part(block: Any, where: str) -> Json:
    """Return a block as a part of a chat turn; media with `cache_control` are kept for its time."""
    block = object_of(block, where)
    kind = str(block.get("type"))[:80]
    if kind == "text":
        return {"type": "text", "text": block.get("text")}
    if kind == "cache":
        return dict(block)
    if kind not in ("image", "document"):
        raise ServeError(400, f"{where}: a block of type {kind!r} is not read here: give text, image or document")
    control = object_of(block.get("cache_control") or {}, f"{where}.cache_control")
    kept = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": control.get("ttl", KEPT)}} if control else {}
    match block.get("source"):
        case {"type": "file", "file_id": str(id)}:
            return {"type": "file", "file": {"file_id": id}, **kept}
        case {"type": "base64", "data": str(data), "media_type": str(named)}:
            address = f"data:{named};base64,{data}"
        case {"type": "url", "url": str(address)}:
            pass
        case {"type": "text", "data": str(text)}:
            return {"type": "text", "text": text}
        case _:
            raise ServeError(400, f"{where}.source: give one of type base64, url or file", None, f"{where}.source")
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": address}, **kept}
    return {"type": "file", "file": {"file_data": address}, **kept}


class MessageForm:
    """An answer of one choice as a message: blocks, and the events of each."""

    last = b""

    def __init__(self, model: str) -> None:
        self._model, self._place, self._is_open = model, 0, False

    def body(self, answer: Answer, reply: Reply) -> Json:
        """Return the message."""
        [choice] = answer.choices
        content: list[Json] = [{"type": "text", "text": choice.text}] if choice.text or not choice.called else []
        content += [{**_use(call), "input": input_of(call["function"]["arguments"])} for call in choice.called]
        stop = {"stop_reason": _stop(choice), "usage": _usage(answer, reply)}
        return self._message() | {"content": content, **stop, "emblema": answer.report(reply)}

    def begin(self, answer: Answer) -> Iterator[Json]:
        """Yield that the message has begun."""
        yield {"type": "message_start", "message": self._message()}

    def more(self, answer: Answer, choice: Choice, fresh: str, entries: Entries) -> Iterator[Json]:
        """Yield what is added to the text, and the calls at the end."""
        if fresh:
            if not self._is_open:
                yield self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": fresh})
        for call in choice.called:
            yield from self._stop()
            yield self._start(_use(call))
            yield self._delta({"type": "input_json_delta", "partial_json": call["function"]["arguments"]})

    def end(self, answer: Answer, reply: Reply) -> Iterator[Json]:
        """Yield the end of the last block, and of the message."""
        if not self._is_open:
            yield self._start({"type": "text", "text": ""})
        yield from self._stop()
        stop = {"stop_reason": _stop(answer.choices[0]), "stop_sequence": None}
        told = {"usage": _usage(answer, reply), "emblema": answer.report(reply)}
        yield {"type": "message_delta", "delta": stop, **told}
        yield {"type": "message_stop"}

    def failed(self, error: Exception) -> Json:
        """Return the event of an error."""
        return anthropic_error(error_body(error))

    def _start(self, block: Json) -> Json:
        self._is_open = True
        return {"type": "content_block_start", "index": self._place, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._place, "delta": delta}

    def _stop(self) -> Iterator[Json]:
        if self._is_open:
            yield {"type": "content_block_stop", "index": self._place}
            self._place, self._is_open = self._place + 1, False

    def _message(self) -> Json:
        return {
            "id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": self._model,
            "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }  # fmt: skip


def _stop(choice: Choice) -> str:
    return STOPS[choice.finish_reason or "stop"]


def _use(call: Json) -> Json:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def input_of(arguments: str) -> Json:
    """Return what a call is given; text that is no JSON object, which a model may write, as `arguments`."""
    try:
        given = json.loads(arguments or "{}", parse_constant=str)
    except (ValueError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"arguments": arguments}


def _usage(answer: Answer, reply: Reply) -> Json:
    """Return tokens as Anthropic counts them: those of a prompt are read from a cache, written to one, or neither."""
    usage = reply.usage
    computed = usage.prompt_tokens - usage.cached_tokens
    written = min(answer.written_of(reply), computed)
    return {
        "input_tokens": computed - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


async def write_message(body: MessagesBody, call: Called) -> Response:
    """Answer a conversation as Anthropic's Messages do."""
    return await answer_translated(chat_of(body), MessageForm(body.model), call)
