"""How a window is spelled: as a prompt of the same parts is, template and all."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.tasks import Episode
from emblema import Engine
from emblema.errors import PromptError, WindowError
from tests.engine.engines import largest_error
from tests.families import loaded, picture

QUESTION = "Which land does the tent stand on?"


@pytest.fixture(scope="module")
def images(episode: Episode) -> list[Image.Image]:
    return [page.image() for page in episode.pages]


@pytest.mark.parametrize(
    "order",
    [
        ["{0}", "{1}", " some words", "{0}"],
        ["Hello", " there", "{0}", "a ", "b\n", "\nc"],
        ["only text "],
        [],
        ["{0}", "<|im_end|>", "<|im_", "end|> <|vision_start|>"],
    ],
)
def test_a_window_has_the_tokens_of_a_prompt(reference: Engine, images: list[Any], order: list[str]) -> None:
    window = reference.window()
    parts: list[Any] = []
    for number in order:
        given: Any = images[int(number[1])] if number.startswith("{") else number
        window.append(given)
        parts.append(given if isinstance(given, str) else reference.add(given))
    full = reference.prefill([*parts, QUESTION], "full")
    asked = window.prefill(QUESTION)
    assert asked.token_ids.tolist() == full.token_ids.tolist()
    assert largest_error(asked.logits, full.logits) < 1e-4


def test_a_question_appended_leaves_nothing_to_ask_but_the_answer(reference: Engine, images: list[Any]) -> None:
    window = reference.window(system="You are brief.")
    window.append(images[0])
    window.append(QUESTION)
    content = [{"type": "image", "image": reference.add(images[0])}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": content}]
    full = reference.prefill(messages, "full")
    asked = window.prefill()
    assert asked.token_ids.tolist() == full.token_ids.tolist()
    reply = window.ask(max_new_tokens=4)
    assert reply.text == reference.generate(messages, "full", max_new_tokens=4).text
    window.append(reply.text, role="assistant")
    messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And the pond?"}]
    full = reference.prefill(messages, "full")
    asked = window.prefill("And the pond?")
    assert asked.token_ids.tolist() == full.token_ids.tolist()
    assert largest_error(asked.logits, full.logits) < 1e-4
    assert window.log[-1].rows_taken > 0


WRITES = "{% for m in messages %}{{ m.role }} : {% for c in m.content %}"
ENDS = "{% endfor %} \n {% endfor %}{% if add_generation_prompt %}which : {% endif %}"
BEHIND = WRITES + "{% if c.type == 'image' %}{{ '<image> \n ' }}{% else %}{{ c.text + ' ' }}{% endif %}" + ENDS
FRONT = (
    "{% for m in messages %}{{ m.role }} : {% for c in m.content if c.type == 'image' %}{{ '<image> \n ' }}{% endfor %}"
    "{% for c in m.content if c.type != 'image' %}{{ c.text + ' ' }}" + ENDS
)


def templated(template: str) -> Engine:
    item = loaded("llava")
    return Engine(item.model, replace(item.bundle, chat_template=template))


def test_what_a_template_writes_around_a_picture_stands_there_in_a_window_too() -> None:
    made = templated(BEHIND)
    first, second = (picture(40, 30, seed=seed) for seed in (960, 961))
    window = made.window()
    for part in ("word1 word2", first, second, "word3", first):
        window.append(part)
    asked = window.prefill("word4")
    parts = ["word1 word2", made.add(first), made.add(second), "word3", made.add(first), "word4"]
    full = made.prefill(parts, "full")
    assert asked.token_ids.tolist() == full.token_ids.tolist()
    assert largest_error(asked.logits, full.logits) < 1e-4
    # The line after it leaves with its picture.
    before = window.tokens
    window.evict(window.parts[1])
    assert before - window.tokens == made.add(first).tokens + 1
    parts.pop(1)
    assert window.prefill("word4", "full").token_ids.tolist() == made.prefill(parts, "full").token_ids.tolist()


def test_a_template_that_moves_pictures_leaves_a_window_in_its_order() -> None:
    made = templated(FRONT)
    window = made.window()
    shown = picture(40, 30, seed=962)
    for part in ("word1", shown, "word2"):
        window.append(part)
    ids = made.add(shown).encoded.token_ids.tolist()
    asked = window.prefill("word3").token_ids.tolist()
    words = [made.tokenizer.convert_tokens_to_ids(f"word{number}") for number in (1, 2, 3)]
    assert [token for token in asked if token in (*words, *ids)] == [words[0], *ids, *words[1:]]


def test_tokens_that_a_neighbour_would_change_stay_as_they_are(reference: Engine) -> None:
    window = reference.window()
    window.append("under")
    before = window.prefill("?", keep=True).token_ids.tolist()
    window.append("standing")
    opening = window.tokens - sum(part.tokens for part in window.parts)
    first = opening + window.parts[0].tokens
    after = window.prefill("?").token_ids.tolist()
    assert after[:first] == before[:first], "rows that are written keep their tokens"
    apart = reference.tokenizer("standing")["input_ids"]
    assert after[first : first + len(apart)] == apart
    joint = reference.prefill(["under", "standing", "?"], "full").token_ids.tolist()
    assert joint != after, "the joint string has other tokens, and the test shows something"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda window: window.append(""), "empty"),
        (lambda window: window.append([]), "empty"),
        (lambda window: window.append("\ud800"), "Unicode"),
        (lambda window: window.append(["a", "b"]), "one thing"),
        (lambda window: window.append(3.5), "float"),
        (lambda window: window.append([1, 2], role="assistant"), "has to be text"),
        (lambda window: window.append("a", role="no such role"), "no role"),
        (lambda window: window.append([10**9]), "vocabulary"),
    ],
)
def test_what_is_no_part_is_refused(reference: Engine, change: Callable[[Any], Any], message: str) -> None:
    window = reference.window()
    with pytest.raises(Exception, match=message) as caught:
        change(window)
    assert caught.type.__module__ == "emblema.errors"
    assert window.parts == () and window.log[-1].error == str(caught.value)


def test_without_a_template_there_is_no_system_turn_and_no_role(reference: Engine) -> None:
    with pytest.raises(PromptError, match="system"):
        reference.window(template=False, system="a")
    window = reference.window(template=False)
    with pytest.raises(PromptError, match="roles"):
        window.append("a", role="assistant")
    with pytest.raises(PromptError, match="nothing to ask"):
        window.ask()
    window.append("<|im_start|>user\n")
    window.append("Hello")
    asked, full = (window.prefill("<|im_end|>", name) for name in ("auto", "full"))
    text = "<|im_start|>user\nHello<|im_end|>"
    assert asked.token_ids.tolist() == reference.tokenizer(text)["input_ids"]
    assert largest_error(asked.logits, full.logits) < 1e-4


def test_a_streamed_answer_is_the_same_in_pieces_and_logged_at_its_end(reference: Engine) -> None:
    window = reference.window()
    window.append("clicked the tent ")
    whole = window.ask("Which land?", max_new_tokens=6)
    pieces = window.ask("Which land?", stream=True, max_new_tokens=6)
    entries = len(window.log)
    first = next(pieces)
    assert len(window.log) == entries
    rest = list(pieces)
    reply = rest[-1].reply if rest else first.reply
    assert reply is not None and reply.text == whole.text and reply.token_ids == whole.token_ids
    assert "".join([first, *rest]) == whole.text
    assert len(window.log) == entries + 1
    entry = window.log[-1]
    assert (entry.operation, entry.error) == ("ask", None)
    assert entry.rows_decoded == len(whole.token_ids)
    assert entry.rows_computed == window.log[-2].rows_computed + window.log[-2].rows_taken - window.tokens
    assert entry.tokens == window.tokens and entry.bytes == window.bytes


def test_a_window_may_change_while_an_answer_is_streamed(reference: Engine) -> None:
    """It is the answer of the window as it was asked, whatever becomes of the window."""
    window = reference.window()
    for text in ("clicked the tent ", "opened the map ", "went back "):
        window.append(text)
    whole = window.ask("Which land?", max_new_tokens=8)
    kept = window.prefill("Which land?").logits
    pieces = window.ask("Which land?", stream=True, max_new_tokens=8)
    text = str(next(pieces))
    branch = window.fork()
    window.slide(2)
    window.append("another line ")
    window.ask("Which colour?", max_new_tokens=2)
    text += "".join(str(piece) for piece in [next(pieces, "")])
    window.close()
    text += "".join(pieces)
    assert text == whole.text
    assert [entry.operation for entry in window.log[-4:]] == ["slide", "append", "ask", "ask"]
    assert torch.equal(branch.prefill("Which land?").logits, kept)
    with pytest.raises(WindowError, match="closed"):
        window.ask("Which land?", stream=True)


def test_an_answer_that_is_left_is_logged_so_and_leaves_the_rows(reference: Engine) -> None:
    window = reference.window()
    window.append("clicked the tent ")
    unread = window.ask("Which land?", stream=True)
    del unread
    assert window.log[-1].operation == "append" and window.forming() != (), "nothing was asked yet"
    began = time.perf_counter()
    pieces = window.ask("Which land?", stream=True, max_new_tokens=8)
    next(pieces)
    time.sleep(0.3)
    pieces.close()
    took = time.perf_counter() - began
    entry = window.log[-1]
    assert entry.operation == "ask" and "left before its end" in (entry.error or "")
    assert 1 <= entry.rows_decoded < 8 and entry.rows_computed > 0
    assert entry.seconds < took - 0.3, "the reader's time is not the window's"
    assert window.forming() == ()
    with pytest.raises(PromptError, match="knob"):
        next(window.ask("Which land?", stream=True, temprature=1))
    assert "knob" in (window.log[-1].error or "")
