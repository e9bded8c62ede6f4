"""What a bench wants to know of an item and data sets have no field for, kept in one extra field, `emblema`.

A real data set has no such field: then all pictures but the last slide, the first half of a video does, and every
question counts as multi-hop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media, sliding

FIELD = "emblema"
VIDEO_SHARE = 0.5


def noted(item: Item, questions: Sequence[ItemQuestion] | None = None) -> dict[str, Any]:
    """The extra field of a record that holds all of an item's questions, or some of them."""
    chosen = item.questions if questions is None else questions
    shown = replace(item, questions=tuple(chosen))
    return {
        "task": item.task,
        "item": item.id,
        "slides": [media.slides for media in shown.media],
        "questions": [{"id": each.id, "multi_hop": each.multi_hop, "kind": each.kind} for each in chosen],
    }


def annotated(record: Record, item: Item) -> Item:
    """An item as read, with what the record notes about it, or with the marks that a real data set gets.

    Raises:
        DataError: the notes do not fit the item.
    """
    if not record.has(FIELD):
        return sliding(item, usual(item))
    notes = record.object(FIELD)
    notes.need("task", "item", "slides", "questions")
    shares, marks = notes.values("slides"), notes.objects("questions")
    if len(marks) != len(item.questions) or len(shares) != len(item.media):
        raise notes.wrong("it notes other media or questions than the record has")
    if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
        raise notes.wrong(f"'slides' is {repr(shares)[:60]}, not shares from 0 to 1")
    questions = tuple(
        replace(
            question,
            id=mark.text("id", question.id),
            multi_hop=mark.flag("multi_hop", True),
            kind=mark.text("kind", question.kind),
        )
        for question, mark in zip(item.questions, marks, strict=True)
    )
    same = item.episode == item.id
    made = replace(item, id=notes.text("item"), task=notes.text("task"), questions=questions)
    return sliding(replace(made, episode=made.id) if same else made, [float(share) for share in shares])


def usual(item: Item) -> list[float]:
    """Marks for an item of a real data set: what stands before the last piece of media slides; options never do."""
    options = {id(part) for question in item.questions for part in question.options}
    shown = [media for media in item.media if id(media) not in options]
    last = id(shown[-1]) if shown else 0

    def share(media: Media) -> float:
        if id(media) in options:
            return 0.0
        return VIDEO_SHARE if media.kind == "video" else float(id(media) != last)

    return [share(media) for media in item.media]


def merged(items: Iterable[Item]) -> Iterator[Item]:
    """Neighbours that show the same become one item with all their questions."""
    held: Item | None = None
    for item in items:
        if held is not None and _same(held, item):
            held = replace(held, questions=(*held.questions, *item.questions))
            continue
        if held is not None:
            yield held
        held = item
    if held is not None:
        yield held


def _same(held: Item, item: Item) -> bool:
    if not item.parts or not any(isinstance(part, Media) for part in item.parts):
        return False
    return (held.task, held.instruction, held.parts) == (item.task, item.instruction, item.parts)
