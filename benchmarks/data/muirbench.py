"""MuirBench: several pictures and multiple choice, `<image>` in questions and options; parquet on the hub, or jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import (
    Form,
    MediaWriter,
    Source,
    answer_of,
    divided,
    flat,
    interleave,
    option_index,
    write_lines,
)
from benchmarks.data.notes import FIELD, annotated, merged, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media, Part

MARK = "<image>"
PLACES = ("", "images")


def read(source: Source) -> Iterator[Item]:
    """Items; neighbours with the same pictures are one, and a question's unanswerable twin shares its episode."""
    return merged(_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("question", "options", "answer", "image_list")
    media = [source.picture(record, value, *PLACES) for value in record.values("image_list")]
    left = iter(media)
    text = record.text("question")
    texts = record.texts("options")
    if MARK not in text and not any(MARK in option for option in texts):
        text = MARK * len(media) + text
    parts = interleave(record, text, MARK, left)
    options = tuple(_option(record, option, left) for option in texts)
    if (rest := len(list(left))) > 0:
        raise record.wrong(f"{rest} more pictures than places {MARK!r}")
    shown, asked = divided(parts)
    correct = option_index(record, record.fields["answer"], texts)
    answer = texts[correct].strip() if isinstance(options[correct], str) else record.text("answer")
    code = record.text("idx", str(record.place))
    twin = record.text("counterpart_idx", "") or code
    question = ItemQuestion(code, asked, answer, options, correct)
    task = record.text("task", "muirbench")
    item = Item(code, task, "muirbench", shown, (question,), episode=min((code, twin), key=lambda one: (len(one), one)))
    return annotated(record, item)


def _option(record: Record, option: str, left: Iterator[Media]) -> Part:
    if MARK not in option:
        return option
    found = [part for part in interleave(record, option, MARK, left) if isinstance(part, Media)]
    if len(found) != 1:
        raise record.wrong(f"the option {option[:60]!r} has {len(found)} pictures")
    return found[0]


def write(items: Sequence[Item], out: Path) -> Path:
    """`muirbench.jsonl`, a line for each question, and `images/`."""
    pictures = MediaWriter(out, "images")
    lines = []
    for item in items:
        for question in item.questions:
            images = [*pictures.all(item.parts, item.id), *pictures.all(question.options, f"{question.id}-option")]
            lines.append(
                {
                    "idx": question.id,
                    "task": item.task,
                    "image_relation": "Complementary",
                    "image_type": "Map",
                    "question": flat((*item.parts, *question.parts), lambda _: MARK, MARK),
                    "options": [option if isinstance(option, str) else MARK for option in question.options],
                    "answer": answer_of(question),
                    "image_list": [f"images/{name}" for name in images],
                    "counterpart_idx": None,
                    FIELD: noted(item, [question]),
                }
            )
    return write_lines(out / "muirbench.jsonl", lines)


FORM = Form("muirbench", "MuirBench", ("*.jsonl", "*.parquet", "data/*.parquet"), read, write)
