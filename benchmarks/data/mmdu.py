"""MMDU: dialogues over many pictures, `<ImageHere>` in the user's turns; a JSON list, or an object of dialogues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.form import Form, MediaWriter, Source, flat, interleave, write_json
from benchmarks.data.notes import FIELD, annotated, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion

MARK = "<ImageHere>"
PLACES = ("", "images", "mmdu_pics")
ROLES = ("user", "assistant")


def read(source: Source) -> Iterator[Item]:
    """Items, one a dialogue: its user turns are the questions, the assistant's the reference answers.

    A picture that no turn has a place for is not shown, as in the data set's own evaluation.
    """
    return (_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("id", "image", "conversations")
    left = iter([source.picture(record, value, *PLACES) for value in record.values("image")])
    messages = record.objects("conversations")
    if len(messages) < 2 or len(messages) % 2:
        raise record.wrong(f"'conversations' has {len(messages)} messages: a user's and an assistant's for each turn")
    code = record.text("id")
    questions = []
    for turn, (user, assistant) in enumerate(zip(messages[::2], messages[1::2], strict=True)):
        for message, role in ((user, ROLES[0]), (assistant, ROLES[1])):
            if message.text("from") != role:
                raise message.wrong(f"it is from {message.text('from')[:20]!r}; here stands one from {role!r}")
        asked = interleave(record, user.text("value"), MARK, left)
        questions.append(ItemQuestion(f"{code}-{turn}", asked, assistant.text("value")))
    return annotated(record, Item(code, "mmdu", "mmdu", (), tuple(questions), dialogue=True))


def write(items: Sequence[Item], out: Path) -> Path:
    """`benchmark.json`, an entry for each dialogue, and `images/`."""
    pictures = MediaWriter(out, "images")
    entries = []
    for item in items:
        images: list[str] = []
        messages: list[dict[str, str]] = []
        for question in item.questions:
            images += pictures.all(question.parts, item.id, len(images))
            messages.append({"from": ROLES[0], "value": flat(question.parts, lambda _: MARK, MARK)})
            messages.append({"from": ROLES[1], "value": question.answer})
        files = [f"images/{name}" for name in images]
        entries.append({"id": item.id, "image": files, "conversations": messages, FIELD: noted(item)})
    return write_json(out / "benchmark.json", entries)


FORM = Form("mmdu", "MMDU", ("benchmark.json",), read, write)
