"""SparklesEval: two turns with pictures named inside sentences, `<Img><ImageHere></Img>` behind each name; JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import Form, MediaWriter, Source, flat, interleave, write_json
from benchmarks.data.notes import FIELD, annotated, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media

MARK = "<Img><ImageHere></Img>"
PLACES = ("images", "")
SUFFIXES = (".jpg", ".jpeg", ".png")


def read(source: Source) -> Iterator[Item]:
    """Items, one a dialogue: the even messages are questions, the odd ones reference answers."""
    return (_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("evaluation_id", "dialogue")
    messages = record.objects("dialogue")
    if len(messages) < 2 or len(messages) % 2:
        raise record.wrong(f"'dialogue' has {len(messages)} messages: a question and an answer for each turn")
    code = record.text("evaluation_id")
    questions = []
    for turn, (user, assistant) in enumerate(zip(messages[::2], messages[1::2], strict=True)):
        shown = user.objects("images") if user.has("images") else []
        left = iter([_picture(source, image) for image in shown])
        asked = interleave(user, user.text("content"), MARK, left)
        if next(left, None) is not None:
            raise user.wrong(f"more pictures than places {MARK!r}")
        questions.append(ItemQuestion(f"{code}-{turn}", asked, assistant.text("content")))
    return annotated(record, Item(code, "sparkleseval", "sparkleseval", (), tuple(questions), dialogue=True))


def _picture(source: Source, image: Record) -> Media:
    return Media("image", source.folder.find(image, image.text("image_id"), PLACES, SUFFIXES))


def write(items: Sequence[Item], out: Path) -> Path:
    """`annotations/sparkles_evaluation_sparkleseval_annotations.json` and `images/<image_id>.png`."""
    pictures = MediaWriter(out, PLACES[0])
    entries = []
    for item in items:
        dialogue = []
        count = 0
        for question in item.questions:
            files = pictures.all(question.parts, item.id, count)
            count += len(files)
            images = [{"image_id": name.removesuffix(".png"), "caption": ""} for name in files]
            dialogue.append({"content": flat(question.parts, lambda _: MARK, MARK), "images": images})
            dialogue.append({"content": question.answer, "images": []})
        entries.append({"evaluation_id": item.id, "dialogue": dialogue, FIELD: noted(item)})
    return write_json(out / "annotations" / "sparkles_evaluation_sparkleseval_annotations.json", entries)


FORM = Form("sparkleseval", "SparklesEval", ("annotations/*sparkleseval_annotations.json", "*.json"), read, write)
