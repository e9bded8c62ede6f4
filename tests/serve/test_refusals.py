"""What is wrong with a request for text is said: a status, the words, the field, in OpenAI's shape."""

import base64
import json
from typing import Any

import pytest

from tests.serve.conftest import QUESTION, data_url
from tests.serve.servers import Running
from tests.serve.test_parts import sound
from tests.serve.test_tools import BOTH, CLOCK, KING, MESSAGES, deep, deep_call
from tests.session.test_tool_calls import CALLED

SOUND = base64.b64encode(sound()).decode()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PLAIN: Any = {"model": "reference", "messages": [{"role": "user", "content": QUESTION}]}
WRITTEN: Any = {"model": "writer", "messages": MESSAGES}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **more}]}


def picture(url: str) -> dict[str, Any]:
    return user([{"type": "image_url", "image_url": {"url": url}}])


def form(**schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", **schema}}}


PARSED: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "other"}, 404, "other"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
    (user([{"type": "sound"}]), 400, "messages"),
    (user([{"type": "file", "file": {}}]), 400, "file_id"),
    (user([{"type": "file", "file": {"file_id": "file-1"}}]), 404, "file-1"),
    (user([{"type": "image_url", "image_url": {"url": "data:,x"}}] * 10_000), 400, "10000 parts"),
    ({"n": 9}, 400, "n: "),
    ({"n": 2, "collections": ["a"]}, 400, "n is 1"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "tool_call_id"),
    (user("x", tool_call_id="a"), 400, "tool_call_id"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, 400, "reference cannot be held to JSON"),
    (form(schema={"type": "object"}), 400, "reference cannot be held to JSON"),
    ({"cache_salt": "shared"}, 400, "cache_salt"),
    ({"temperature": -1}, 400, "temperature"),
    ({"temperature": float("nan")}, 400, ""),
    ({"max_tokens": 10**9}, 400, "shorten the prompt"),
    ({"stop": ["a"] * 5}, 400, "stop"),
    ({"presence_penalty": 3}, 400, "presence_penalty"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
    ({"logit_bias": {"meadow": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, 400, "the model has tokens 0 to"),
    ({"strategy": "best"}, 400, "best"),
    ({"strategy": "basis-4"}, 400, "use patch-M"),
    ({"stream_options": "x"}, 400, "stream_options"),
    ({"top_logprobs": 50}, 400, "top_logprobs"),
    (user("x" * 30_000), 400, "characters"),
    ({"collections": ["none"]}, 404, "none"),
    ({"collections": "none"}, 400, "collections"),
    ({"collections": ["a"] * 9}, 400, "collections"),
    ({"collections": [""]}, 400, "collections"),
    ({"collections": ["a" * 300]}, 400, "collections"),
    ({"collections": ["a\x00b"]}, 404, "collection"),
    ({"collections": ["a"], "logprobs": True}, 400, "logprobs"),
    ({"retrieval": {"count": 9}}, 400, "count"),
    ({"retrieval": {"most": 0}}, 400, "most"),
    ({"retrieval": {"end": ""}}, 400, "end"),
    ({"retrieval": "yes"}, 400, "retrieval"),
    (user([{"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}]), 400, "takes no audio: `emblema"),
    *((picture(url), 400, "") for url in (
        "file:///etc/passwd", "/etc/passwd", "http://127.0.0.1:9/x.png", "http://169.254.169.254/latest", "ftp://a/b",
        "",
        *map(data_url, (b"PK\x03\x04zip", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\x89PNG\r\n\x1a\nbroken")),
    )),
]  # fmt: skip
HELD: list[tuple[dict[str, Any], str, str | None]] = [
    ({"tools": BOTH, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "not among", "tool_choice"),
    ({"tools": [CLOCK, CLOCK]}, "same name", "tools"),
    ({"tools": [CLOCK] * 129}, "tools", "tools"),
    ({"tools": [{"type": "web_search"}]}, "function", None),
    ({"tools": BOTH, "collections": ["a"]}, "calls no tools", "tools"),
    ({"tools": [KING], "tool_choice": "required"}, "king", None),
    ({"tools": [deep(80)]}, "levels", None),
    ({"tools": [deep(900)]}, "levels", None),
    ({"tools": BOTH, "messages": [*CALLED[:1], deep_call(900), CALLED[2]]}, "", None),
    ({"tools": BOTH, "messages": [*CALLED[:1], deep_call(20_000), CALLED[2]]}, "another form", None),
    ({"response_format": {"type": "json_schema"}}, "json_schema", "response_format"),
    ({"response_format": {"type": "xml"}}, "type", "response_format.type"),
    (form(schema=3), "schema", None),
    (form(strict=True, schema={"type": "king"}), "king", None),
    (form(schema={"$ref": "#/x"}), "/x", None),
    (form(schema={"enum": ["a" * 70_000]}), "bytes", None),
    (form(schema={"type": "object"}) | {"collections": ["a"]}, "held to a form", "response_format"),
]
COMPLETED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "other"}, 404, "other", None),
    ({"prompt": ["a", "b"]}, 400, "one text", "prompt"),
    ({"prompt": [1, 2, 3]}, 400, "token ids", "prompt"),
    ({"prompt": [[1, 2, 3]]}, 400, "token ids", "prompt"),
    ({"prompt": ""}, 400, "empty", "prompt"),
    ({"prompt": None}, 400, "prompt", "prompt"),
    ({"prompt": "\ud800"}, 400, "valid Unicode", "prompt"),
    ({"prompt": "x" * 30_000}, 400, "characters", "messages"),
    ({"echo": True}, 400, "echo", "echo"),
    ({"suffix": "end"}, 400, "suffix", "suffix"),
    ({"best_of": 3}, 400, "best_of", "best_of"),
    ({"whatever": 3}, 400, "whatever", "whatever"),
    ({"logprobs": True, "n": 20}, 400, "n", "n"),
    ({"max_tokens": 10**9}, 400, "shorten the prompt", "messages"),
]
CHANGING = {
    "repetition_penalty": 1.2, "top_k": 4, "min_p": 0.1, "functions": [{"name": "f"}], "best_of": 2,
    "stop_token_ids": [5], "ignore_eos": True, "guided_choice": ["a"], "reasoning_effort": "high",
    "chat_template_kwargs": {"a": 1},
}  # fmt: skip
PARTS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "input_video", "input_video": {"data": "AAAA"}}, "", "input_video"),
    ({"type": "input_image", "image_url": "data:"}, "", "input_image"),
    ({"type": "text", "content": "hello"}, ".content", "'text'"),
    ({"type": "text"}, ".text", "required"),
    ({"text": "hello"}, "", "type"),
    ({"type": "image_url"}, ".image_url", "required"),
    ({"type": "image_url", "image_url": {"url": 7}}, ".image_url.url", "string"),
    ({"type": "image_url", "image_url": {"url": "data:", "tiles": 4}}, ".image_url.tiles", "not known"),
    ({"type": "file", "file": {"file_id": "a" * 300}}, ".file.file_id", "200"),
    ({"type": "file", "file": "file-1"}, ".file", "file"),
]
BODIES: list[tuple[bytes, str, str]] = [
    (b"{", "application/json", "is no JSON: Expecting property name"),
    (b'{"model": "reference"}', "text/plain", "content-type: application/json"),
    *((body, "application/json", "is no JSON object") for body in (b"[1, 2]", b"[]", b"null", b'"x"', b"1", b"")),
    (b"\xff\xfe{}", "application/json", ""),
    (b'{"model": "reference", "messages": ' + b"[" * 100_000, "application/json", ""),
]


def named(value: Any) -> str:
    """What a case is called."""
    return ascii(value)[:40]


def refused(server: Running, path: str, body: Any, kind: str = "application/json") -> tuple[int, dict[str, Any]]:
    """The status and the error of a request; `body` as bytes, or to be written as JSON."""
    written = body if isinstance(body, bytes) else json.dumps(body).encode()
    with server.http() as http:
        answer = http.post(path, content=written, headers={"content-type": kind})
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return answer.status_code, error


@pytest.mark.parametrize(("change", "status", "word"), PARSED, ids=named)
def test_what_is_wrong_with_a_chat_is_said(server: Running, change: dict[str, Any], status: int, word: str) -> None:
    found, error = refused(server, CHAT, PLAIN | change)
    assert found == status and word in error["message"], error


@pytest.mark.parametrize(("change", "word", "param"), HELD, ids=named)
def test_what_is_wrong_with_tools_and_forms_is_said(
    writer: Running, change: dict[str, Any], word: str, param: str | None
) -> None:
    status, error = refused(writer, CHAT, WRITTEN | change)
    assert status == 400 and word in error["message"] and param in (None, error["param"]), error


@pytest.mark.parametrize(("change", "status", "word", "param"), COMPLETED, ids=named)
def test_what_is_wrong_with_a_completion_is_said(
    server: Running, change: dict[str, Any], status: int, word: str, param: str | None
) -> None:
    found, error = refused(server, TEXT, {"model": "reference", "prompt": QUESTION} | change)
    assert found == status and word in error["message"] and error["param"] == param, error


@pytest.mark.parametrize("name", [*CHANGING, "whatever"])
def test_fields_that_would_change_an_answer_are_refused_by_name(server: Running, name: str) -> None:
    status, error = refused(server, CHAT, PLAIN | {name: CHANGING.get(name, 1)})
    assert status == 400 and name in error["message"] and error["param"] == name
    assert error["code"] == ("unsupported_parameter" if name in CHANGING else "unknown_parameter")


@pytest.mark.parametrize(("part", "place", "word"), PARTS)
def test_a_fault_of_a_part_is_told_of_it(server: Running, part: dict[str, Any], place: str, word: str) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "hello"}, part]}]
    status, error = refused(server, CHAT, PLAIN | {"messages": turns})
    assert status == 400 and error["param"] == f"messages[1].content[1]{place}"
    assert word in error["message"] and error["param"] in error["message"]


@pytest.mark.parametrize(("body", "kind", "word"), BODIES, ids=named)
def test_a_body_that_is_no_object_is_told_so(server: Running, body: bytes, kind: str, word: str) -> None:
    status, error = refused(server, CHAT, body, kind)
    assert status == 400 and error["param"] is None and word in error["message"]


@pytest.mark.parametrize(
    "change", [user("a " * 15_000), {"max_tokens": 10**7}, {"max_completion_tokens": 10**7}], ids=str
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_context_has_its_code(server: Running, change: dict[str, Any], stream: bool) -> None:
    status, error = refused(server, CHAT, PLAIN | change | {"stream": stream})
    assert status == 400 and error["code"] == "context_length_exceeded" and "max_new_tokens" not in error["message"]
