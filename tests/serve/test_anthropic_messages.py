"""Anthropic's Messages: what a body asks for, and what its reply, its events and its errors say."""

import asyncio
import json
from typing import Any

import pytest

from emblema.errors import DeadlineError
from emblema.serve.anthropic_messages import MessageForm, MessagesBody, chat_of, input_of
from emblema.serve.faults import ServeError
from emblema.serve.replies import json_bytes
from tests.serve.answers import body_of, called, events_of
from tests.serve.conftest import QUESTION, asked, data_url
from tests.serve.servers import Running

VERSION = {"anthropic-version": "2023-06-01"}
COUNTED = {
    "input_tokens": 2, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 5, "output_tokens": 4,
}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def body(content: Any = "hello", **more: Any) -> MessagesBody:
    turns = [{"role": "user", "content": content}]
    return MessagesBody.model_validate({"model": "m", "max_tokens": 8, "messages": turns} | more)


def test_blocks_become_turns() -> None:
    use = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}}
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "two"}, use]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a tent"}]},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
            {"type": "image", "source": {"type": "url", "url": "https://x/y"}, "cache_control": {"type": "ephemeral"}},
            {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        ]},
    ]  # fmt: skip
    chat = chat_of(body(messages=turns, system=[{"type": "text", "text": "be brief", "cache_control": None}]))
    system, first, answer, told, last = chat["messages"]
    assert system == {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
    assert first == {"role": "user", "content": "one"}
    assert answer == {"role": "assistant", "content": [{"type": "text", "text": "two"}], "tool_calls": [CALL]}
    assert told == {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a tent"}]}
    inline, kept, file = last["content"]
    assert inline == {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}
    assert kept["image_url"] == {"url": "https://x/y"} and kept["prompt_cache_breakpoint"]["ttl"] == "5m"
    assert file == {"type": "file", "file": {"file_id": "file-1"}}


def test_fields_become_those_of_a_chat() -> None:
    tool = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
    chat = chat_of(body(tools=[tool], tool_choice={"type": "any"}, stop_sequences=["."], stream=True, temperature=0.2))
    function = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
    assert chat["tools"] == [{"type": "function", "function": function}] and chat["tool_choice"] == "required"
    assert chat["stop"] == ["."] and chat["max_completion_tokens"] == 8 and chat["temperature"] == 0.2
    named = chat_of(body(tools=[tool], tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True}))
    assert named["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert named["parallel_tool_calls"] is False
    formed = chat_of(body(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}))
    assert formed["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("content", "more", "word"),
    [
        ([{"type": "search_result"}], {}, r"messages\[0\].content\[0\]"),
        ([{"type": "image", "source": {"type": "path"}}], {}, "source"),
        ("hello", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ("hello", {"tool_choice": {"type": "some"}}, "some"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(content: Any, more: dict[str, Any], word: str) -> None:
    with pytest.raises(ServeError, match=word):
        chat_of(body(content, **more))


def test_a_reply_becomes_a_message() -> None:
    told = asyncio.run(body_of(MessageForm("m"), [called(("look", '{"at": 1}'))]))
    [use] = told["content"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "look", {"at": 1}) and use["id"]
    assert told["stop_reason"] == "tool_use" and told["usage"] == COUNTED and told["type"] == "message"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}), ('{"at": "\\ud83d"}', {"at": "\ud83d"}), ('{"at": NaN}', {"at": "NaN"}),
        ("[1]", {"arguments": "[1]"}),
        ('{"at"', {"arguments": '{"at"'}), ("[" * 10**5, {"arguments": "[" * 10**5}),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_whatever_a_model_gives_a_call_is_told(arguments: str, given: dict[str, Any]) -> None:
    assert input_of(arguments) == given and json.loads(json_bytes(given)) == given


def test_pieces_become_events() -> None:
    events = asyncio.run(events_of(MessageForm("m"), ["a", " b", called(("look", '{"at": 1}'))]))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == [
        "message_start", block[0], block[1], block[1], block[2], *block, "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event["index"] for event in events if "index" in event] == [0] * 4 + [1] * 3
    assert events[6]["delta"] == {"type": "input_json_delta", "partial_json": '{"at": 1}'}
    assert events[-2]["delta"]["stop_reason"] == "tool_use" and events[-2]["usage"] == COUNTED


def test_a_message_is_the_answer_of_a_chat(server: Running, pngs: list[bytes]) -> None:
    sources = [{"type": "base64", "media_type": "image/png", "data": data_url(png).partition(",")[2]} for png in pngs]
    content = [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": QUESTION}]
    given = {"model": "reference", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    with server.http(headers=VERSION | {"x-api-key": "none"}) as http:
        chat = http.post("/v1/chat/completions", json={"model": "reference", "messages": asked(pngs)}).json()
        whole = http.post("/v1/messages", json=given).json()
        lines = http.post("/v1/messages", json=given | {"stream": True}).text.split("\n\n")[:-1]
        listed = http.get("/v1/models").json()
    text = chat["choices"][0]["message"]["content"]
    assert whole["content"] == [{"type": "text", "text": text}] and text
    assert whole["stop_reason"] == "end_turn" and whole["usage"]["output_tokens"] > 0
    events = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    assert [line.partition("\n")[0] for line in lines] == [f"event: {event['type']}" for event in events]
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == text
    [model] = listed["data"]
    assert model["type"] == "model" and model["display_name"] == "reference" and model["created_at"].endswith("Z")
    assert listed["has_more"] is False and listed["first_id"] == listed["last_id"] == "reference"


def test_errors_have_anthropic_s_form(server: Running) -> None:
    wrong = {"model": "reference", "messages": []}
    with server.http() as http:
        for answer, status, kind, word in (
            (http.post("/v1/messages", json=wrong), 400, "invalid_request_error", "max_tokens"),
            (
                http.post("/v1/messages", json=wrong | {"max_tokens": 1}, headers=VERSION),
                400,
                "invalid_request_error",
                "",
            ),
            (http.get("/v1/models/none", headers=VERSION), 404, "not_found_error", "none"),
            (http.get("/health", headers=VERSION | {"origin": "http://x"}), 403, "permission_error", "origin"),
        ):
            said = answer.json()
            assert (
                answer.status_code == status and said["type"] == "error" and set(said["error"]) == {"type", "message"}
            )
            assert said["error"]["type"] == kind and word in said["error"]["message"]


@pytest.mark.parametrize(
    ("content", "more"),
    [
        ("hello", {"output_config": {"format": "json"}}),
        ([{"type": "image", "source": {"type": "url", "url": "https://x/y"}, "cache_control": "x"}], {}),
        ([{"type": "tool_result", "tool_use_id": "a", "content": ["text"]}], {}),
        ([{"type": "tool_result", "tool_use_id": "a", "content": ["cache"]}], {}),
        ([{"type": "text", "text": "\ud800"}], {}),
    ],
)
def test_what_is_no_object_or_no_unicode_is_refused(content: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ServeError) as refused:
        chat_of(body(content, **more))
    assert refused.value.status == 400


def test_an_error_in_a_stream_is_told_and_heard_of() -> None:
    told = asyncio.run(events_of(MessageForm("m"), ["a", "b"], DeadlineError("too late")))
    assert [event["type"] for event in told][-1] == "error" and told[-1]["error"]["message"] == "too late"
    with pytest.raises(RuntimeError, match="for the log"):
        asyncio.run(events_of(MessageForm("m"), ["a", "b"], RuntimeError("for the log")))
