"""Clients of the interfaces themselves: openai, anthropic and litellm get what the server answers without them."""

from typing import Any

import httpx
import litellm
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicRefusal
from openai import OpenAI

from tests.clients.asking import (
    FUNCTION,
    LONG,
    MODEL,
    MOST,
    SCHEMA,
    WORDS,
    Sight,
    answer,
    clip,
    picture,
    png,
    shown,
)

TURNS: Any = [{"role": "user", "content": WORDS}]
TOOL: Any = {"type": "function", "function": FUNCTION}


@pytest.fixture(scope="module")
def client(address: str) -> OpenAI:
    return OpenAI(base_url=address, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def anthropic(server: Any) -> Anthropic:
    return Anthropic(base_url=server.address, api_key="none", max_retries=0)


def test_openai_responds(client: OpenAI, http: httpx.Client, words: str) -> None:
    parts: Any = [
        {"type": "input_image", "image_url": picture(), "detail": "auto"},
        {"type": "input_text", "text": WORDS},
    ]
    given: Any = [{"role": "user", "content": parts}]
    expected = answer(http, shown())
    reply = client.responses.create(model=MODEL, input=given, max_output_tokens=MOST)
    assert reply.output_text == expected and reply.status == "incomplete"
    with client.responses.stream(model=MODEL, input=given, max_output_tokens=MOST) as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == expected
    with client.responses.stream(model=MODEL, input=words, max_output_tokens=MOST) as stream:
        ended = stream.get_final_response()
    assert ended.output_text == answer(http, words) and ended.usage is not None and ended.usage.output_tokens <= MOST


def test_openai_parses_responses(client: OpenAI) -> None:
    reply = client.responses.parse(model=MODEL, input=WORDS, text_format=Sight, max_output_tokens=LONG)
    assert isinstance(reply.output_parsed, Sight)


def test_openai_calls_functions_in_responses(client: OpenAI) -> None:
    tool: Any = {"type": "function", "strict": True, **FUNCTION}
    asked: Any = {
        "model": MODEL,
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": LONG,
    }
    first = client.responses.create(input=WORDS, **asked)
    [call, *_] = [item for item in first.output if item.type == "function_call"]
    assert Sight.model_validate_json(call.arguments)
    calls = [item for item in first.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": each.call_id, "output": "a tent"} for each in calls]
    turns: Any = [{"role": "user", "content": WORDS}, *first.output, *outputs]
    last = client.responses.create(model=MODEL, input=turns, max_output_tokens=MOST)
    assert last.usage is not None and last.usage.input_tokens > len(WORDS + call.arguments + "a tent")
    with client.responses.stream(input=WORDS, **asked) as stream:
        output = stream.get_final_response().output
    assert [item.arguments for item in output if item.type == "function_call"] == [each.arguments for each in calls]


IMAGE: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": picture().partition(",")[2]},
}


def test_anthropic_writes_messages(anthropic: Anthropic, http: httpx.Client) -> None:
    given: Any = {"model": MODEL, "max_tokens": MOST, "messages": [
        {"role": "user", "content": [IMAGE, {"type": "text", "text": WORDS}]},
    ]}  # fmt: skip
    expected = answer(http, shown())
    reply = anthropic.messages.create(**given)
    assert reply.content[0].text == expected and reply.stop_reason == "max_tokens"  # type: ignore[union-attr]
    assert reply.usage.output_tokens == MOST
    with anthropic.messages.stream(**given) as stream:
        assert "".join(stream.text_stream) == expected
        final = stream.get_final_message()
    assert final.usage.output_tokens == MOST and final.stop_reason == "max_tokens"
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) > 0
    system = anthropic.messages.create(
        model=MODEL, max_tokens=MOST, system="brief", messages=TURNS, stop_sequences=["\x00"]
    )
    assert system.content[0].text == answer(http, [{"role": "system", "content": "brief"}, *TURNS])  # type: ignore[union-attr]


def test_anthropic_lists_models_and_reads_errors(anthropic: Anthropic) -> None:
    [model] = anthropic.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    with pytest.raises(AnthropicRefusal, match="top_k") as refused:
        anthropic.messages.create(model=MODEL, max_tokens=MOST, messages=TURNS, extra_body={"top_k": 5})
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_anthropic_uses_tools(anthropic: Anthropic) -> None:
    tool: Any = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
    asked: Any = {
        "model": MODEL,
        "max_tokens": LONG,
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    reply = anthropic.messages.create(messages=TURNS, **asked)
    uses = [block for block in reply.content if block.type == "tool_use"]
    assert reply.stop_reason == "tool_use" and all(Sight.model_validate(use.input) for use in uses)
    results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": "a tent"} for use in uses]
    turns: Any = [*TURNS, {"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    assert anthropic.messages.create(model=MODEL, max_tokens=MOST, messages=turns).content
    with anthropic.messages.stream(messages=TURNS, **asked) as stream:
        streamed = stream.get_final_message().content
    assert [block.input for block in streamed if block.type == "tool_use"] == [use.input for use in uses]


def litellm_to(address: str, provider: str = "openai") -> dict[str, Any]:
    return {"model": f"{provider}/{MODEL}", "api_base": address, "api_key": "none", "num_retries": 0}


def test_litellm_completes(address: str, http: httpx.Client) -> None:
    expected = answer(http, shown())
    reply = litellm.completion(**litellm_to(address), messages=shown(), max_tokens=MOST)
    assert reply.choices[0].message.content == expected and reply.usage.completion_tokens == MOST
    stream = litellm.completion(
        **litellm_to(address), messages=shown(), max_tokens=MOST, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    hosted = litellm.completion(**litellm_to(address, "hosted_vllm"), messages=shown(), max_tokens=MOST)
    assert hosted.choices[0].message.content == expected


def test_litellm_sends_video(address: str, http: httpx.Client) -> None:
    turns = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": clip()}}]}]
    reply = litellm.completion(**litellm_to(address, "hosted_vllm"), messages=turns, max_tokens=MOST)
    assert reply.choices[0].message.content == answer(http, turns) and reply.usage.prompt_tokens > 2 * MOST


def test_litellm_uploads(address: str) -> None:
    file = litellm.create_file(
        file=("a.png", png()), purpose="user_data", custom_llm_provider="openai", api_base=address, api_key="none"
    )
    assert file.id.startswith("file-")


def test_litellm_responds(address: str, http: httpx.Client) -> None:
    reply = litellm.responses(**litellm_to(address), input=WORDS, max_output_tokens=MOST)
    assert reply.output[0].content[0].text == answer(http)
    events = list(litellm.responses(**litellm_to(address), input=WORDS, max_output_tokens=MOST, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer(http)


def test_litellm_bridges_anthropic_s_messages(address: str, http: httpx.Client) -> None:
    reply = litellm.anthropic.messages.create(**litellm_to(address), messages=TURNS, max_tokens=MOST)
    assert reply["content"][0]["text"] == answer(http)


def test_litellm_calls_functions(address: str) -> None:
    reply = litellm.completion(
        **litellm_to(address),
        messages=TURNS,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=LONG,
    )
    assert Sight.model_validate_json(reply.choices[0].message.tool_calls[0].function.arguments)


def test_litellm_forms_replies(address: str) -> None:
    reply = litellm.completion(**litellm_to(address), messages=TURNS, response_format=Sight, max_tokens=LONG)
    assert Sight.model_validate_json(reply.choices[0].message.content)
