"""OpenAI's Responses: a body in terms of a chat completion, and how its answer is written."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Response
from pydantic import Field

from emblema.serve.chat import Called, TranslatedBody, answer_translated, translated
from emblema.serve.client_body import object_of, refuse_unwritable
from emblema.serve.faults import ServeError, error_body
from emblema.serve.replies import Answer, Choice, Entries, Json
from emblema.session.replies import Reply

LOGPROBS = "message.output_text.logprobs"


class ResponsesBody(TranslatedBody):
    """The body of `POST /v1/responses`. What a chat completion has too is checked there."""

    passed = {
        "user": None, "metadata": None, "store": None, "service_tier": None, "safety_identifier": None,
        "prompt_cache_retention": None, "stream_options": None, "reasoning": ({},),
    }  # fmt: skip
    elsewhere = {
        "background": (False,),
        "truncation": ("disabled",),
        "max_tool_calls": (),
        "prompt": (),
        "reasoning": (),
    }
    input: str | list[Json] = Field(max_length=2**26)
    instructions: str | None = None
    previous_response_id: Any = None
    conversation: Any = None
    include: list[str] = []
    max_output_tokens: int | None = Field(None, ge=1)
    text: Json = {}
    tool_choice: Any = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    temperature: float | None = None
    parallel_tool_calls: bool | None = None
    seed: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None


def chat_of(body: ResponsesBody) -> Json:
    """Return the chat completion that a body asks for.

    Raises:
        ServeError: it goes on from a reply that is not kept, or an item or tool is of a kind that is not offered.
    """
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name) is not None:
            raise ServeError(400, f"{name}: replies are not kept here: send the conversation in `input`", None, name)
    for name in ("tools", "tool_choice", "instructions"):
        refuse_unwritable(getattr(body, name), name)
    chat = body.shared
    opening = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    told = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _turns(body.input)
    chat |= {"messages": [*opening, *told], "max_completion_tokens": body.max_output_tokens}
    if LOGPROBS in body.include or body.top_logprobs is not None:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    for name in body.text.keys() - {"format", "verbosity"}:
        raise ServeError(400, f"text.{name[:80]} is not known here: leave it out", "unknown_parameter", "text")
    chat["verbosity"] = body.text.get("verbosity")
    wanted = object_of(body.text.get("format") or {"type": "text"}, "text.format")
    if wanted.get("type") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": {key: wanted[key] for key in wanted if key != "type"}}
    chat["response_format"] = None if wanted == {"type": "text"} else wanted
    chat["tools"] = [_tool(tool) for tool in body.tools] or None
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    chat["tool_choice"] = choice
    return {name: value for name, value in chat.items() if value is not None}


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:80]
        raise ServeError(400, f"tools: {kind!r} is not offered here: tools are of the type function", None, "tools")
    return {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}


def _turns(items: list[Json]) -> list[Json]:
    """Return the turns that items stand for. Calls join the assistant's turn before them."""
    turns: list[Json] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item:
            case {"type": "function_call"}:
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                if not turns or turns[-1]["role"] != "assistant":
                    turns.append({"role": "assistant", "content": None})
                turns[-1].setdefault("tool_calls", []).append(call)
            case {"type": "function_call_output"}:
                content = translated(item.get("output"), _part, f"{where}.output")
                turns.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            case {"type": "reasoning"}:
                # Of another model: chat templates leave it out too.
                continue
            case {"role": role, "content": content} if item.get("type", "message") == "message":
                turns.append({"role": role, "content": translated(content, _part, f"{where}.content")})
            case _:
                kind = str(item.get("type", "message"))[:80]
                said = f"{where}: an item of type {kind!r} is not read here: give messages, function_call or its output"
                raise ServeError(400, said, None, where)
    return turns


def _part(part: Any, where: str) -> Json:
    kept = {name: part[name] for name in ("prompt_cache_breakpoint",) if isinstance(part, dict) and name in part}
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": text}:
            return {"type": "text", "text": text}
        case {"type": "input_image"}:
            address = {"url": part.get("image_url"), "file_id": part.get("file_id"), "detail": part.get("detail")}
            return {"type": "image_url", "image_url": address, **kept}
        case {"type": "input_file"}:
            data = part.get("file_data") or part.get("file_url")
            file = {"file_id": part.get("file_id"), "file_data": data, "filename": part.get("filename")}
            return {"type": "file", "file": file, **kept}
        case {"type": "input_audio" | "cache"}:
            return part
    kind = str(part.get("type") if isinstance(part, dict) else part)[:80]
    known = "input_text, input_image, input_file, input_audio, output_text, cache"
    raise ServeError(400, f"{where}: a part of type {kind!r} is not known: give one of {known}", None, where)


class ResponsesForm:
    """An answer of one choice as a response: items, and the numbered events of each.

    Args:
        asked: what was asked, which the response repeats.
    """

    last = b""

    def __init__(self, asked: ResponsesBody) -> None:
        self._asked, self._id, self._created = asked, _id("resp"), int(time.time())
        self._output: list[Json] = []
        self._item: _OpenItem | None = None
        self._number = 0

    def body(self, answer: Answer, reply: Reply) -> Json:
        """Return the response."""
        [choice] = answer.choices
        output, status = [], _status(choice)
        if choice.text or not choice.called:
            output.append(_message(_id("msg"), choice.text, choice.told, status))
        output += [_call(_id("fc"), call, call["function"]["arguments"], status) for call in choice.called]
        return self._ended(answer, reply, output)

    def begin(self, answer: Answer) -> Iterator[Json]:
        """Yield that the response has begun."""
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response("in_progress", []))

    def more(self, answer: Answer, choice: Choice, fresh: str, entries: Entries) -> Iterator[Json]:
        """Yield what is added to the message, and the calls at the end."""
        if fresh or entries:
            if self._item is None:
                yield from self._open(_OpenItem(0, _begun_message()))
            yield from self._more(fresh, entries)
        for call in choice.called:
            yield from self._close("completed")
            yield from self._open(_OpenItem(len(self._output), _call(_id("fc"), call, "", "in_progress")))
            yield from self._more(call["function"]["arguments"], [])

    def end(self, answer: Answer, reply: Reply) -> Iterator[Json]:
        """Yield the end of the last item, and the whole."""
        if self._item is None:
            yield from self._open(_OpenItem(0, _begun_message()))
        yield from self._close(_status(answer.choices[0]))
        whole = self._ended(answer, reply, self._output)
        yield self._event(whole["status"], response=whole)

    def failed(self, error: Exception) -> Json:
        """Return that the response has failed."""
        said = {"code": "server_error", "message": error_body(error)["error"]["message"]}
        return self._event("failed", response=self._response("failed", self._output, error=said))

    def _open(self, item: "_OpenItem") -> Iterator[Json]:
        self._item = item
        yield self._event("output_item.added", output_index=item.place, item=item.item)
        if not item.is_call:
            yield self._event("content_part.added", **item.named, content_index=0, part=_text("", []))

    def _more(self, text: str, told: Entries) -> Iterator[Json]:
        item = self._item
        if item is None or not (text or told):
            return
        item.text += text
        item.logprobs += told
        if item.is_call:
            yield self._event("function_call_arguments.delta", **item.named, delta=text)
        else:
            yield self._event("output_text.delta", **item.named, content_index=0, delta=text, logprobs=told)

    def _close(self, status: str) -> Iterator[Json]:
        item, self._item = self._item, None
        if item is None:
            return
        if item.is_call:
            done = {**item.item, "arguments": item.text, "status": status}
            name = item.item["name"]
            yield self._event("function_call_arguments.done", **item.named, name=name, arguments=item.text)
        else:
            done, part = _message(item.item["id"], item.text, item.logprobs, status), _text(item.text, item.logprobs)
            told = {"text": item.text, "logprobs": item.logprobs}
            yield self._event("output_text.done", **item.named, content_index=0, **told)
            yield self._event("content_part.done", **item.named, content_index=0, part=part)
        self._output.append(done)
        yield self._event("output_item.done", output_index=item.place, item=done)

    def _event(self, name: str, /, **more: Any) -> Json:
        self._number += 1
        return {"type": f"response.{name}", **more, "sequence_number": self._number - 1}

    def _response(self, status: str, output: list[Json], **more: Any) -> Json:
        """Return the response in some state."""
        asked = self._asked
        return {
            "id": self._id, "object": "response", "created_at": self._created, "status": status, "error": None,
            "incomplete_details": None, "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens, "model": asked.model, "output": [*output],
            "parallel_tool_calls": asked.parallel_tool_calls is not False, "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None}, "store": False,
            "temperature": asked.temperature or 0.0, "text": {"format": asked.text.get("format") or {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto", "tools": asked.tools, "truncation": "disabled",
            "top_p": 1.0 if asked.top_p is None else asked.top_p, "usage": None, "user": None, "metadata": {}, **more,
        }  # fmt: skip

    def _ended(self, answer: Answer, reply: Reply, output: list[Json]) -> Json:
        usage, is_cut = reply.usage, answer.choices[0].finish_reason == "length"
        return self._response(
            "incomplete" if is_cut else "completed",
            output,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage={
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens, "cache_write_tokens": answer.written_of(reply),
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
            emblema=answer.report(reply),
        )  # fmt: skip


@dataclass(slots=True)
class _OpenItem:
    """An item of the output while it is written: the message, or a call."""

    place: int
    item: Json
    text: str = ""
    logprobs: Entries = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return self.item["type"] == "function_call"

    @property
    def named(self) -> Json:
        return {"item_id": self.item["id"], "output_index": self.place}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _text(text: str, logprobs: Entries) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _message(id: str, text: str, logprobs: Entries, status: str) -> Json:
    content = [_text(text, logprobs)]
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def _begun_message() -> Json:
    return {**_message(_id("msg"), "", [], "in_progress"), "content": []}


def _call(id: str, call: Json, arguments: str, status: str) -> Json:
    named = {"name": call["function"]["name"], "arguments": arguments}
    return {"id": id, "type": "function_call", "call_id": call["id"], **named, "status": status}


async def respond(body: ResponsesBody, call: Called) -> Response:
    """Answer a conversation as OpenAI's Responses do; nothing of it is kept."""
    return await answer_translated(chat_of(body), ResponsesForm(body), call)
