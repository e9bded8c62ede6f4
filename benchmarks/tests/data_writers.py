"""Items as files of a data set's form, so that readers are tested on every generated task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.data.forms import (
    EGOSCHEMA_ANSWERS,
    EGOSCHEMA_OPTIONS,
    EGOSCHEMA_PLACES,
    IMAGE_MARK,
    IMAGES,
    MILEBENCH_MARK,
    MMDU_MARK,
    MMDU_ROLES,
    SPARKLES_MARK,
)
from benchmarks.data.source import FIELD
from benchmarks.tasks.items import ItemQuestion, Media, Part, TaskItem
from benchmarks.tasks.prompts import LETTERS
from benchmarks.tests.data_sets import document
from emblema.errors import PromptError

_NAME = re.compile(r"\w[\w.-]{0,150}")
_FILE = {"image": ".png", "video": ".mp4", "audio": ".wav"}


def file_name(name: str) -> str:
    """Return a name that files are called by.

    Raises:
        PromptError: it could lead elsewhere, or is too long.
    """
    if _NAME.fullmatch(name) is None:
        raise PromptError(f"{name[:80]!r} cannot name a file: use letters, digits, '-', '_' and '.'")
    return name


class MediaWriter:
    """Writes media into a folder of a data set, each once, numbered by item."""

    def __init__(self, out: Path, place: str) -> None:
        self._out, self._place = out, place
        self._held: dict[int, tuple[Media, str]] = {}
        self._files: set[str] = set()
        (out / place).mkdir(parents=True, exist_ok=True)

    def write(self, media: Media, name: str) -> str:
        """Write a piece of media, if it is not written yet; returns its file's name below the place.

        Raises:
            PromptError: the name is no file's, or is another piece's already.
        """
        if id(media) in self._held:
            return self._held[id(media)][1]
        file = file_name(name) + _FILE[media.kind]
        if file in self._files:
            raise PromptError(f"two pieces of media would be called {file}: give items different ids")
        path = self._out / self._place / file
        if isinstance(media.content, bytes):
            path.write_bytes(media.content)
        elif isinstance(media.content, Path):
            path.write_bytes(media.content.read_bytes())
        elif not isinstance(media.content, str):
            media.content.save(path)
        self._held[id(media)] = (media, file)
        self._files.add(file)
        return file

    def all(self, parts: Iterable[Part], name: str, first: int = 0) -> list[str]:
        """Write the media among parts, numbered from `first`; returns their files' names."""
        media = (part for part in parts if isinstance(part, Media))
        return [self.write(each, f"{name}-{place:03d}") for place, each in enumerate(media, start=first)]


def flat(parts: Iterable[Part], mark: Callable[[Media], str], *forbidden: str) -> str:
    """Parts as one text, media as marks.

    Raises:
        PromptError: a text holds a mark itself and would be read back as a picture.
    """
    pieces = []
    for part in parts:
        if isinstance(part, str) and any(re.search(each, part) for each in forbidden):
            raise PromptError(f"{part[:60]!r} holds a mark that stands for a picture: it cannot be written")
        pieces.append(part if isinstance(part, str) else mark(part))
    return "".join(pieces)


def answer_of(question: ItemQuestion) -> str:
    """Letter of the right option."""
    if question.correct < 0:
        raise PromptError(f"question {question.id} has no option that is right: this form needs one")
    return LETTERS[question.correct]


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """A jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def noted(item: TaskItem, questions: Sequence[ItemQuestion] | None = None) -> dict[str, Any]:
    """The extra field of a record that holds all of an item's questions, or some of them."""
    chosen = item.questions if questions is None else questions
    shown = replace(item, questions=tuple(chosen))
    return {
        "task": item.task,
        "item": item.id,
        "slides": [media.slides for media in shown.media],
        "questions": [{"id": each.id, "multi_hop": each.multi_hop, "kind": each.kind} for each in chosen],
    }


def write_own(items: Sequence[TaskItem], out: Path) -> Path:
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


def write_mm_niah(items: Sequence[TaskItem], out: Path) -> Path:
    """`annotations/<task>.jsonl`, a line for each question, and `images/`."""
    pictures = MediaWriter(out, IMAGES[0])
    lines = []
    for item in items:
        context = flat(item.parts, lambda _: IMAGE_MARK, IMAGE_MARK)
        needles = [place for place, part in enumerate(item.parts) if isinstance(part, Media) and not part.slides]
        for question in item.questions:
            asked = flat(question.parts, lambda _: IMAGE_MARK, IMAGE_MARK)
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
                **_mm_niah_choices(pictures, question),
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


def _mm_niah_choices(pictures: MediaWriter, question: ItemQuestion) -> dict[str, list[str] | None]:
    texts = [option for option in question.options if isinstance(option, str)]
    images = pictures.all(question.options, f"{question.id}-choice")
    return {"choices": texts or None, "choices_image_path": images or None}


def write_muirbench(items: Sequence[TaskItem], out: Path) -> Path:
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
                    "question": flat((*item.parts, *question.parts), lambda _: IMAGE_MARK, IMAGE_MARK),
                    "options": [option if isinstance(option, str) else IMAGE_MARK for option in question.options],
                    "answer": answer_of(question),
                    "image_list": [f"images/{name}" for name in images],
                    "counterpart_idx": None,
                    FIELD: noted(item, [question]),
                }
            )
    return write_lines(out / "muirbench.jsonl", lines)


def write_milebench(items: Sequence[TaskItem], out: Path) -> Path:
    """`<task>.json`, an entry for each question, and `images/`."""
    pictures = MediaWriter(out, IMAGES[0])
    instructions = list(dict.fromkeys(item.instruction for item in items))
    data: list[dict[str, Any]] = []
    for item in items:
        images = pictures.all(item.parts, item.id)
        if any(isinstance(part, Media) for question in item.questions for part in question.parts):
            raise PromptError(f"item {item.id} has pictures inside a question: this form has them in front of it")
        level = "Few" if len(images) < 6 else "Medium" if len(images) < 32 else "Many"
        front = _milebench_context(item.parts)
        for question in item.questions:
            instance = {
                "context": front + _milebench_context(question.parts),
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
    return document(out / f"{file_name(items[0].task)}.json", {"meta_data": meta, "data": data})


def _milebench_context(parts: Sequence[Part]) -> str:
    """Text with marks, pictures numbered from one."""
    numbers = count(1)
    return flat(parts, lambda _: f"{{image#{next(numbers)}}}", MILEBENCH_MARK.pattern)


def write_video_mme(items: Sequence[TaskItem], out: Path) -> Path:
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
    return document(out / "video-mme.json", entries)


def video_mme_rows(items: Sequence[TaskItem]) -> list[dict[str, object]]:
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


def write_egoschema(items: Sequence[TaskItem], out: Path) -> Path:
    """`questions.json`, `subset_answers.json` and `videos/<q_uid>.mp4`."""
    videos = MediaWriter(out, EGOSCHEMA_PLACES[0])
    entries = []
    for item in items:
        if len(item.questions) != 1 or len(item.questions[0].options) != len(EGOSCHEMA_OPTIONS):
            raise PromptError(f"item {item.id} needs one question with {len(EGOSCHEMA_OPTIONS)} options for this form")
        videos.write(item.media[0], item.id)
        question = item.questions[0]
        entry: dict[str, object] = {"q_uid": item.id, "google_drive_id": "", "question": question.text}
        entry |= {name: str(option) for name, option in zip(EGOSCHEMA_OPTIONS, question.options, strict=True)}
        entries.append(entry | {FIELD: noted(item)})
    document(out / EGOSCHEMA_ANSWERS, {item.id: item.questions[0].correct for item in items})
    return document(out / "questions.json", entries)


def write_mmdu(items: Sequence[TaskItem], out: Path) -> Path:
    """`benchmark.json`, an entry for each dialogue, and `images/`."""
    pictures = MediaWriter(out, "images")
    entries = []
    for item in items:
        images: list[str] = []
        messages: list[dict[str, str]] = []
        for question in item.questions:
            images += pictures.all(question.parts, item.id, len(images))
            messages.append({"from": MMDU_ROLES[0], "value": flat(question.parts, lambda _: MMDU_MARK, MMDU_MARK)})
            messages.append({"from": MMDU_ROLES[1], "value": question.answer})
        files = [f"images/{name}" for name in images]
        entries.append({"id": item.id, "image": files, "conversations": messages, FIELD: noted(item)})
    return document(out / "benchmark.json", entries)


def write_sparkleseval(items: Sequence[TaskItem], out: Path) -> Path:
    """`annotations/sparkles_evaluation_sparkleseval_annotations.json` and `images/<image_id>.png`."""
    pictures = MediaWriter(out, IMAGES[0])
    entries = []
    for item in items:
        dialogue = []
        count = 0
        for question in item.questions:
            files = pictures.all(question.parts, item.id, count)
            count += len(files)
            images = [{"image_id": name.removesuffix(".png"), "caption": ""} for name in files]
            dialogue.append({"content": flat(question.parts, lambda _: SPARKLES_MARK, SPARKLES_MARK), "images": images})
            dialogue.append({"content": question.answer, "images": []})
        entries.append({"evaluation_id": item.id, "dialogue": dialogue, FIELD: noted(item)})
    return document(out / "annotations" / "sparkles_evaluation_sparkleseval_annotations.json", entries)


def write_musique(items: Sequence[TaskItem], out: Path) -> Path:
    """`<task>.jsonl`, a line for each item."""
    lines = []
    for item in items:
        paragraphs = []
        for place, media in enumerate(item.media):
            if not isinstance(media.content, str) or "\n" not in media.content:
                raise PromptError(
                    f"item {item.id}: this form takes passages of text, each with a title on its own line"
                )
            title, text = media.content.split("\n", 1)
            paragraphs.append({"idx": place, "title": title, "paragraph_text": text, "is_supporting": True})
        asked, *hops = item.questions
        decomposition = [
            {"id": place, "question": hop.text, "answer": hop.answer, "paragraph_support_idx": None}
            for place, hop in enumerate(hops)
        ]
        lines.append(
            {
                "id": item.id,
                "paragraphs": paragraphs,
                "question": asked.text,
                "question_decomposition": decomposition,
                "answer": asked.answer,
                "answer_aliases": list(asked.aliases),
                "answerable": True,
                FIELD: noted(item),
            }
        )
    return write_lines(out / f"{file_name(items[0].task)}.jsonl", lines)


WRITERS: dict[str, Callable[[Sequence[TaskItem], Path], Path]] = {
    "emblema": write_own,
    "mm-niah": write_mm_niah,
    "muirbench": write_muirbench,
    "milebench": write_milebench,
    "video-mme": write_video_mme,
    "egoschema": write_egoschema,
    "mmdu": write_mmdu,
    "sparkleseval": write_sparkleseval,
    "musique": write_musique,
}


def write_items(items: Iterable[TaskItem], form: str, out: str | Path) -> Path:
    """Write items in a data set's form below a folder; returns the file of records.

    Raises:
        PromptError: there are no items, there is no such form, or it has no place for what an item holds.
    """
    if form not in WRITERS:
        raise PromptError(f"unknown form {form!r}: choose one of {', '.join(WRITERS)}")
    held = list(items)
    if not held:
        raise PromptError("there are no items to write")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return WRITERS[form](held, folder)
