"""Functions that replies call, as agent frameworks ask for them."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, ConfigDict, Field

from tests.serve.conftest import QUESTION
from tests.serve.servers import Running
from tests.serve.writing_model import byte_tokenizer
from tests.session.test_tool_calls import CALLED, TOOLS


class Clock(BaseModel):
    """Tell the time."""

    model_config = ConfigDict(extra="forbid")
    hour: int = Field(ge=0, le=23)


CLOCK: Any = pydantic_function_tool(Clock, name="clock")
BOTH: Any = [TOOLS[0], CLOCK]
PARAMETERS = {"weather": TOOLS[0]["function"]["parameters"], "clock": Clock.model_json_schema()}
MESSAGES: Any = [{"role": "user", "content": "what is it like?"}]
LINE, *SPACES = byte_tokenizer()("\n\t ")["input_ids"]
BIASES = {LINE: -2.5, **dict.fromkeys(SPACES, -100)}
"""Of what JSON may have any number of, and of a further call."""
OPTIONS: dict[str, Any] = {
    "model": "writer", "messages": MESSAGES, "tools": BOTH, "temperature": 1.0, "max_tokens": 900, "logit_bias": BIASES,
}  # fmt: skip


def deep(levels: int) -> dict[str, Any]:
    """A function of nested parameters."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def deep_call(levels: int) -> dict[str, Any]:
    """A turn with a call of nested arguments."""
    function = {"name": "weather", "arguments": '{"a": ' + "[" * levels + "]" * levels + "}"}
    return {"role": "assistant", "tool_calls": [{"id": "abc", "type": "function", "function": function}]}


KING = {"type": "function", "function": {"name": "f", "parameters": {"type": "king"}}}


def fits(call: Any) -> str:
    """Return the name of a call whose arguments fit."""
    assert call.type == "function" and len(call.id) == 9
    Draft202012Validator(PARAMETERS[call.function.name]).validate(json.loads(call.function.arguments))
    return str(call.function.name)


@pytest.mark.slow
def test_a_reply_that_has_to_call_calls_what_fits(writer: Running) -> None:
    create = writer.client().chat.completions.create
    counts, names = set(), set()
    for seed in (0, 3):
        (choice,) = create(**OPTIONS, tool_choice="required", seed=seed).choices
        calls = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        names |= set(map(fits, calls))
        assert len({call.id for call in calls}) == len(calls)
        counts.add(len(calls))
        (one,) = create(**OPTIONS, tool_choice="required", seed=seed, parallel_tool_calls=False).choices
        assert len(one.message.tool_calls) == 1 and fits(one.message.tool_calls[0])
    assert names == {"weather", "clock"} and max(counts) > 1
    named: Any = {"type": "function", "function": {"name": "clock"}}
    (call,) = create(**OPTIONS, tool_choice=named, seed=1).choices[0].message.tool_calls
    assert fits(call) == "clock"


@pytest.mark.slow
def test_a_stream_and_several_choices_call_the_same(writer: Running) -> None:
    create = writer.client().chat.completions.create
    options = OPTIONS | {"tool_choice": "required", "seed": 4, "n": 2}
    calls: list[list[tuple[str, str]]] = [[], []]
    reasons: list[list[str]] = [[], []]
    for event in create(**options, stream=True):
        (part,) = event.choices
        assert not part.delta.content
        reasons[part.index] += filter(None, [part.finish_reason])
        for delta in part.delta.tool_calls or []:
            assert delta.id is not None and delta.type == "function" and delta.index == len(calls[part.index])
            calls[part.index].append((delta.function.name, delta.function.arguments))
    assert reasons == [["tool_calls"], ["tool_calls"]]
    whole = [choice.message.tool_calls for choice in create(**options).choices]
    assert calls == [[(call.function.name, call.function.arguments) for call in made] for made in whole]


def test_openais_helper_reads_the_arguments(writer: Running) -> None:
    reply = writer.client().chat.completions.parse(
        model="writer", messages=MESSAGES, tools=[CLOCK], tool_choice="required", parallel_tool_calls=False
    )
    (call, *_) = reply.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Clock)


def test_a_conversation_with_calls_goes_on(writer: Running) -> None:
    """Turns of tools are in the prompt, and a tool that may not be called is not."""
    create = writer.client().chat.completions.create
    options: Any = {"model": "writer", "max_tokens": 3}
    rows = {}
    for name, messages, more in (
        ("short", CALLED[:1], {}),
        ("called", CALLED, {}),
        ("offered", CALLED, {"tools": BOTH}),
        ("withheld", CALLED, {"tools": BOTH, "tool_choice": "none"}),
    ):
        reply = create(**options, messages=messages, **more)
        assert reply.choices[0].finish_reason in ("length", "stop") and reply.choices[0].message.tool_calls is None
        rows[name] = reply.usage.prompt_tokens
    assert rows["short"] < rows["called"] == rows["withheld"] < rows["offered"]


def test_a_reply_may_call_or_answer_in_a_form(writer: Running) -> None:
    create = writer.client().chat.completions.create
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"enum": ["yes", "no"]}}}
    called = set()
    for choice in create(**OPTIONS, response_format=form, seed=3, n=6).choices:
        called.add(choice.finish_reason)
        if choice.message.tool_calls:
            assert all(map(fits, choice.message.tool_calls)) and choice.message.content is None
        else:
            assert json.loads(choice.message.content) in ("yes", "no")
    assert called == {"tool_calls", "stop"}


def test_a_call_that_is_cut_is_told_as_text(writer: Running) -> None:
    (choice,) = writer.client().chat.completions.create(**OPTIONS | {"max_tokens": 20}, tool_choice="required").choices
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert (choice.message.content or "").startswith("<tool_call>")


def test_a_model_that_cannot_write_json_may_be_offered_tools_but_not_held_to_them(client: OpenAI) -> None:
    options: Any = {"model": "reference", "messages": [{"role": "user", "content": QUESTION}], "tools": BOTH}
    reply = client.chat.completions.create(**options, max_tokens=4)
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert "words are unknown" in (reply.model_extra or {})["emblema"]["remark"]
    with pytest.raises(Exception, match="the model reference cannot be held to JSON"):
        client.chat.completions.create(**options, tool_choice="required")
