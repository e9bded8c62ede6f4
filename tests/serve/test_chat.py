"""Chat completions, as OpenAI's own client calls them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from emblema import Engine
from tests.serve.conftest import QUESTION, asked, data_url
from tests.serve.servers import Running


def answer_of(engine: Engine, pngs: list[bytes], question: str = QUESTION, strategy: str = "full") -> Any:
    content = [*({"type": "image", "image": png} for png in pngs), question]
    return engine.generate([{"role": "user", "content": content}], strategy)


def test_a_reply_is_the_engines(client: OpenAI, reference: Engine, pngs: list[bytes]) -> None:
    reply = client.chat.completions.create(model="reference", messages=asked(pngs), extra_body={"strategy": "full"})
    expected = answer_of(reference, pngs)
    assert reply.choices[0].message.content == expected.text and reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.prompt_tokens == expected.usage.prompt_tokens
    assert reply.usage.completion_tokens == expected.usage.completion_tokens
    assert reply.model == "reference" and reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")


def test_cached_tokens_are_the_rows_taken(client: OpenAI, pngs: list[bytes]) -> None:
    for strategy in ("blind", "patch-25%", "full"):
        reply = client.chat.completions.create(
            model="reference", messages=asked(pngs[::-1]), extra_body={"strategy": strategy}
        )
        report = reply.model_extra["emblema"]  # type: ignore[index]
        assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
        cached = reply.usage.prompt_tokens_details.cached_tokens
        assert cached == report["cached_tokens"] == reply.usage.prompt_tokens - report["computed_tokens"]
        assert report["lane"] == strategy and report["ttft_seconds"] > 0
        assert (cached == 0) == (strategy == "full")
        assert (report["patched_tokens"] > 0) == (strategy == "patch-25%")


def test_a_stream_is_the_same_reply(client: OpenAI, pngs: list[bytes]) -> None:
    whole = client.chat.completions.create(model="reference", messages=asked(pngs), extra_body={"strategy": "full"})
    stream = client.chat.completions.create(
        model="reference",
        messages=asked(pngs),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"strategy": "full"},
    )
    events = list(stream)
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == (
        whole.choices[0].message.content
    )
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "stop"
    assert events[0].choices[0].delta.role == "assistant" and len({event.id for event in events}) == 1
    assert events[-1].choices == [] and events[-1].usage == whole.usage
    reports = [event.model_extra["emblema"] for event in events if "emblema" in (event.model_extra or {})]
    assert len(reports) == 1 and reports[0]["lane"] == "full"


def test_stop_length_and_turns(client: OpenAI, pngs: list[bytes]) -> None:
    long = {"model": "reference", "messages": asked(pngs), "temperature": 2.0, "seed": 4}
    first = client.chat.completions.create(**long, max_tokens=6)  # type: ignore[call-overload]
    assert first.choices[0].finish_reason in ("length", "stop") and first.usage.completion_tokens <= 6
    text = first.choices[0].message.content
    cut = client.chat.completions.create(**long, max_completion_tokens=6, stop=[text[2:4]])  # type: ignore[call-overload]
    assert cut.choices[0].message.content == text[: text.index(text[2:4])] and cut.choices[0].finish_reason == "stop"
    turns = [
        {"role": "developer", "content": "answer in one word"},
        *asked(pngs),
        {"role": "assistant", "content": "meadow"},
        {"role": "user", "content": QUESTION},
    ]
    assert client.chat.completions.create(model="reference", messages=turns, max_tokens=8).choices[0].message.content  # type: ignore[call-overload]


def test_probabilities_are_told(client: OpenAI, pngs: list[bytes]) -> None:
    options = {"model": "reference", "messages": asked(pngs), "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    told = whole.choices[0].logprobs.content
    assert len(told) == whole.usage.completion_tokens
    for token in told:
        assert len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob == token.logprob <= 0
        assert token.top_logprobs[0].token == token.token and bytes(token.bytes).decode() == token.token
    events = list(client.chat.completions.create(**options, stream=True))  # type: ignore[call-overload]
    streamed = [
        token.logprob for event in events if event.choices and event.choices[0].logprobs
        for token in event.choices[0].logprobs.content
    ]  # fmt: skip
    assert streamed == pytest.approx([token.logprob for token in told], abs=1e-5)


@pytest.mark.slow
def test_many_clients_get_what_each_gets_alone(server: Running, pngs: list[bytes]) -> None:
    """Forty requests of sixteen clients, streamed and whole, short and long, with and without pictures."""
    client = server.client()

    def ask(number: int) -> str | None:
        pictures = pngs[: number % (len(pngs) + 1)][:: 1 if number % 2 else -1]
        options: dict[str, Any] = {"max_tokens": 4 + number % 9, "extra_body": {"strategy": "full"}}
        messages = asked(pictures, QUESTION if number % 3 else f"{QUESTION} {QUESTION}")
        if number % 4:
            reply = client.chat.completions.create(model="reference", messages=messages, **options)  # type: ignore[arg-type]
            text: str | None = reply.choices[0].message.content
            return text
        stream = client.chat.completions.create(model="reference", messages=messages, stream=True, **options)  # type: ignore[arg-type]
        return "".join(event.choices[0].delta.content or "" for event in stream if event.choices)

    alone = [ask(number) for number in range(40)]
    with ThreadPoolExecutor(16) as clients:
        assert list(clients.map(ask, range(40))) == alone


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"model": "other"}, 404, "other"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, 400, "file_id"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, 404, "file-1"),
        ({"n": 3}, 400, "n above 1"),
        ({"tools": [{"type": "function"}]}, 400, "vllm-serve"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"cache_salt": "shared"}, 400, "cache_salt"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": float("nan")}, 400, ""),
        ({"max_tokens": 10**9}, 400, "max_new_tokens"),
        ({"stop": ["a"] * 5}, 400, "stop"),
        ({"strategy": "best"}, 400, "best"),
        ({"stream_options": "x"}, 400, "stream_options"),
        ({"top_logprobs": 50}, 400, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 30_000}]}, 400, "characters"),
    ],
)
def test_what_is_wrong_is_said(server: Running, change: dict[str, Any], status: int, word: str) -> None:
    body = {"model": "reference", "messages": [{"role": "user", "content": QUESTION}]} | change
    with server.http() as http:
        answer = http.post(
            "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
        )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert word in error["message"] and set(error) == {"message", "type", "param", "code"}


def test_unknown_fields_are_passed_over(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="reference",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=2,
        extra_body={"whatever": {"a": 1}, "prompt_cache_key": "k", "user": "u", "tools": []},
    )
    assert reply.choices[0].message.content is not None


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "/etc/passwd", "http://127.0.0.1:9/x.png", "http://169.254.169.254/latest", "ftp://a/b", ""],
)
def test_addresses_that_lead_inside_are_refused(server: Running, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with server.http() as http:
        answer = http.post(
            "/v1/chat/completions", json={"model": "reference", "messages": [{"role": "user", "content": [part]}]}
        )
    assert answer.status_code == 400, answer.text


def test_pictures_that_are_none_are_refused(server: Running) -> None:
    for data in (b"PK\x03\x04zip", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\x89PNG\r\n\x1a\nbroken"):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(data)}}]}]
        with server.http() as http:
            answer = http.post("/v1/chat/completions", json={"model": "reference", "messages": messages})
        assert answer.status_code == 400, answer.text


def test_a_client_that_leaves_frees_its_place(server: Running, pngs: list[bytes]) -> None:
    body = {"model": "reference", "messages": asked(pngs), "temperature": 2, "seed": 1, "max_tokens": 500}
    with server.http() as http:
        with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
            next(answer.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=body, timeout=httpx.Timeout(60, read=0.001))

        def rests() -> bool:
            text = http.get("/metrics").text
            return "emblema_replies_running 0.0" in text and "emblema_requests_waiting 0.0" in text

        until = time.monotonic() + 60
        while not rests():
            assert time.monotonic() < until, "the replies went on without their clients"


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["reference"]
    assert client.models.retrieve("reference").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
