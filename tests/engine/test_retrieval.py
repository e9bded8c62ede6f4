"""Linking while decoding: what the model asks for is set in where it asked, and the reply goes on from there."""

import pytest
import torch

from benchmarks.tasks import Episode
from emblema import Engine
from emblema.engine.retrieval import RequestReader, Retrieval, RetrievingReply, question_of
from emblema.errors import EmblemaError, PromptError
from emblema.kv.chunk import Chunk
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode

QUESTION = "what colour is under the tent ?"
BEFORE = "<|im_end|>\n<|im_start|>user\n"
AFTER = f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


class Searching:
    """Finds what it was given, and remembers what it was asked."""

    def __init__(self, *pieces: object) -> None:
        self.pieces, self.asked = list(pieces), []

    def __call__(self, query: str) -> list:
        self.asked.append(query)
        return self.pieces


@pytest.fixture
def pages(reference: Engine, episode: Episode) -> list[Chunk]:
    return [reference.add(page.image()) for page in episode.pages]


def first_word(engine: Engine, parts: list) -> str:
    """What the model says first: the trigger of these tests, as nothing has taught the bundled model to ask."""
    reply = engine.generate(parts, "full", max_new_tokens=1)
    return engine.tokenizer.decode(reply.token_ids)


def sequence(engine: Engine, parts: list, said: int, page: Chunk) -> list:
    """The whole prompt when decoding goes on: a page and a question, a word said, another page."""
    tokenizer = engine.tokenizer
    opening = engine.prefill(parts, "full").token_ids.tolist()
    start = opening.index(int(parts[0].encoded.token_ids[0]))
    before, after = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (BEFORE, AFTER))
    later = [*opening[start + parts[0].tokens :], said, *before]
    return [opening[:start], parts[0], later, page, after]


@pytest.mark.parametrize("strategy", ["full", "blind", "patch-100%"])
def test_a_reply_goes_on_as_if_what_was_found_had_stood_there(
    reference: Engine, pages: list[Chunk], strategy: str
) -> None:
    parts = [pages[0], QUESTION]
    search = Searching(pages[1])
    retrieval = Retrieval(search, end=first_word(reference, parts), start=None, before=BEFORE, after=AFTER)
    reply = reference.generate(parts, strategy, retrieval=retrieval, max_new_tokens=6)
    assert search.asked == [QUESTION]
    assert [found.chunks for found in reply.found] == [(pages[1].id,)]
    assert reply.usage.linked_tokens == pages[1].tokens

    written = sequence(reference, parts, reply.token_ids[0], pages[1])
    whole = reference.prefill(written, "full" if strategy == "patch-100%" else strategy, template=False)
    sampler = Sampler(Sampling(max_new_tokens=5))
    expected = list(
        decode(reference.adapter, DecodeStart.after(whole.prompt, whole.linked), sampler, reference.end_tokens)
    )
    made = list(reply.token_ids[1:])
    assert len(made) >= 1 and made == expected[: len(made)]


def test_logits_behind_what_was_found_are_those_of_the_whole_prompt(reference: Engine, pages: list[Chunk]) -> None:
    parts = [pages[0], QUESTION]
    retrieval = Retrieval(Searching(pages[1]), end=first_word(reference, parts), start=None, before=BEFORE, after=AFTER)
    prefill = reference.prefill(parts, "full")
    reply = RetrievingReply(reference.session, prefill, "full", Sampling(max_new_tokens=6), retrieval, QUESTION)
    tokens = reply.tokens()
    said = [next(tokens), next(tokens)]
    whole = reference.prefill(sequence(reference, parts, said[0], pages[1]), "full", template=False)
    assert torch.allclose(reply.prefill.logits, whole.logits, atol=1e-4 * float(whole.logits.abs().max()))


def test_a_search_that_finds_nothing_changes_nothing(reference: Engine, pages: list[Chunk]) -> None:
    parts = [*pages[:2], QUESTION]
    plain = reference.generate(parts, "full", max_new_tokens=6)
    search = Searching()
    retrieval = Retrieval(search, end=first_word(reference, parts), start=None, after="never seen")
    reply = reference.generate(parts, "full", retrieval=retrieval, max_new_tokens=6)
    assert reply.token_ids == plain.token_ids and reply.text == plain.text
    assert len(search.asked) == 1 and reply.found[0].chunks == () and reply.usage.linked_tokens == 0


def test_at_most_so_many_requests_are_answered(reference: Engine, pages: list[Chunk]) -> None:
    parts = [pages[0], QUESTION]
    for most in (1, 2):
        search = Searching(pages[1])
        retrieval = Retrieval(
            search, end=first_word(reference, parts), start=None, before=BEFORE, after=AFTER, most=most
        )
        reply = reference.generate(parts, "full", retrieval=retrieval, max_new_tokens=8)
        assert 1 <= len(search.asked) == len(reply.found) <= most


def test_streaming_gives_the_same_reply(reference: Engine, pages: list[Chunk]) -> None:
    parts = [pages[0], QUESTION]
    retrieval = Retrieval(Searching(pages[1]), end=first_word(reference, parts), start=None, before=BEFORE, after=AFTER)
    reply = reference.generate(parts, "blind", retrieval=retrieval, max_new_tokens=6)
    pieces = list(reference.generate(parts, "blind", retrieval=retrieval, max_new_tokens=6, stream=True))
    assert "".join(pieces) == reply.text and pieces[-1].reply.found == reply.found


def test_what_does_not_fit_the_context_is_left_out_and_said(reference: Engine, pages: list[Chunk]) -> None:
    parts = [pages[0], QUESTION]
    many = [pages[1]] * (reference.adapter.context_length // pages[1].tokens + 1)
    retrieval = Retrieval(Searching(*many), end=first_word(reference, parts), start=None)
    reply = reference.generate(parts, "full", retrieval=retrieval, max_new_tokens=4)
    assert reply.found[0].chunks == () and "longer than the context" in (reply.usage.fallback or "")


def test_a_request_is_what_stands_between_start_and_end(reference: Engine) -> None:
    tokenizer = reference.tokenizer
    words = tokenizer("tent map tent red legend", add_special_tokens=False)["input_ids"]
    retrieval = Retrieval(Searching(), start="map", end="legend")
    reader = RequestReader(retrieval, tokenizer, "a question")
    assert [reader.push(token) for token in words] == [None, None, None, None, "tent red"]
    assert [reader.push(token) for token in words[3:]] == [None, None], "an end without a start asks for nothing"
    whole = RequestReader(Retrieval(Searching(), start=None, end="map"), tokenizer, "a question")
    assert [whole.push(token) for token in words[:2]] == [None, "a question tent"]


def test_the_question_is_the_last_text(pages: list[Chunk]) -> None:
    assert question_of("why ?") == "why ?"
    assert question_of(["first", pages[0], "last", pages[1]]) == "last"
    said = [{"role": "user", "content": "one"}, {"role": "user", "content": [{"type": "text", "text": "two"}, {}]}]
    assert question_of(said) == "two"
    assert question_of([pages[0]]) == ""


@pytest.mark.parametrize("wrong", [{"end": ""}, {"start": ""}, {"most": 0}, {"count": 0}])
def test_a_retrieval_that_can_never_work_is_refused(wrong: dict) -> None:
    with pytest.raises(PromptError):
        Retrieval(Searching(), **wrong)


def test_a_search_that_finds_something_else_is_an_error(reference: Engine, pages: list[Chunk]) -> None:
    parts = [pages[0], QUESTION]
    retrieval = Retrieval(Searching("a page"), end=first_word(reference, parts), start=None)
    with pytest.raises(EmblemaError, match="a search found a str"):
        reference.generate(parts, "full", retrieval=retrieval, max_new_tokens=4)
