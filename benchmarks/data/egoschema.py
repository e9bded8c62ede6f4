"""EgoSchema: a three-minute video, a question, five options; `questions.json` and the answers of 500 beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import Form, MediaWriter, Source, write_json
from benchmarks.data.notes import FIELD, annotated, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media
from emblema.errors import PromptError

OPTIONS = tuple(f"option {number}" for number in range(5))
ANSWERS = "subset_answers.json"
UNASKED = "Which of the following describes the video?"
PLACES = ("videos", "good_clips_git", "")


def read(source: Source) -> Iterator[Item]:
    """Items, one a video. Where `subset_answers.json` has no answer, the right option is not known."""
    answers = source.beside(ANSWERS)
    return (_item(source, record, answers) for record in source.records())


def _item(source: Source, record: Record, answers: Record | None) -> Item:
    record.need("q_uid", *OPTIONS)
    code = record.text("q_uid")
    options = tuple(record.text(name) for name in OPTIONS)
    correct = -1
    if answers is not None and code in answers.fields:
        correct = answers.number(code)
        if correct >= len(options):
            raise answers.wrong(f"{code!r} has the answer {correct}; options are numbered from 0 to 4")
    video = Media("video", source.folder.find(record, code, PLACES, (".mp4",)))
    # Some published copies of the file leave the question out.
    text = record.text("question", UNASKED)
    question = ItemQuestion(code, (text,), options[correct] if correct >= 0 else "", options, correct)
    return annotated(record, Item(code, "egoschema", "egoschema", (video,), (question,)))


def write(items: Sequence[Item], out: Path) -> Path:
    """`questions.json`, `subset_answers.json` and `videos/<q_uid>.mp4`."""
    videos = MediaWriter(out, PLACES[0])
    entries = []
    for item in items:
        if len(item.questions) != 1 or len(item.questions[0].options) != len(OPTIONS):
            raise PromptError(f"item {item.id} needs one question with {len(OPTIONS)} options for this form")
        videos.write(item.media[0], item.id)
        question = item.questions[0]
        entry: dict[str, object] = {"q_uid": item.id, "google_drive_id": "", "question": question.text}
        entry |= {name: str(option) for name, option in zip(OPTIONS, question.options, strict=True)}
        entries.append(entry | {FIELD: noted(item)})
    write_json(out / ANSWERS, {item.id: item.questions[0].correct for item in items})
    return write_json(out / "questions.json", entries)


FORM = Form("egoschema", "EgoSchema", ("questions.json",), read, write)
