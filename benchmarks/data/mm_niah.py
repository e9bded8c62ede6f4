"""MM-NIAH: a document of text and pictures with needles in it; jsonl, `<image>` where a picture stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import Form, MediaWriter, Source, file_name, flat, interleave, option_index, write_lines
from benchmarks.data.notes import FIELD, annotated, merged, noted
from benchmarks.data.record import Record
from benchmarks.tasks.asking import LETTERS
from benchmarks.tasks.items import Item, ItemQuestion, Media, Part

MARK = "<image>"
PLACES = ("images", "")


def read(source: Source) -> Iterator[Item]:
    """Items; neighbours with the same document are one item."""
    return merged(_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("id", "images_list", "context", "question", "answer", "meta")
    meta = record.object("meta")
    media = [source.picture(record, value, *PLACES) for value in record.values("images_list")]
    left = iter(media)
    parts = interleave(record, record.text("context"), MARK, left)
    asked = interleave(record, record.text("question"), MARK, left)
    if (rest := len(list(left))) > 0:
        raise record.wrong(f"{rest} more pictures than places {MARK!r}")
    options: list[Part] = []
    if meta.has("choices"):
        options += meta.texts("choices")
    elif meta.has("choices_image_path"):
        options += [source.picture(record, value, *PLACES) for value in meta.values("choices_image_path")]
    answer, correct = record.fields["answer"], -1
    if options:
        correct = option_index(record, answer, options)
        chosen = options[correct]
        answer = chosen if isinstance(chosen, str) else LETTERS[correct]
    elif isinstance(answer, list):
        answer = json.dumps(answer)
    code = record.text("id")
    question = ItemQuestion(code, asked, str(answer), tuple(options), correct)
    return annotated(record, Item(code, source.path.stem, "mm-niah", parts, (question,)))


def write(items: Sequence[Item], out: Path) -> Path:
    """`annotations/<task>.jsonl`, a line for each question, and `images/`."""
    pictures = MediaWriter(out, PLACES[0])
    lines = []
    for item in items:
        context = flat(item.parts, lambda _: MARK, MARK)
        needles = [place for place, part in enumerate(item.parts) if isinstance(part, Media) and not part.slides]
        for question in item.questions:
            asked = flat(question.parts, lambda _: MARK, MARK)
            images = pictures.all(item.parts, item.id)
            images += pictures.all(question.parts, f"{question.id}-question")
            words = sum(len(part.split()) for part in item.parts if isinstance(part, str))
            meta = {
                "placed_depth": [round(place / max(1, len(item.parts) - 1), 4) for place in needles],
                "context_length": words + 64 * len(images),
                "context_length_text": words,
                "context_length_image": 64 * len(images),
                "num_images": len(images),
                "needles": [],
                **_choices(pictures, question),
            }
            lines.append(
                {
                    "id": question.id,
                    "images_list": images,
                    "context": context,
                    "question": asked,
                    "answer": question.correct if question.options else question.answer,
                    "meta": meta,
                    FIELD: noted(item, [question]),
                }
            )
    return write_lines(out / "annotations" / f"{file_name(items[0].task)}.jsonl", lines)


def _choices(pictures: MediaWriter, question: ItemQuestion) -> dict[str, list[str] | None]:
    texts = [option for option in question.options if isinstance(option, str)]
    images = pictures.all(question.options, f"{question.id}-choice")
    return {"choices": texts or None, "choices_image_path": images or None}


FORM = Form("mm-niah", "MM-NIAH", ("annotations/*.jsonl", "*.jsonl"), read, write)
