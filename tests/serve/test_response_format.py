"""Replies that are held to a form, as clients ask for them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.serve.servers import Running

MESSAGES: Any = [{"role": "user", "content": "who is it?"}]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=150)
    likes: list[Literal["tea", "maps"]] = Field(max_length=3)


FORM: Any = {
    "type": "json_schema",
    "json_schema": {"name": "person", "strict": True, "schema": Person.model_json_schema()},
}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_reply_is_what_the_schema_accepts(writer: Running, temperature: float) -> None:
    options: Any = {"model": "writer", "messages": MESSAGES, "temperature": temperature, "seed": 5}
    reply = writer.client().chat.completions.create(**options, response_format=FORM, max_tokens=600)
    assert reply.choices[0].finish_reason == "stop"
    Person.model_validate_json(reply.choices[0].message.content or "")
    stream = writer.client().chat.completions.create(**options, response_format=FORM, max_tokens=600, stream=True)
    text = "".join(event.choices[0].delta.content or "" for event in stream if event.choices)
    assert text == reply.choices[0].message.content
    parsed = writer.client().chat.completions.parse(**options, response_format=Person, max_tokens=600)
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_any_object_and_a_cut(writer: Running) -> None:
    options: Any = {"model": "writer", "messages": MESSAGES, "response_format": {"type": "json_object"}}
    for seed in range(4):
        reply = writer.client().chat.completions.create(**options, temperature=1, seed=seed, max_tokens=40)
        text, reason = reply.choices[0].message.content or "", reply.choices[0].finish_reason
        assert text.startswith("{") and reason == ("stop" if _is_json(text) else "length")


@pytest.mark.slow
def test_some_are_held_and_others_are_not_in_one_batch(writer: Running) -> None:
    """Nine at once: what each gets alone."""

    def ask(number: int) -> tuple[str, str]:
        more: dict[str, Any] = {"response_format": FORM} if number % 2 else {}
        messages: Any = [{"role": "user", "content": f"who is it, number {number}?"}]
        reply = writer.client().chat.completions.create(
            model="writer", messages=messages, max_tokens=30 + 30 * (number % 3), temperature=number % 3, seed=1, **more
        )
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason

    alone = [ask(number) for number in range(9)]
    with ThreadPoolExecutor(9) as clients:
        assert list(clients.map(ask, range(9))) == alone
    for number, (text, reason) in enumerate(alone):
        assert not number % 2 or reason == "length" or Person.model_validate_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
