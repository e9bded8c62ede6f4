"""Items: what bench tasks and data sets are turned into: media and text in order, then questions about them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
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
        if isinstance(content, Image.Image):
            raise PromptError(f"a piece of kind {self.kind} holds a picture")
        data = content.read_bytes() if isinstance(content, Path) else content
        return hashlib.sha256(data.encode(errors="surrogatepass") if isinstance(data, str) else data).hexdigest()


Part = str | Media


@dataclass(frozen=True, slots=True)
class ItemQuestion:
    """A question after an item's parts.

    Attributes:
        parts: its text, and pictures that stand in it.
        answer: the right answer's text; one of the options where there are options.
        options: texts, or pictures.
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
        form: the data set that the task is like (`mm-niah`, `muirbench`, …).
        dialogue: each question is a turn after the questions before it, which were answered rightly; otherwise every
            question is asked by itself.
    """

    id: str
    task: str
    form: str
    parts: tuple[Part, ...]
    questions: tuple[ItemQuestion, ...]
    dialogue: bool = False
    episode: str = ""

    def __post_init__(self) -> None:
        if not self.questions:
            raise PromptError(f"item {self.id} of {self.task} has no question")
        if not self.episode:
            object.__setattr__(self, "episode", self.id)

    @property
    def media(self) -> tuple[Media, ...]:
        """Every piece of media in order: of the parts, then question by question, options last."""
        asked = [part for each in self.questions for part in (*each.parts, *each.options)]
        return tuple(part for part in (*self.parts, *asked) if isinstance(part, Media))


def describe(value: Any) -> Any:
    """Return an item as plain data, media by their digests: equal for items that show and ask the same."""
    if isinstance(value, Media):
        return [value.kind, value.slides, value.digest()]
    if isinstance(value, TaskItem | ItemQuestion):
        return {each.name: describe(getattr(value, each.name)) for each in fields(value)}
    return list(map(describe, value)) if isinstance(value, tuple) else value
