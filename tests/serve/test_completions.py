"""Completions of a text as it is, as OpenAI's own client calls them."""

from typing import Any

from openai import OpenAI

from emblema import Engine
from tests.serve.servers import Running
from tests.serve.writing_model import byte_tokenizer

TEXT = "on which land does the moon stand ?"


def test_a_completion_is_the_engines_of_the_plain_text(client: OpenAI, reference: Engine) -> None:
    expected = reference.generate(TEXT, "full", template=False, max_new_tokens=6)
    for prompt in (TEXT, [TEXT]):
        reply = client.completions.create(
            model="reference", prompt=prompt, max_tokens=6, extra_body={"strategy": "full"}
        )
        assert reply.choices[0].text == expected.text and reply.choices[0].finish_reason == expected.finish_reason
        assert reply.usage is not None and reply.usage.prompt_tokens == expected.usage.prompt_tokens
        assert reply.object == "text_completion" and reply.id.startswith("cmpl-") and reply.choices[0].logprobs is None


def test_streams_choices_and_probabilities(writer: Running) -> None:
    options: dict[str, Any] = {
        "model": "writer", "prompt": "It was", "temperature": 1.0, "seed": 3, "n": 2, "logprobs": 2, "max_tokens": 20,
        "logit_bias": {token: -100 for token in range(256) if not chr(token).isascii()},
        "extra_body": {"strategy": "full"},
    }  # fmt: skip
    whole = writer.client().completions.create(**options)
    assert len({choice.text for choice in whole.choices}) == 2 and whole.usage.prompt_tokens == len("It was")
    for choice in whole.choices:
        told = choice.logprobs
        assert "".join(told.tokens) == choice.text
        assert told.text_offset == [len("".join(told.tokens[:index])) for index in range(len(told.tokens))]
        assert len(told.token_logprobs) == len(told.top_logprobs) and all(len(top) <= 2 for top in told.top_logprobs)
    texts, offsets, reasons = ["", ""], [[], []], [None, None]  # type: ignore[var-annotated]
    *events, last = writer.client().completions.create(**options, stream=True, stream_options={"include_usage": True})
    for event in events:
        (part,) = event.choices
        texts[part.index] += part.text
        offsets[part.index] += part.logprobs.text_offset
        reasons[part.index] = part.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices] and last.usage == whole.usage


def test_no_more_than_sixteen_tokens_are_written_unless_asked(writer: Running) -> None:
    end = str(byte_tokenizer().eos_token_id)
    reply = writer.client().completions.create(model="writer", prompt="It was", logit_bias={end: -100})
    assert reply.usage is not None and reply.usage.completion_tokens == 16
    assert reply.choices[0].finish_reason == "length"


def test_words_that_the_model_does_not_know_are_told(client: OpenAI) -> None:
    reply = client.completions.create(model="reference", prompt="quux tent", max_tokens=2)
    assert "quux" in (reply.model_extra or {})["emblema"]["remark"]
