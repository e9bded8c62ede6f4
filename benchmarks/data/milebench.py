"""MileBench: frames and a question in one context, `{image#i}` or `{table#i}` where the i-th picture stands; JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.data.form import Form, MediaWriter, Source, divided, file_name, flat, option_index, write_json
from benchmarks.data.notes import FIELD, annotated, merged, noted
from benchmarks.data.record import Record
from benchmarks.tasks.items import Item, ItemQuestion, Media, Part
from emblema.errors import PromptError

_MARK = re.compile(r"\{(?:image|table)#(\d{1,6})\}")
PLACES = ("images", "")


def read(source: Source) -> Iterator[Item]:
    """Items of the document's `data`; neighbours with the same pictures and text in front of the question are one."""
    around = source.around("data")
    around.need("meta_data")
    instructions = around.object("meta_data").fields.get("task_instruction", [])
    return merged(_item(source, record, instructions) for record in source.records("data"))


def _item(source: Source, record: Record, instructions: object) -> Item:
    record.need("sample_id", "task_instruction_id", "task_instance", "response")
    instance = record.object("task_instance")
    instance.need("context", "images_path")
    media = [source.picture(record, value, *PLACES) for value in instance.values("images_path")]
    parts, asked = divided(_parts(record, instance.text("context"), media))
    options = instance.texts("choice_list") if instance.has("choice_list") else []
    response, correct = record.text("response"), -1
    if options:
        correct = option_index(record, response, options)
        response = options[correct]
    code = record.text("sample_id")
    question = ItemQuestion(code, asked, response, tuple(options), correct)
    task = source.path.stem
    item = Item(f"{task}-{code}", task, "milebench", parts, (question,), instruction=_instruction(record, instructions))
    return annotated(record, item)


def _parts(record: Record, context: str, media: list[Media]) -> tuple[Part, ...]:
    parts: list[Part] = []
    pieces = _MARK.split(context)
    for text, number in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if text:
            parts.append(text)
        if number:
            if not 1 <= int(number) <= len(media):
                raise record.wrong(f"the context names picture {number}; there are {len(media)}")
            parts.append(media[int(number) - 1])
    return tuple(parts)


def _instruction(record: Record, instructions: object) -> str:
    key = record.fields["task_instruction_id"]
    if isinstance(instructions, dict):
        found = instructions.get(str(key))
    else:
        fits = isinstance(instructions, list) and isinstance(key, int) and 0 <= key < len(instructions)
        found = instructions[key] if fits and isinstance(instructions, list) else None
    if not isinstance(found, str):
        raise record.wrong(f"there is no task instruction {repr(key)[:40]} in 'meta_data'")
    return found


def write(items: Sequence[Item], out: Path) -> Path:
    """`<task>.json`, an entry for each question, and `images/`."""
    pictures = MediaWriter(out, PLACES[0])
    instructions = list(dict.fromkeys(item.instruction for item in items))
    data: list[dict[str, Any]] = []
    for item in items:
        images = pictures.all(item.parts, item.id)
        if any(isinstance(part, Media) for question in item.questions for part in question.parts):
            raise PromptError(f"item {item.id} has pictures inside a question: this form has them in front of it")
        level = "Few" if len(images) < 6 else "Medium" if len(images) < 32 else "Many"
        front = _context(item.parts)
        for question in item.questions:
            instance = {
                "context": front + _context(question.parts),
                "images_path": images,
            }
            if question.options:
                instance["choice_list"] = [str(option) for option in question.options]
            data.append(
                {
                    "sample_id": len(data),
                    "task_instruction_id": instructions.index(item.instruction),
                    "task_instance": instance,
                    "response": question.answer,
                    "image_quantity_level": level,
                    FIELD: noted(item, [question]),
                }
            )
    meta = {"dataset": items[0].task, "task_instruction": instructions}
    return write_json(out / f"{file_name(items[0].task)}.json", {"meta_data": meta, "data": data})


def _context(parts: Sequence[Part]) -> str:
    """Text with marks, pictures numbered from one."""
    numbers = count(1)
    return flat(parts, lambda _: f"{{image#{next(numbers)}}}", _MARK.pattern)


FORM = Form("milebench", "MileBench", ("*.json",), read, write)
