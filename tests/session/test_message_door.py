"""Generated conversations through every form of chat templates: they reach the prompt whole, or are refused by name."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from emblema import Engine
from emblema.errors import PromptError
from emblema.kv.chunk import Chunk
from emblema.link.prompt import ChunkPart, TextPart
from tests import families
from tests.session.test_chat_template import DROPS_SYSTEM, LAST_TURNS, TEMPLATES

ALL = TEMPLATES | {"drops system": DROPS_SYSTEM, "last turns": LAST_TURNS}
WORDS = [f"word{number}" for number in range(40)]


@cache
def engine_of(name: str) -> tuple[Engine, tuple[Chunk, ...]]:
    item = families.loaded("llava")
    engine = Engine(item.model, replace(item.bundle, chat_template=ALL[name]))
    return engine, tuple(engine.add(families.picture(*item.case.sizes[0], seed=seed)) for seed in range(3))


def text_of(rnd: random.Random) -> str:
    """A text of known words, perhaps blank; a space at its end keeps it apart from the next."""
    words = rnd.choices(WORDS, k=rnd.choice([0, 1, 1, 2, 5]))
    return rnd.choice(["", " "]) + rnd.choice([" ", "  "]).join(words) + rnd.choice([" ", "  "])


def conversation(rnd: random.Random, pictures: tuple[Chunk, ...]) -> list[dict[str, Any]]:
    roles = [*rnd.choice([[], ["system"]]), *["user", "assistant"] * rnd.randint(0, 2), "user"]
    messages: list[dict[str, Any]] = []
    for role in roles:
        if rnd.random() < 0.5:
            messages.append({"role": role, "content": text_of(rnd)})
            continue
        content: list[dict[str, Any]] = [{"type": "text", "text": text_of(rnd)} for _ in range(rnd.randint(1, 3))]
        if role == "user" and rnd.random() < 0.5:
            content.insert(rnd.randint(0, len(content)), {"type": "image", "image": rnd.choice(pictures)})
        messages.append({"role": role, "content": content})
    return messages


def given(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Words and ids of pictures, in order."""
    items = [
        item
        for message in messages
        for item in ([{"text": message["content"]}] if isinstance(message["content"], str) else message["content"])
    ]
    words = [word for item in items if "text" in item for word in item["text"].split()]
    return words, [item["image"].id for item in items if "image" in item]


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ALL)
def test_it_comes_whole_or_is_refused_by_name(name: str, count: int) -> None:
    engine, pictures = engine_of(name)
    read = refused = 0
    for seed in range(count):
        messages = conversation(random.Random(f"{name} {seed}"), pictures)
        words, shown = given(messages)
        try:
            prompt = engine.prompt(messages)
        except PromptError as error:
            refused += 1
            assert any(word in str(error) for word in ("template", "role", "left")), str(error)
            continue
        read += 1
        parts = [segment.part for segment in prompt.segments]
        ids = [token for part in parts if isinstance(part, TextPart) for token in part.token_ids]
        written = [word for word in engine.tokenizer.decode(ids).split() if word in WORDS]
        # One template of the tests adds a word of its own.
        assert written == words or (
            name == "both"
            and [word for word in written if word != "word9"] == [word for word in words if word != "word9"]
        )
        assert [part.chunk.id for part in parts if isinstance(part, ChunkPart)] == shown
    assert read + refused == count and read >= count // 10
    if name in ("walks", "media first"):
        assert not refused, "all of it can be written in this form"
