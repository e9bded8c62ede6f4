"""Several replies to one request: each is the reply of its own seed, and the prompt is prefilled once."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.engine import Engine
from emblema.engine.generation import GenerateRequest
from emblema.engine.request_queue import SchedulerLimits
from emblema.errors import PromptError
from emblema.session.decoding import Sampling
from emblema.session.grammar import GrammarCompiler
from tests.serve.servers import Running
from tests.serve.writing_model import write_model

MESSAGES: Any = [{"role": "user", "content": "who is it?"}]
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "word", "schema": {"type": "string", "pattern": "^[a-z]{2,30}$"}},
}
OPTIONS: dict[str, Any] = {
    "model": "writer", "messages": MESSAGES, "temperature": 1.0, "max_tokens": 18, "response_format": FORM,
    "logprobs": True, "top_logprobs": 2, "extra_body": {"strategy": "full"},
}  # fmt: skip


def test_choices_are_the_replies_of_the_seeds_that_follow(writer: Running) -> None:
    """Whole and in a stream, with probabilities, some ended and some cut."""
    create = writer.client().chat.completions.create
    alone = [create(**OPTIONS, seed=3 + index) for index in range(5)]
    texts = [each.choices[0].message.content for each in alone]
    together = create(**OPTIONS, seed=3, n=5)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3, 4]
    assert [choice.message.content for choice in together.choices] == texts and len(set(texts)) == 5
    reasons = [each.choices[0].finish_reason for each in alone]
    assert [choice.finish_reason for choice in together.choices] == reasons and set(reasons) == {"stop", "length"}
    for choice, each in zip(together.choices, alone, strict=True):
        told = [[entry.token for entry in of.logprobs.content] for of in (choice, each.choices[0])]
        assert told[0] == told[1]
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert together.usage.completion_tokens == sum(each.usage.completion_tokens for each in alone)
    streamed, ended = defaultdict(str), {}
    *events, last = create(**OPTIONS, seed=3, n=5, stream=True, stream_options={"include_usage": True})
    for event in events:
        (choice,) = event.choices
        assert choice.index not in ended
        streamed[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ended[choice.index] = choice.finish_reason
    assert [streamed[index] for index in range(5)] == texts and [ended[index] for index in range(5)] == reasons
    assert last.usage == together.usage and last.choices == []


def test_without_a_seed_choices_differ(writer: Running) -> None:
    reply = writer.client().chat.completions.create(**OPTIONS, n=3)
    assert len({choice.message.content for choice in reply.choices}) == 3


@pytest.fixture
def engine(tmp_path: Any) -> Engine:
    return Engine.load(write_model(tmp_path))


def test_the_prompt_is_prefilled_once_and_a_failed_choice_ends_all(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = []
    link = engine.session.link
    monkeypatch.setattr(engine.session, "link", lambda *given, **more: linked.append(1) or link(*given, **more))
    # This one grows too large on the way.
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(900)}}
    grammar = GrammarCompiler(engine.tokenizer, engine.end_tokens, "tiny").of_schema(schema)
    request = GenerateRequest(MESSAGES, "full", Sampling.of(temperature=1.0, max_new_tokens=9, seed=1))
    failing = GenerateRequest(MESSAGES, "full", Sampling.of(max_new_tokens=500, grammar=grammar))

    async def ask() -> None:
        async with AsyncEngine(engine) as running:
            pieces = [piece async for piece in running.pieces(request, choices=3)]
            assert len(linked) == 1 and sorted({piece.choice for piece in pieces}) == [0, 1, 2]
            assert sum(piece.reply is not None for piece in pieces) == 3
            with pytest.raises(PromptError, match="cannot be followed"):
                async for _ in running.pieces(failing, choices=3):
                    pass
            assert running.scheduler.running == 0
            again = [piece async for piece in running.pieces(request, choices=2)]
            assert sum(piece.reply is not None for piece in again) == 2

    asyncio.run(ask())


def test_choices_that_do_not_fit_together_are_refused(engine: Engine) -> None:
    request = GenerateRequest(MESSAGES, "full", Sampling.of(max_new_tokens=2))
    rows = engine.prompt(MESSAGES).tokens

    async def ask() -> None:
        async with AsyncEngine(engine, SchedulerLimits(batch_rows=3 * rows)) as running:
            assert len([piece async for piece in running.pieces(request, choices=3)]) >= 3
            with pytest.raises(PromptError, match="ask for fewer choices"):
                async for _ in running.pieces(request, choices=4):
                    pass

    asyncio.run(ask())
