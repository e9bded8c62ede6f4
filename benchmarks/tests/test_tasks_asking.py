"""How items are asked, turn by turn and through an engine in both settings, and which replies are right."""

from __future__ import annotations

import pytest

from benchmarks.tasks.items import ItemQuestion, Media
from benchmarks.tasks.prompts import chosen, messages, normal, pieces, right, slides, turns
from benchmarks.tasks.registry import TASKS
from emblema.engine.engine import Engine
from emblema.errors import PromptError

QUESTION = ItemQuestion("q", ("Which land ?",), "lake", ("forest", "lake", "big lake", "snow"), 1)
OPEN = ItemQuestion("q", ("Which land ?",), "The Lake", aliases=("pond",))


def test_the_option_that_a_reply_names() -> None:
    replies = {
        "B": 1, "b.": 1, "(C)": 2, "lake": 1, "The answer is A": 0, "the answer is: (D) because": 3,
        "It is the forest.": 0, "forest or snow": -1, "": -1,
    }  # fmt: skip
    assert {reply: chosen(QUESTION, reply) for reply in replies} == replies
    assert all(right(QUESTION, reply) is (place == 1) for reply, place in replies.items())


def test_exact_answers() -> None:
    assert all(right(OPEN, reply) for reply in ("lake", " The lake.", "Pond!", "a pond"))
    assert not any(right(OPEN, reply) for reply in ("", "lakes", "lake pond"))
    assert normal("The  end, of-an Age!") == "end of age"


def test_a_dialogue_is_asked_behind_its_earlier_turns() -> None:
    (item,) = TASKS["dialogue-sentence"].items(5, 1)
    said = turns(item, 2)
    assert [role for role, _ in said] == ["user", "assistant", "user", "assistant", "user"]
    assert [parts for _, parts in said[::2]] == [question.parts for question in item.questions[:3]]
    assert said[1][1] == (item.questions[0].answer,)
    (only,) = turns(item, 0)
    assert sum(isinstance(part, Media) for part in only[1]) >= 2


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
