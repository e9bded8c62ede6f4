"""Emblema's own form: jsonl that can say everything an item holds. For tasks that mirror no public data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.form import Form, MediaWriter, Source, write_lines
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media, MediaKind, Part

KINDS: tuple[MediaKind, ...] = ("image", "video", "audio", "text")


def read(source: Source) -> Iterator[Item]:
    """Items, one a line."""
    return (_item(source, record) for record in source.records())


def _item(source: Source, record: Record) -> Item:
    record.need("id", "task", "parts", "questions")
    questions = record.objects("questions")
    if not questions:
        raise record.wrong("'questions' is empty")
    return Item(
        record.text("id"),
        record.text("task"),
        "emblema",
        _parts(source, record, "parts"),
        tuple(_question(source, each) for each in questions),
        record.flag("dialogue", False),
        record.text("instruction", ""),
        record.text("episode", ""),
    )


def _question(source: Source, record: Record) -> ItemQuestion:
    record.need("id", "parts", "answer")
    options = _parts(source, record, "options") if record.has("options") else ()
    correct = record.number("correct") if record.has("correct") else -1
    if correct >= len(options):
        raise record.wrong(f"'correct' is {correct}; there are {len(options)} options")
    return ItemQuestion(
        record.text("id"),
        _parts(source, record, "parts"),
        record.text("answer"),
        options,
        correct,
        record.flag("multi_hop", True),
        record.text("kind", ""),
        tuple(record.texts("aliases")) if record.has("aliases") else (),
    )


def _parts(source: Source, record: Record, field: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for place, value in enumerate(record.values(field)):
        if isinstance(value, str):
            parts.append(value)
            continue
        if not isinstance(value, dict):
            raise record.wrong(f"'{field}[{place}]' is {repr(value)[:60]}, not a text or an object")
        media = Record(record.path, record.place, value, record.unit, f"{field}[{place}]")
        kind, slides = media.text("kind"), value.get("slides", 0.0)
        if kind not in KINDS:
            raise media.wrong(f"'kind' is {kind[:20]!r}: use one of {', '.join(KINDS)}")
        if isinstance(slides, bool) or not isinstance(slides, int | float) or not 0 <= slides <= 1:
            raise media.wrong(f"'slides' is {repr(slides)[:40]}, not a share from 0 to 1")
        file = None if kind == "text" else source.folder.find(media, media.text("file"), ("",))
        parts.append(Media(kind, media.text("text") if file is None else file, float(slides)))
    return tuple(parts)


def write(items: Sequence[Item], out: Path) -> Path:
    """`items.jsonl`, a line for each item, and `media/`."""
    files = MediaWriter(out, "media")

    def plain(parts: Sequence[Part], name: str) -> list[Any]:
        shown: list[Any] = []
        for place, part in enumerate(parts):
            if isinstance(part, str):
                shown.append(part)
            elif isinstance(part.content, str):
                shown.append({"kind": "text", "text": part.content, "slides": part.slides})
            else:
                file = f"media/{files.write(part, f'{name}-{place:03d}')}"
                shown.append({"kind": part.kind, "file": file, "slides": part.slides})
        return shown

    lines = []
    for item in items:
        questions = [
            {
                "id": each.id,
                "parts": plain(each.parts, each.id),
                "answer": each.answer,
                "options": plain(each.options, f"{each.id}-option"),
                "correct": each.correct if each.correct >= 0 else None,
                "multi_hop": each.multi_hop,
                "kind": each.kind,
                "aliases": list(each.aliases),
            }
            for each in item.questions
        ]
        line: dict[str, Any] = {"id": item.id, "task": item.task, "episode": item.episode, "dialogue": item.dialogue}
        line |= {"instruction": item.instruction, "parts": plain(item.parts, item.id), "questions": questions}
        lines.append(line)
    return write_lines(out / "items.jsonl", lines)


FORM = Form("emblema", "Emblema's own form", ("items.jsonl",), read, write)
