"""Video-MME: a video and multiple choice; JSON by video, or a row for each question as on the hub (parquet)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.data.form import Form, MediaWriter, Source, answer_of, option_index, write_json
from benchmarks.data.notes import FIELD, annotated, merged, noted
from benchmarks.data.record import Record
from benchmarks.tasks.asking import LETTERS
from benchmarks.tasks.items import Item, ItemQuestion, Media

PLACES = ("data", "videos", "video", "")
SUFFIXES = (".mp4", ".mkv", ".webm", "")
_LETTER = re.compile(r"^\(?[A-Z][.):]\s*")


def read(source: Source) -> Iterator[Item]:
    """Items, one a video; rows of a video that follow each other are one item."""
    return merged(_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("video_id", *(() if record.has("questions") else ("question_id", "question", "options", "answer")))
    name = record.text("videoID", record.text("video_id"))
    asked = record.objects("questions") if record.has("questions") else [record]
    if not asked:
        raise record.wrong("'questions' is empty")
    video = Media("video", source.folder.find(record, name, PLACES, SUFFIXES))
    questions = tuple(_question(each) for each in asked)
    return annotated(record, Item(record.text("video_id"), "video-mme", "video-mme", (video,), questions))


def _question(record: Record) -> ItemQuestion:
    record.need("question_id", "question", "options", "answer")
    texts = record.texts("options")
    options = tuple(_LETTER.sub("", option) for option in texts)
    correct = option_index(record, record.fields["answer"], options)
    return ItemQuestion(
        record.text("question_id"),
        (record.text("question"),),
        options[correct],
        options,
        correct,
        kind=record.text("task_type", ""),
    )


def write(items: Sequence[Item], out: Path) -> Path:
    """`video-mme.json`, an entry for each video, and `data/<video_id>.mp4`."""
    videos = MediaWriter(out, "data")
    entries = []
    for item in items:
        videos.write(item.media[0], item.id)
        questions = [
            {
                "question_id": each.id,
                "task_type": each.kind,
                "question": each.text,
                "options": [f"{letter}. {option}" for letter, option in zip(LETTERS, each.options, strict=False)],
                "answer": answer_of(each),
                "response": "",
            }
            for each in item.questions
        ]
        entries.append(
            {
                "video_id": item.id,
                "duration": "short",
                "domain": "Generated",
                "sub_category": item.task,
                "questions": questions,
                FIELD: noted(item),
            }
        )
    return write_json(out / "video-mme.json", entries)


def rows(items: Sequence[Item]) -> list[dict[str, object]]:
    """The same as rows of the hub's table, one for each question."""
    return [
        {
            "video_id": item.id,
            "duration": "short",
            "videoID": item.id,
            "question_id": each.id,
            "task_type": each.kind,
            "question": each.text,
            "options": [f"{letter}. {option}" for letter, option in zip(LETTERS, each.options, strict=False)],
            "answer": answer_of(each),
            FIELD: noted(replace(item, questions=(each,))),
        }
        for item in items
        for each in item.questions
    ]


FORM = Form("video-mme", "Video-MME", ("*.json", "videomme/*.parquet", "*.parquet"), read, write)
