"""OpenAI's Responses: what a body asks for, what its reply and its events say, through OpenAI's own client."""

import asyncio
from typing import Any

import openai
import pytest
from openai import OpenAI

from emblema.errors import DeadlineError
from emblema.serve.faults import ServeError
from emblema.serve.responses import ResponsesBody, ResponsesForm, chat_of
from tests.serve.answers import body_of, called, events_of
from tests.serve.conftest import QUESTION, asked, data_url
from tests.serve.servers import Running

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def body(**more: Any) -> ResponsesBody:
    return ResponsesBody.model_validate({"model": "m", "input": "hello"} | more)


def test_items_become_turns() -> None:
    items = [
        {"role": "user", "content": "one"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "data:,x", "detail": "low"},
            {"type": "input_image", "file_id": "file-1"},
            {"type": "input_file", "file_id": "file-2"},
        ]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a tent"},
    ]  # fmt: skip
    chat = chat_of(body(input=items, instructions="be brief"))
    opening, first, second, answer, told = chat["messages"]
    assert opening == {"role": "system", "content": "be brief"} and first == {"role": "user", "content": "one"}
    text, picture, by_id, file = second["content"]
    assert text == {"type": "text", "text": "see"}
    assert picture["image_url"] == {"url": "data:,x", "file_id": None, "detail": "low"}
    assert by_id["image_url"]["file_id"] == "file-1" and file["file"]["file_id"] == "file-2"
    assert answer["content"] == [{"type": "text", "text": "two"}]
    assert [call["id"] for call in answer["tool_calls"]] == ["call_1", "call_2"] and answer["tool_calls"][0] == CALL
    assert told == {"role": "tool", "tool_call_id": "call_1", "content": "a tent"}


def test_fields_become_those_of_a_chat() -> None:
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    tool = {"name": "look", "parameters": {"type": "object"}, "strict": False}
    chat = chat_of(
        body(
            max_output_tokens=7, temperature=0.5, text={"format": {"type": "json_schema", **schema}}, stream=True,
            tools=[{"type": "function", **tool}], tool_choice={"type": "function", "name": "look"}, strategy="full",
        )
    )  # fmt: skip
    assert chat["max_completion_tokens"] == 7 and chat["temperature"] == 0.5 and chat["strategy"] == "full"
    assert chat["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert chat["tools"] == [{"type": "function", "function": tool}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    plain = chat_of(body(text={"format": {"type": "text"}}))
    assert set(plain) == {"model", "messages", "stream"}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\]"),
        ({"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, r"input\[0\].content\[0\]"),
        ({"text": {"shape": 1}}, "text.shape"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ServeError, match=word):
        chat_of(body(**more))


def test_a_reply_becomes_a_response() -> None:
    told = asyncio.run(body_of(ResponsesForm(body()), ["see", called(("look", '{"at": 1}'))]))
    told = openai.types.responses.Response.model_validate(told)
    assert told.status == "completed" and told.output_text == "see"
    call = told.output[1]
    assert (call.type, call.name, call.arguments) == ("function_call", "look", '{"at": 1}') and call.call_id
    assert told.usage is not None and (told.usage.input_tokens, told.usage.total_tokens) == (9, 13)
    assert told.usage.input_tokens_details.cached_tokens == 5
    cut = openai.types.responses.Response.model_validate(asyncio.run(body_of(ResponsesForm(body()), ["se"], "length")))
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_pieces_become_events_in_openai_s_order() -> None:
    calls = called(("look", '{"at": 1}'), ("go", "{}"))
    events = asyncio.run(events_of(ResponsesForm(body()), ["a", " b", calls]))
    arguments = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    text = ["output_text.delta"] * 2 + ["output_text.done", "content_part.done", "output_item.done"]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", *text, "output_item.added", *arguments,
        "output_item.added", *arguments, "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done and [item["type"] for item in done][1:] == ["function_call"] * 2
    assert done[0]["content"][0]["text"] == "a b" and done[1]["arguments"] == '{"at": 1}'
    assert events[-1]["response"]["usage"]["total_tokens"] == 13


def test_an_error_on_the_way_fails_the_response() -> None:
    *_, last = asyncio.run(events_of(ResponsesForm(body()), ["a", "b"], DeadlineError("too late")))
    assert last["type"] == "response.failed" and last["response"]["error"]["message"] == "too late"


def test_openai_s_client_gets_the_answer_of_a_chat(client: OpenAI, pngs: list[bytes]) -> None:
    parts: Any = [{"type": "input_image", "image_url": data_url(png), "detail": "auto"} for png in pngs]
    question: Any = [{"role": "user", "content": [*parts, {"type": "input_text", "text": QUESTION}]}]
    chat = client.chat.completions.create(model="reference", messages=asked(pngs))  # type: ignore[arg-type]
    whole = client.responses.create(model="reference", input=question)
    assert whole.output_text == chat.choices[0].message.content != "" and whole.status == "completed"
    assert whole.usage is not None and chat.usage is not None
    assert whole.usage.input_tokens == chat.usage.prompt_tokens and whole.model_extra["emblema"]["lane"]
    with client.responses.stream(model="reference", input=question) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        ended = stream.get_final_response()
    assert "".join(pieces) == ended.output_text == whole.output_text
    assert ended.usage is not None and ended.usage.output_tokens == whole.usage.output_tokens
    file = client.files.create(file=("page.png", pngs[0]), purpose="user_data").id
    for part in ({"type": "input_image", "file_id": file, "detail": "auto"}, {"type": "input_file", "file_id": file}):
        by_id = client.responses.create(model="reference", input=[{"role": "user", "content": [part]}])  # type: ignore[arg-type,list-item]
        assert by_id.usage is not None and by_id.usage.input_tokens > 60
    short = client.responses.create(model="reference", input=question, max_output_tokens=1)
    assert short.status == "incomplete"


def test_refusals_are_those_of_a_chat(server: Running, client: OpenAI) -> None:
    for more, kind, word in (
        ({"model": "other"}, openai.NotFoundError, "other"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"truncation": "auto"}, openai.BadRequestError, "truncation"),
        ({"extra_body": {"colour": 1}}, openai.BadRequestError, "colour"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "previous_response_id"),
    ):
        with pytest.raises(kind, match=word):
            client.responses.create(**{"model": "reference", "input": "hello", **more})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "more",
    [
        {"text": {"format": "json"}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"x": float("nan")}}}},
        {"tools": [{"type": "function", "name": "f", "parameters": {"x": float("nan")}}]},
        {"tools": [{"type": "function", "name": "f", "description": "\ud800"}], "tool_choice": "none"},
    ],
)
def test_what_could_not_be_written_again_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ServeError) as refused:
        chat_of(body(**more))
    assert refused.value.status == 400
