"""Text is counted before it is tokenized, at every entrance."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from emblema import Engine
from emblema.errors import EmblemaError, PromptError
from emblema.media.limits import MediaLimits
from emblema.session.rendering import refuse_long

MOST = 2000
LONG = "tent " * (MOST // 5 + 1)
WIDE = "é" * (MOST // 2 + 1)
"""Fewer characters than the bound has bytes."""
FRAME = Image.new("RGB", (64, 64))


class Watched:
    """A tokenizer that refuses to see more text than is allowed."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, **options: Any) -> Any:
        assert len(text.encode()) <= MOST + 200, "tokenized all the same"
        return self._tokenizer(text, **options)


@pytest.fixture(scope="module")
def small() -> Engine:
    loaded = Engine.load("reference")
    watched = replace(loaded.processor, tokenizer=Watched(loaded.processor.tokenizer))
    return Engine(loaded.adapter.model, watched, limits=MediaLimits(text_bytes=MOST))


def in_a_window(own: Engine, text: str) -> None:
    window = own.window()
    window.append(text)


def in_a_question(own: Engine, text: str) -> None:
    window = own.window()
    window.append("hello")
    window.prefill(text)


ENTRIES: dict[str, Callable[[Engine, str], object]] = {
    "generate": lambda own, text: own.generate(text),
    "pieces": lambda own, text: list(own.generate(text, stream=True)),
    "prefill": lambda own, text: own.prefill([text, "hello"], "full"),
    "many": lambda own, text: own.prefill([text[: MOST // 4]] * 5, "full"),
    "plain": lambda own, text: own.prefill([text], "full", template=False),
    "message": lambda own, text: own.prefill([{"role": "user", "content": text}], "full"),
    "system": lambda own, text: own.prefill([{"role": "system", "content": text}, {"role": "user", "content": "a"}]),
    "items": lambda own, text: own.prefill([{"role": "user", "content": [{"type": "text", "text": text}]}]),
    "passage": lambda own, text: own.add(text=text),
    "window": in_a_window,
    "question": in_a_question,
    "system of a window": lambda own, text: own.window(system=text).append("hello"),
}


@pytest.mark.parametrize("text", [LONG, WIDE])
@pytest.mark.parametrize("entry", ENTRIES)
def test_long_text_is_refused_before_it_is_tokenized(small: Engine, entry: str, text: str) -> None:
    with pytest.raises(PromptError, match="bytes, more than the 2000"):
        ENTRIES[entry](small, text)


def test_text_up_to_the_bound_is_read(small: Engine) -> None:
    refuse_long(["é" * (MOST // 2), (1, 2)], MOST)
    with pytest.raises(PromptError):
        refuse_long(["é" * (MOST // 2), "a"], MOST)
    assert small.prefill(["tent " * (MOST // 5 - 1)], "full").prompt.tokens > MOST // 6


def test_the_usual_bound_is_a_mebibyte(reference: Engine) -> None:
    with pytest.raises(PromptError, match="1048576"):
        reference.prefill(["a" * 5_000_000])
    with pytest.raises(EmblemaError, match="context"):
        reference.prefill(["a b " * 50_000])


def test_a_librarys_query_is_text_as_well(small: Engine) -> None:
    small.files.add(FRAME, "one")
    with pytest.raises(PromptError, match="more than the 2000"):
        small.files.search(LONG)
