"""Items: what bench tasks and data sets are turned into: media and text in order, then questions about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from emblema.errors import PromptError
from emblema.media import load_image

MediaKind = Literal["image", "video", "audio", "text"]
Content = Image.Image | bytes | Path | str


@dataclass(frozen=True, slots=True)
class Media:
    """A piece of media, or a passage of text, that becomes a chunk (a video: a clip of chunks).

    Attributes:
        content: a drawn picture; a file, by its path or its bytes; for kind `text` the passage.
        slides: share of the piece's chunks, from its front, that are antecedents: in the setting `slid` they
            conditioned what comes after them and are absent for the question. 1 is a whole picture, less a video's
            opening.
    """

    kind: MediaKind
    content: Content
    slides: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.content, str) is not (self.kind == "text") or not 0 <= self.slides <= 1:
            raise PromptError(f"a piece of kind {self.kind} needs a matching content and slides from 0 to 1")

    def digest(self) -> str:
        """Return hex digest of what the piece shows: a picture's pixels, the bytes of anything else."""
        content = self.content
        if self.kind == "image":
            pixels = np.asarray(load_image(content))
            return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        if isinstance(content, Path):
            with content.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        if isinstance(content, Image.Image):
            raise PromptError(f"a piece of kind {self.kind} holds a picture")
        data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
        return hashlib.sha256(data).hexdigest()


Part = str | Media


@dataclass(frozen=True, slots=True)
class ItemQuestion:
    """A question after an item's parts.

    Attributes:
        parts: its text, and pictures that stand in it.
        answer: the right answer's text; one of the options where there are options.
        options: texts, or pictures; letters are put to them when they are asked for.
        correct: index of the right option, -1 where it is not known or there are none.
        multi_hop: whether the answer needs several pieces of media together.
        kind: what is asked, for tables by kind; the bundled models were trained on those of `world.KINDS`.
        aliases: other texts that count as right.
    """

    id: str
    parts: tuple[Part, ...]
    answer: str
    options: tuple[Part, ...] = ()
    correct: int = -1
    multi_hop: bool = True
    kind: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The question without its pictures."""
        return " ".join(part.strip() for part in self.parts if isinstance(part, str)).strip()


@dataclass(frozen=True, slots=True)
class TaskItem:
    """Parts in prompt order, and questions about them. Figures are bootstrapped by `episode`.

    Attributes:
        form: the data set's form (`mm-niah`, `muirbench`, …); it says how options are asked for.
        dialogue: each question is a turn after the questions before it, which were answered rightly; otherwise every
            question is asked by itself.
        instruction: text in front of everything, where the data set has one.
    """

    id: str
    task: str
    form: str
    parts: tuple[Part, ...]
    questions: tuple[ItemQuestion, ...]
    dialogue: bool = False
    instruction: str = ""
    episode: str = ""

    def __post_init__(self) -> None:
        if not self.questions:
            raise PromptError(f"item {self.id} of {self.task} has no question")
        if not self.episode:
            object.__setattr__(self, "episode", self.id)

    @property
    def media(self) -> tuple[Media, ...]:
        """Every piece of media in order: of the parts, then question by question, options last."""
        return tuple(_media(self))


def sliding(item: TaskItem, shares: list[float]) -> TaskItem:
    """Return the item with each of its media, in the order of `item.media`, sliding by a share of its chunks."""
    left = iter(shares)

    def mark(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part if isinstance(part, str) else replace(part, slides=next(left)) for part in parts)

    questions: list[ItemQuestion] = []
    parts = mark(item.parts)
    for question in item.questions:
        shown = mark(question.parts)
        questions.append(replace(question, parts=shown, options=mark(question.options)))
    return replace(item, parts=parts, questions=tuple(questions))


def describe(item: TaskItem) -> dict[str, Any]:
    """Return the item as plain data, media by their digests: equal for items that show and ask the same."""

    def shown(parts: tuple[Part, ...]) -> list[Any]:
        return [part if isinstance(part, str) else [part.kind, part.slides, part.digest()] for part in parts]

    return {
        "id": item.id,
        "task": item.task,
        "form": item.form,
        "episode": item.episode,
        "dialogue": item.dialogue,
        "instruction": item.instruction,
        "parts": shown(item.parts),
        "questions": [
            {
                "id": each.id,
                "parts": shown(each.parts),
                "answer": each.answer,
                "options": shown(each.options),
                "correct": each.correct,
                "multi_hop": each.multi_hop,
                "kind": each.kind,
                "aliases": list(each.aliases),
            }
            for each in item.questions
        ],
    }


def _media(item: TaskItem) -> Iterator[Media]:
    yield from (part for part in item.parts if isinstance(part, Media))
    for question in item.questions:
        yield from (part for part in (*question.parts, *question.options) if isinstance(part, Media))
