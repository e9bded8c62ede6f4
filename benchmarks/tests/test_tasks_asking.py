"""How items are asked: in words and in letters, turn by turn, and through an engine in both settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.data.forms import load_items
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.prompts import (
    asked,
    chosen,
    expected,
    messages,
    normal,
    pieces,
    plain_parts,
    right,
    slides,
    style_of,
    turns,
)
from benchmarks.tasks.registry import TASKS
from benchmarks.tests.data_sets import make
from emblema.engine.engine import Engine
from emblema.errors import PromptError

QUESTION = ItemQuestion("q", ("Which land ?",), "lake", ("forest", "lake", "big lake", "snow"), 1)
OPEN = ItemQuestion("q", ("Which land ?",), "The Lake", aliases=("pond",))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (
            "muirbench",
            "Question: Which land ?\nChoices:\n(A) forest\n(B) lake\n(C) big lake\n(D) snow\n"
            "Hint: Please provide the correct option letter, such as A, B, C, D, directly.\nAnswer:",
        ),
        (
            "mm-niah",
            "Which land ?\nA. forest\nB. lake\nC. big lake\nD. snow\n"
            "Answer with the option's letter from the given choices directly.",
        ),
        ("milebench", "Which land ?\nChoice list:\nA. forest\nB. lake\nC. big lake\nD. snow\nYour answer is: "),
    ],
)
def test_letters_are_asked_for_as_the_data_set_does(form: str, text: str) -> None:
    assert asked(form, QUESTION, "letters") == (text,)
    assert asked(form, QUESTION) == ("Which land ?",)
    assert (expected(QUESTION, "letters"), expected(QUESTION)) == ("B", "lake")


def test_options_that_are_pictures_stay_pictures(tmp_path: Path) -> None:
    item, _ = load_items(make("mm-niah", tmp_path), "mm-niah")
    parts = asked("mm-niah", item.questions[0], "letters")
    assert [part if isinstance(part, str) else "picture" for part in parts] == [
        "Which?\nA. ",
        "picture",
        "\nB. ",
        "picture",
        "\nAnswer with the option's letter from the given choices directly.",
    ]
    assert asked("mm-niah", OPEN, "letters")[-1] == "\nAnswer the question using a single word or phrase."


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        ("B", 1),
        ("b.", 1),
        ("(C)", 2),
        ("D. snow", 3),
        ("The answer is A", 0),
        ("the answer is: (D) because", 3),
        ("It is the forest.", 0),
        ("snow", 3),
        ("forest or snow", -1),
        ("E", -1),
        ("", -1),
        ("I cannot say", -1),
    ],
)
def test_the_option_that_a_reply_names(reply: str, place: int) -> None:
    assert chosen(QUESTION, reply) == place
    assert right(QUESTION, reply) is (place == 1)


def test_exact_answers() -> None:
    assert all(right(OPEN, reply) for reply in ("lake", " The lake.", "Pond!", "a pond"))
    assert not any(right(OPEN, reply) for reply in ("", "lakes", "lake pond"))
    assert normal("The  end, of-an Age!") == "end of age"


def test_an_option_inside_another_is_told_apart() -> None:
    assert chosen(QUESTION, "lake") == 1


def test_an_answer_that_nobody_knows_is_never_right() -> None:
    unknown = ItemQuestion("q", ("?",), "", ("a", "b"))
    assert expected(unknown, "letters") == ""
    assert not right(unknown, "A")


def test_a_dialogue_is_asked_behind_its_earlier_turns() -> None:
    (item,) = TASKS["dialogue-sentence"].items(5, 1)
    said = turns(item, 2)
    assert [turn.role for turn in said] == ["user", "assistant", "user", "assistant", "user"]
    assert [turn.parts for turn in said[::2]] == [question.parts for question in item.questions[:3]]
    assert said[1].parts == (item.questions[0].answer,)
    (only,) = turns(item, 0)
    assert sum(isinstance(part, Media) for part in only.parts) >= 2


def test_an_instruction_stands_in_front_where_letters_are_asked_for() -> None:
    item = TaskItem("i", "t", "milebench", ("context ",), (QUESTION, OPEN), instruction="Choose.")
    assert turns(item, 0, "letters")[0].parts[0] == "Choose.\n"
    assert turns(item, 0)[0].parts == ("context ", "Which land ?")
    assert style_of(item, 0, "letters") == "letters"
    assert style_of(item, 1, "letters") == "words"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("reference") as bundled:
        yield bundled


@pytest.mark.parametrize("name", [name for name in TASKS if name != "atlas"])
def test_every_task_runs_in_both_settings(name: str, engine: Engine) -> None:
    (item,) = TASKS[name].items(13, 1)
    made = pieces(engine, item)
    assert slides(item)
    for setting in ("visible", "slid"):
        prefill = engine.prefill(messages(item, len(item.questions) - 1, made, setting), "full")
        assert bool(prefill.prompt.slid_rows) is (setting == "slid")
        assert prefill.prompt.tokens > 64
    with pytest.raises(PromptError, match="unknown setting 'gone': choose one of visible, slid"):
        messages(item, 0, made, "gone")


def test_a_dialogue_without_a_template_is_one_row_of_parts(engine: Engine) -> None:
    (item,) = TASKS["dialogue-word"].items(13, 1)
    parts = plain_parts(item, 1, pieces(engine, item), "visible")
    assert [part for part in parts if isinstance(part, str)][-1] == item.questions[1].parts[-1]
    assert parts.count("\n") == 2
    assert item.questions[0].answer in parts
