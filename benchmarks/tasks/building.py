"""What the generated tasks share: an item while it is drawn, pictures and clips as media, and plain sentences."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.tasks.episodes import TEMPLATES, Plan, make_episode, write_clip
from benchmarks.tasks.items import ItemQuestion, Media, Part, TaskItem
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS, Episode, Legend, Map, Page, SceneClip

POOLS = {"colour": COLOUR_NAMES, "land": LANDS, "legend": LANDS, "count": NUMBERS[:7], "which": ICON_NAMES}
SINGLE_HOP = ("colour", "colours", "legend")
"""Kinds of question that one page answers."""


@cache
def plain_sentences() -> tuple[str, ...]:
    """Return sentences that say nothing of any picture, in words that the bundled models know."""
    return tuple(Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines())


def stream(task: str, seed: int, item: int) -> np.random.Generator:
    """Return the random numbers of one item: the same for the same task, seed and item."""
    return np.random.default_rng([seed, zlib.crc32(task.encode()), item])


def phrase(random: np.random.Generator, kind: str, subject: str) -> str:
    """Return a question of a kind that the bundled models were trained on, in one of its wordings."""
    wordings = TEMPLATES[kind]
    return wordings[int(random.integers(len(wordings)))].format(subject)


def media_of(page: Page) -> Media:
    """Return a page as media: legends slide, maps stay; of a clip, the legends at its front slide."""
    if not isinstance(page, SceneClip):
        return Media("image", page.image(), 1.0 if isinstance(page, Legend) else 0.0)
    front = next((place for place, scene in enumerate(page.scenes) if isinstance(scene, Map)), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        write_clip(page, path)
        return Media("video", path.read_bytes(), front / len(page.scenes))


def picture(page: Legend | Map, slides: bool) -> Media:
    """Return a picture that slides or stays."""
    return Media("image", page.image(), float(slides))


@dataclass(slots=True)
class ItemDraw:
    """One item of a task while it is drawn, with random numbers and questions of its own."""

    task: str
    seed: int
    place: int
    form: str = "emblema"
    random: np.random.Generator = field(init=False)
    questions: list[ItemQuestion] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.random = stream(self.task, self.seed, self.place)

    @property
    def code(self) -> str:
        """The item's id."""
        return f"{self.task}-{self.seed}-{self.place:04d}"

    def phrase(self, kind: str, subject: str) -> str:
        """Return a question in one of its wordings."""
        return phrase(self.random, kind, subject)

    def episode(self, plan: Plan) -> Episode:
        """Return an episode of a plan."""
        return make_episode(self.random, plan, self.seed, self.task, self.place)

    def add(
        self, parts: Sequence[Part], answer: str, kind: str, options: Sequence[Part] = (), correct: int = -1
    ) -> None:
        """Ask one more question."""
        code, multi_hop = f"{self.code}-{len(self.questions)}", kind not in SINGLE_HOP
        self.questions.append(ItemQuestion(code, tuple(parts), answer, tuple(options), correct, multi_hop, kind))

    def choose(self, text: str, answer: str, kind: str, pool: Sequence[str] = (), count: int = 4) -> None:
        """Ask with `count` options in random order: the answer, and others from a pool or the kind's."""
        others = [option for option in (pool or POOLS[kind]) if option != answer]
        taken = [str(option) for option in self.random.permutation(others)[: count - 1]]
        taken.insert(int(self.random.integers(len(taken) + 1)), answer)
        self.add((text,), answer, kind, taken, taken.index(answer))

    def item(self, parts: Iterable[Part], dialogue: bool = False) -> TaskItem:
        """Return the item with the questions so far."""
        return TaskItem(self.code, self.task, self.form, tuple(parts), tuple(self.questions), dialogue)

    def item_of(self, episode: Episode, choices: bool = False) -> TaskItem:
        """Return an episode as an item whose legends slide; with options for each question if asked for."""
        for each in episode.questions:
            if choices:
                self.choose(each.text, each.answer, each.kind)
            else:
                self.add((each.text,), each.answer, each.kind)
        return self.item(map(media_of, episode.pages))
