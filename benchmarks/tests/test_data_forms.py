"""Data sets' forms: what is written is read back the same, and records as the real sets have them are read right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data.forms import FORMS, load_items
from benchmarks.data.source import FIELD
from benchmarks.tasks.items import Media, TaskItem, describe
from benchmarks.tasks.registry import TASKS
from benchmarks.tests.data_sets import MAKERS, lines, milebench
from benchmarks.tests.data_writers import video_mme_rows, write_items
from emblema.errors import PromptError

PAIRS = [*((task.name, task.form) for task in TASKS.values()), ("video-choice", "egoschema")]


def shares(item: TaskItem) -> list[float]:
    return [media.slides for media in item.media]


def load(name: str, root: Path) -> list[TaskItem]:
    return list(load_items(MAKERS[name](root), name))


@pytest.mark.parametrize(("task", "form"), PAIRS)
def test_generated_items_are_read_back_the_same(task: str, form: str, tmp_path: Path) -> None:
    drawn = [TASKS[task].make(29, place, form) for place in range(3)]
    read = list(load_items(write_items(drawn, form, tmp_path), form))
    assert [describe(item) for item in read] == [describe(item) for item in drawn]
    assert all(isinstance(media.content, Path | str) for item in read for media in item.media)


@pytest.mark.parametrize("form", FORMS)
def test_hand_written_records_survive_being_written_again(form: str, tmp_path: Path) -> None:
    read = load(form, tmp_path / "given")
    if form in ("mm-niah", "muirbench", "milebench"):
        read = [item for item in read if item.media and len({item.task for item in read}) == 1]
    if form == "egoschema":
        read = read[:1]
    again = list(load_items(write_items(read, form, tmp_path / "again"), form))
    assert [describe(item)["questions"] for item in again] == [describe(item)["questions"] for item in read]
    assert [describe(item)["parts"] for item in again] == [describe(item)["parts"] for item in read]


@pytest.mark.parametrize(("task", "form"), PAIRS)
def test_files_without_our_notes_drop_in(task: str, form: str, tmp_path: Path) -> None:
    drawn = [TASKS[task].make(30, place, form) for place in range(2)]
    path = write_items(drawn, form, tmp_path)
    if form == "emblema":
        return
    text = path.read_text()
    parsed = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    records: list[dict[str, Any]] = parsed["data"] if isinstance(parsed, dict) else parsed
    for record in records:
        del record[FIELD]
    path.write_text("\n".join(map(json.dumps, records)) if path.suffix == ".jsonl" else json.dumps(parsed))
    read = list(load_items(path, form))
    assert len(read) == len(drawn)
    for item, original in zip(read, drawn, strict=True):
        assert [media.digest() for media in item.media] == [media.digest() for media in original.media]
        assert [q.text for q in item.questions] == [q.text for q in original.questions]
        assert [(q.answer, q.options) for q in item.questions] == [(q.answer, q.options) for q in original.questions]
        assert shares(item) == ([0.5] if form in ("video-mme", "egoschema") else [1.0] * (len(item.media) - 1) + [0.0])


def test_mm_niah(tmp_path: Path) -> None:
    first, second = load("mm-niah", tmp_path)
    assert (first.id, first.task, second.id) == ("0", "retrieval-image", "2")
    assert [part if isinstance(part, str) else part.kind for part in first.parts] == [
        "One.",
        "image",
        "Two.",
        "image",
        "\nThree.",
    ]
    pictures, texts = first.questions
    assert [isinstance(option, Media) for option in pictures.options] == [True, True]
    assert (pictures.correct, pictures.answer) == (1, "B")
    assert (texts.options, texts.correct, texts.answer) == (("oak", "elm"), 0, "oak")
    assert shares(first) == [1.0, 0.0, 0.0, 0.0]
    assert second.questions[0].answer == "[1, 0]"
    assert isinstance(second.questions[0].parts[0], Media)


def test_muirbench(tmp_path: Path) -> None:
    first, second = load("muirbench", tmp_path)
    assert first.task == "Geographic Understanding"
    assert first.questions[0].answer == "right"
    assert first.questions[0].text == "Which is north?"
    assert first.episode == second.episode == "9"
    assert isinstance(second.questions[0].options[0], Media)
    assert second.questions[0].correct == 0
    assert shares(first) == [1.0, 0.0]


def test_milebench(tmp_path: Path) -> None:
    first, second = load("milebench", tmp_path)
    assert first.instruction == "Watch the frames and choose."
    assert first.questions[0].correct == 1
    assert first.task == "ActionSequence"
    assert shares(first) == [1.0, 1.0, 0.0]
    (table,) = second.media
    assert isinstance(table.content, Path)
    assert table.content.name == "1.jpg"
    assert second.questions[0].answer == "because"


def test_video_mme_by_video_and_by_row(tmp_path: Path) -> None:
    (item,) = load("video-mme", tmp_path)
    assert [question.answer for question in item.questions] == ["the tent.", "U.S. flags"]
    assert item.questions[0].kind == "Temporal Reasoning"
    assert shares(item) == [0.5]
    rows = video_mme_rows([item])
    (again,) = load_items(lines(tmp_path / "rows.jsonl", *rows), "video-mme")
    assert describe(again) == describe(item)


def test_egoschema_without_question_or_answer(tmp_path: Path) -> None:
    first, second = load("egoschema", tmp_path)
    assert (first.questions[0].correct, first.questions[0].answer) == (3, "C does 3.")
    assert (second.questions[0].correct, second.questions[0].answer) == (-1, "")
    assert second.questions[0].text


def test_mmdu(tmp_path: Path) -> None:
    (item,) = load("mmdu", tmp_path)
    assert item.dialogue
    assert item.id == "7"
    assert [question.answer for question in item.questions] == ["Two squares.", "A third."]
    assert shares(item) == [1.0, 1.0, 0.0]


def test_sparkleseval(tmp_path: Path) -> None:
    (item,) = load("sparkleseval", tmp_path)
    names = [media.content.name for media in item.media if isinstance(media.content, Path)]
    assert names == ["14.jpg", "1417.jpg", "804.jpg"]
    assert [part for part in item.questions[0].parts if isinstance(part, str)] == [
        "Link IMAGE#14",
        " and IMAGE#1417",
        ".",
    ]


def test_musique_takes_the_supporting_paragraphs(tmp_path: Path) -> None:
    (item,) = load("musique", tmp_path)
    assert [media.content for media in item.media] == ["Ada\nAda was born in Lund.", "Lund\nLund is in Skåne."]
    assert [(q.text, q.answer, q.multi_hop) for q in item.questions] == [
        ("Where does Ada's town lie?", "Skåne", True),
        ("Ada >> born in", "Lund", False),
        ("Lund >> lies in", "Skåne", False),
    ]
    assert item.questions[0].aliases == ("Scania",)


@pytest.mark.parametrize("form", ["mm-niah", "milebench", "egoschema", "mmdu", "sparkleseval", "musique", "emblema"])
def test_a_folder_with_one_file_of_records_will_do(form: str, tmp_path: Path) -> None:
    file = MAKERS[form](tmp_path)
    assert [describe(item) for item in load_items(tmp_path, form)] == [
        describe(item) for item in load_items(str(file), form)
    ]


def test_media_may_lie_elsewhere(tmp_path: Path) -> None:
    moved = tmp_path / "moved.json"
    moved.write_text(milebench(tmp_path / "set").read_text())
    first, _ = load_items(moved, "milebench", media=tmp_path / "set")
    assert len(first.media) == 3


def test_parquet_as_on_the_hub(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    drawn = list(TASKS["album-binding"].items(3, 2))
    records = [json.loads(line) for line in write_items(drawn, "muirbench", tmp_path).read_text().splitlines()]
    for record in records:
        record["image_list"] = [
            {"bytes": (tmp_path / name).read_bytes(), "path": name} for name in record["image_list"]
        ]
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "test-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(records), file)
    read = list(load_items(file, "muirbench"))
    assert [describe(item) for item in read] == [describe(item) for item in drawn]


def test_what_a_form_has_no_place_for_is_refused(tmp_path: Path) -> None:
    (item,) = TASKS["dialogue-word"].items(1, 1)
    with pytest.raises(PromptError, match="pictures inside a question"):
        write_items([item], "milebench", tmp_path)
    with pytest.raises(PromptError, match="needs one question with 5 options"):
        write_items(TASKS["video-choice"].items(1, 1), "egoschema", tmp_path)
    with pytest.raises(PromptError, match="takes passages of text"):
        write_items(TASKS["two-page"].items(1, 1), "musique", tmp_path)
    for name in ("../away", "a/b", "", "a" * 400, ".hidden", "a\0"):
        (drawn,) = TASKS["two-page"].items(1, 1)
        with pytest.raises(PromptError, match="cannot name a file"):
            write_items([replace(drawn, id=name)], "emblema", tmp_path)
    with pytest.raises(PromptError, match="two pieces of media would be called two-page-1-0000-000.png"):
        write_items([*TASKS["two-page"].items(1, 1), *TASKS["two-page"].items(1, 1)], "emblema", tmp_path)
    with pytest.raises(PromptError, match="no items to write"):
        write_items([], "emblema", tmp_path)
    with pytest.raises(PromptError, match="unknown form 'coco': choose one of emblema, "):
        write_items([item], "coco", tmp_path)
    with pytest.raises(PromptError, match="unknown form 'coco'"):
        load_items(tmp_path, "coco")
