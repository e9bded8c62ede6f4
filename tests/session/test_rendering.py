"""Text is counted before it is tokenized, at every entrance."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from emblema import Engine
from emblema.errors import ContextLengthError, PromptError
from emblema.link.prompt import TextPart
from emblema.media.limits import MediaLimits
from emblema.session.prompt_reader import PromptReader
from emblema.session.rendering import TextPiece, refuse_long, tokenize

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

    def __call__(self, text: str | list[str], **options: Any) -> Any:
        assert len("".join(text).encode()) <= MOST + 200, "tokenized all the same"
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
    with pytest.raises(ContextLengthError, match="context"):
        reference.prefill(["a b " * 50_000])


def test_a_librarys_query_is_text_as_well(small: Engine) -> None:
    small.files.add(FRAME, "one")
    with pytest.raises(PromptError, match="more than the 2000"):
        small.files.search(LONG)


def steps(call: Callable[[], Any]) -> int:
    """Count the interpreter's instructions of a call: the same at each run, as no time is."""
    count, former = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(former)
    return count


def test_reading_takes_work_in_proportion_to_the_turns(reference: Engine) -> None:
    def work(turns: int) -> int:
        talk = [{"role": ("user", "assistant")[turn % 2], "content": "a"} for turn in range(turns - 1)]
        return steps(lambda: reference.session.read(talk))

    work(10)
    few, twice, four_times = work(100), work(200), work(400)
    assert 0 < four_times - twice < 2.2 * (twice - few)


def test_spelled_control_tokens_are_cut_wherever_untrusted_text_has_part(small: Engine) -> None:
    """By a search over all texts, as the sorted one has to find."""
    rng, tokenizer = random.Random(1), small.processor.tokenizer
    marks = [token for token in tokenizer.all_special_tokens if len(token) > 3 and token != tokenizer.unk_token]
    own = {tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    for _ in range(60):
        letters = [rng.choice([rng.choice(marks), "a", "<|", rng.choice(marks)[:3], " "]) for _ in range(12)]
        cuts = sorted(rng.sample(range(1, 12), 4))
        texts = ["".join(letters[start:stop]) for start, stop in zip([0, *cuts], [*cuts, 12], strict=True)]
        pieces = [TextPiece(text, trusted=bool(index % 2)) for index, text in enumerate(texts)]
        [part] = tokenize(pieces, tokenizer, marks, begin=False)
        assert isinstance(part, TextPart)
        trusted = sum(text.count(mark) for text in texts[1::2] for mark in marks)
        found = sum(token in own for token in part.token_ids)
        assert found == trusted
        whole = [TextPiece("".join(texts), trusted=False)]
        [part] = tokenize(whole, tokenizer, marks, begin=False)
        assert isinstance(part, TextPart) and not own & set(part.token_ids)


def normalising(controls: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of letters that lowers its text before it looks for control tokens."""
    letters = [*"abcdefghijklmnopqrstuvwxyz <>|é", "[UNK]"]
    made = Tokenizer(models.WordLevel({letter: id for id, letter in enumerate(letters)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.add_special_tokens([AddedToken(control, normalized=True, special=True) for control in controls])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", additional_special_tokens=list(controls))


@pytest.mark.parametrize("text", ["<X>", "ab <X> cd", "<x><X>", "a<x>bb<X>ccc<x>d<X>", "<X><X><x>e<Yy>"])
def test_a_control_token_that_the_tokenizer_alone_sees_is_cut(text: str) -> None:
    tokenizer = normalising(["<x>", "<yy>"])
    assert tokenizer.convert_tokens_to_ids("<x>") in tokenizer(text)["input_ids"], "uncut it is read as one"
    [part] = tokenize(
        [TextPiece("ab", trusted=True), TextPiece(text, trusted=False)], tokenizer, ["<x>", "<yy>"], begin=False
    )
    assert isinstance(part, TextPart)
    assert "".join(tokenizer.convert_ids_to_tokens(part.token_ids)) == f"ab{text}".lower()
    assert all(len(token) == 1 for token in tokenizer.convert_ids_to_tokens(part.token_ids))


def test_a_control_token_of_one_character_is_refused_and_one_of_two_is_cut() -> None:
    tokenizer = normalising(["é", "||"])
    for text in ("aa", "a||b", "é"):
        pieces = [TextPiece("ccc", trusted=True), TextPiece(text, trusted=False)]
        if text == "é":
            with pytest.raises(PromptError, match="one character"):
                tokenize(pieces, tokenizer, ["é", "||"], begin=False)
        else:
            [part] = tokenize(pieces, tokenizer, ["é", "||"], begin=False)
            assert isinstance(part, TextPart) and tokenizer.convert_ids_to_tokens(part.token_ids) == [*"ccc", *text]
    [part] = tokenize([TextPiece("aé", trusted=True)], tokenizer, ["é"], begin=False)
    assert isinstance(part, TextPart) and part.token_ids[-1] == tokenizer.convert_tokens_to_ids("é")


def test_what_is_plain_is_tokenized_as_it_is(reference: Engine) -> None:
    [part] = reference.session.prompt_reader.plain(["the tent"])
    assert isinstance(part, TextPart)
    assert list(part.token_ids) == reference.tokenizer("the tent", add_special_tokens=False)["input_ids"]
    assert PromptReader(None, MOST).plain([(1, 2)]) == [TextPart((1, 2))]


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(PromptError, match="valid Unicode at character 1"):
        refuse_long(["a\ud800"], 100)
