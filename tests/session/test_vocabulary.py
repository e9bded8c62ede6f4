"""Words that a model does not know are told in replies; models that can write any text say nothing."""

import asyncio

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from benchmarks.tasks import Episode
from emblema import AsyncEngine, Engine
from emblema.session.vocabulary import EMPTY, closed_vocabulary, texts_of

KNOWN = "what colour is under the tent ?"
STRANGE = "please transcribe the invoice ?"


@pytest.fixture(scope="module")
def strange(reference: Engine) -> list[str]:
    """Words of the question that stand in no file of the model's words."""
    words = reference.session.tokenizer.get_vocab()
    return [word for word in STRANGE.split() if word not in words]


def test_a_reply_names_the_words_that_its_model_does_not_know(
    reference: Engine, episode: Episode, strange: list[str]
) -> None:
    page = episode.pages[-1].image()
    assert 0 < len(strange) < 4
    told = f"{len(strange)} of 4 words are unknown to this model: {', '.join(strange)}"
    assert (reference.generate([page, STRANGE], "full").remark or "").startswith(told)
    messages = [{"role": "user", "content": [{"type": "text", "text": STRANGE}]}]
    assert (reference.generate(messages, "full").remark or "").startswith(told)
    with reference.window() as window:
        window.append(page)
        assert (window.ask(STRANGE).remark or "").startswith(told)
        assert window.ask(KNOWN).remark is None
    assert reference.generate([page, KNOWN], "full").remark is None


def test_an_empty_answer_says_so(reference: Engine) -> None:
    reply = reference.generate("quux", "full")
    assert reply.text == "" and reply.remark == f"1 of 1 words are unknown to this model: quux; {EMPTY}"


def test_the_async_engine_says_it_too() -> None:
    async def use() -> str | None:
        async with await AsyncEngine.load("reference") as own:
            return (await own.generate(["quux"], "full")).remark

    assert asyncio.run(use()) == f"1 of 1 words are unknown to this model: quux; {EMPTY}"


def test_a_remark_is_short_whatever_was_asked(reference: Engine) -> None:
    vocabulary = closed_vocabulary(reference.session.tokenizer)
    assert vocabulary is not None
    text = " ".join(["tent", *(f"{letter * 3}{'long' * 1000}" for letter in "qwxyzjkvb"), "?"])
    remark = vocabulary.remark([text])
    assert remark is not None and remark.startswith("9 of 10 words") and remark.endswith(", …") and len(remark) < 300
    assert vocabulary.remark(["The  TENT?", "!"]) is None


def test_an_open_vocabulary_has_no_unknown_words() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(unk_token="<unk>")), unk_token="<unk>")
    assert closed_vocabulary(tokenizer) is None and closed_vocabulary(object()) is None


def test_texts_are_those_of_parts_and_of_messages() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, "c", {"type": "image", "image": object()}]},
    ]
    assert list(texts_of(messages)) == ["a", "b", "c"]
    assert list(texts_of(["d", (1, 2), object()])) == ["d"] and list(texts_of("e")) == ["e"]
