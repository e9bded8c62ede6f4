"""Chat completions, as OpenAI's own client calls them."""

import base64
import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from emblema import Engine
from emblema.serve.messages import ChatRequest
from tests.media.making import moving, recording, tiff
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


def test_words_that_the_model_does_not_know_are_told(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "quux ?"}]
    reply = client.chat.completions.create(model="reference", messages=messages)
    assert reply.model_extra is not None
    assert reply.model_extra["emblema"]["remark"].startswith("1 of 1 words are unknown to this model: quux; ")
    *_, last = client.chat.completions.create(model="reference", messages=messages, stream=True)
    assert last.model_extra is not None and "quux" in last.model_extra["emblema"]["remark"]


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
    assert whole.choices[0].finish_reason == "stop"
    assert len(told) == whole.usage.completion_tokens - 1
    assert "".join(token.token for token in told) == whole.choices[0].message.content
    for token in told:
        assert len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob == token.logprob <= 0
        assert token.top_logprobs[0].token == token.token and bytes(token.bytes).decode() == token.token
    events = list(client.chat.completions.create(**options, stream=True))  # type: ignore[call-overload]
    streamed = [
        token.logprob for event in events if event.choices and event.choices[0].logprobs
        for token in event.choices[0].logprobs.content
    ]  # fmt: skip
    assert streamed == pytest.approx([token.logprob for token in told], abs=1e-5)


def test_a_bias_changes_the_answer_and_its_probabilities_stay_the_models(
    client: OpenAI, reference: Engine, pngs: list[bytes]
) -> None:
    options: dict[str, Any] = {"model": "reference", "messages": asked(pngs), "logprobs": True, "top_logprobs": 2}
    plain = client.chat.completions.create(**options)
    token = reference.tokenizer.convert_tokens_to_ids(plain.choices[0].message.content)
    biased = client.chat.completions.create(**options, logit_bias={token: -100})
    first, other = plain.choices[0].logprobs.content[0], biased.choices[0].logprobs.content[0]  # type: ignore[union-attr,index]
    assert other.token == first.top_logprobs[1].token != first.token
    assert [each.logprob for each in other.top_logprobs] == pytest.approx([t.logprob for t in first.top_logprobs])
    events = client.chat.completions.create(**options, logit_bias={str(token): -100}, stream=True)
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == biased.choices[0].message.content


def test_penalties_are_followed(client: OpenAI, reference: Engine) -> None:
    """A bias makes one token the likeliest for ever, and a penalty ends that."""
    token, end = reference.tokenizer.convert_tokens_to_ids("tent"), min(reference.end_tokens)
    options: dict[str, Any] = {"model": "reference", "messages": [{"role": "user", "content": QUESTION}]}
    options |= {"max_tokens": 60, "logit_bias": {token: 60, end: -100}}
    same = client.chat.completions.create(**options).choices[0].message.content
    assert (same or "").split() == ["tent"] * 60
    other = client.chat.completions.create(**options, frequency_penalty=2).choices[0].message.content
    assert 0 < (other or "").split().count("tent") < 60


HARMLESS = {
    "user": "u", "metadata": {"a": "b"}, "store": True, "tools": [], "n": 1, "logit_bias": {}, "presence_penalty": 0,
    "frequency_penalty": 0.0, "tool_choice": "auto", "response_format": {"type": "text"}, "top_k": -1,
    "prompt_cache_key": "k", "service_tier": "flex", "parallel_tool_calls": False,
}  # fmt: skip


def test_fields_that_change_no_answer_may_come(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": QUESTION, "name": "ann"}]
    reply = client.chat.completions.create(model="reference", messages=messages, max_tokens=2, extra_body=HARMLESS)
    assert reply.choices[0].message.content is not None


def test_null_is_what_was_not_set(server: Running, pngs: list[bytes]) -> None:
    """Every optional field of a request, of its messages and of their parts."""
    text = {"type": "text", "text": QUESTION, "cache_control": None}
    picture = {
        "type": "image_url",
        "image_url": {"url": data_url(pngs[0]), "detail": None},
        "prompt_cache_breakpoint": None,
    }
    messages = [
        {"role": "user", "content": [text, picture], "name": None},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "assistant"},
        {"role": "user", "content": QUESTION},
    ]
    optional = [name for name, field in ChatRequest.model_fields.items() if not field.is_required()]
    unset = dict.fromkeys([*optional, *ChatRequest.elsewhere, *ChatRequest.passed, "whatever"])
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json=unset | {"model": "reference", "messages": messages})
        assert answer.status_code == 200, answer.text
        streamed = unset | {"stream": True, "stream_options": {"include_usage": None}}
        answer = http.post("/v1/chat/completions", json=streamed | {"model": "reference", "messages": messages})
        assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
        turns = [{"role": "user", "content": None}]
        answer = http.post("/v1/chat/completions", json={"model": "reference", "messages": turns})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].content"


def test_parameters_of_an_address_are_read_or_refused(server: Running) -> None:
    with server.http() as http:
        for path in ("/v1/models", "/v1/files", "/v1/caches", "/v1/collections", "/health"):
            answer = http.get(path, params={"api-version": "1"})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "api-version", path
        assert http.get("/v1/files", params={"order": "upwards"}).json()["error"]["param"] == "order"


def test_head_is_answered_as_get_without_a_body(server: Running) -> None:
    with server.http() as http:
        for path in ("/health", "/metrics", "/v1/models", "/v1/files", "/v1/none"):
            answer = http.head(path)
            assert answer.status_code == http.get(path).status_code and answer.content == b"", path


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


@pytest.mark.slow
def test_settings_beside_media_are_followed_or_refused_by_name(client: OpenAI, reference: Engine) -> None:
    clip = recording(moving(40), kind="mp4")
    address = f"data:video/mp4;base64,{base64.b64encode(clip).decode()}"

    def tokens(part: dict[str, Any]) -> int:
        content: Any = [part, {"type": "text", "text": QUESTION}]
        reply = client.chat.completions.create(model="reference", messages=[{"role": "user", "content": content}])
        assert reply.usage is not None
        return reply.usage.prompt_tokens

    def right(**options: Any) -> int:
        content = [{"type": "video", "video": clip, **options}, QUESTION]
        return reference.generate([{"role": "user", "content": content}], max_new_tokens=1).usage.prompt_tokens

    video = {"type": "video_url", "video_url": {"url": address}}
    assert tokens(video) == right() < tokens({**video, "fps": 5.0}) == right(fps=5.0)
    assert tokens({**video, "num_frames": 4, "video_end": 2.0}) == right(num_frames=4, video_end=2.0)
    stored = client.files.create(file=("clip.mp4", clip), purpose="user_data")
    assert tokens({"type": "file", "file": {"file_id": stored.id}, "fps": 5.0}) == right(fps=5.0)
    for given, name in (({"fps": 5000}, "fps"), ({"frames": 3}, "frames"), ({"num_frames": 400}, "400 are asked for")):
        with pytest.raises(openai.BadRequestError, match=name):
            tokens({**video, **given})
    pages = f"data:image/tiff;base64,{base64.b64encode(tiff(['red', 'blue'])).decode()}"
    for url, message in ((pages, "has 2 pages"), (address, "not a picture")):
        with pytest.raises(openai.BadRequestError, match=message):
            tokens({"type": "image_url", "image_url": {"url": url, "detail": "high"}})
