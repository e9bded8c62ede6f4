"""What the generated tasks share: a stream of random numbers for an item, pictures and clips as media, options."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.tasks.episodes import TEMPLATES, write_clip
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS, Episode, Legend, Map, Page, SceneClip

POOLS = {"colour": COLOUR_NAMES, "land": LANDS, "legend": LANDS, "count": NUMBERS[:7], "which": ICON_NAMES}
SINGLE_HOP = ("colour", "legend")


def stream(task: str, seed: int, item: int) -> np.random.Generator:
    """Return the random numbers of one item: the same for the same task, seed and item."""
    return np.random.default_rng([seed, zlib.crc32(task.encode()), item])


def name(task: str, seed: int, item: int) -> str:
    """Return an item's id."""
    return f"{task}-{seed}-{item:04d}"


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


def choice(
    random: np.random.Generator,
    code: str,
    text: str,
    answer: str,
    kind: str,
    multi_hop: bool,
    pool: Sequence[str] = (),
    count: int = 4,
) -> ItemQuestion:
    """Return a question with `count` options in random order: the answer, and others from a pool or the kind's."""
    others = [option for option in (pool or POOLS[kind]) if option != answer]
    taken = [str(option) for option in random.permutation(others)[: count - 1]]
    taken.insert(int(random.integers(len(taken) + 1)), answer)
    return ItemQuestion(code, (text,), answer, tuple(taken), taken.index(answer), multi_hop, kind)


def phrase(random: np.random.Generator, kind: str, subject: str) -> str:
    """Return a question of a kind that the bundled models were trained on, in one of its wordings."""
    wordings = TEMPLATES[kind]
    return wordings[int(random.integers(len(wordings)))].format(subject)


def from_episode(random: np.random.Generator, episode: Episode, code: str, form: str, count: int = 0) -> TaskItem:
    """Return an episode as an item whose legends slide; with `count` options for each question if given."""
    questions = []
    for place, each in enumerate(episode.questions):
        multi = each.kind not in SINGLE_HOP
        if count:
            made = choice(random, f"{code}-{place}", each.text, each.answer, each.kind, multi, count=count)
        else:
            made = ItemQuestion(f"{code}-{place}", (each.text,), each.answer, multi_hop=multi, kind=each.kind)
        questions.append(made)
    return TaskItem(code, episode.task, form, tuple(media_of(page) for page in episode.pages), tuple(questions))


SENTENCES: tuple[str, ...] = (
    "in the morning the road must lead along the river .",
    "the people of the village wait for the rain .",
    "a good book is a friend on a long journey .",
    "my brother told me a story about the sea .",
    "it was cold and the road was empty .",
    "they walk through the old town until evening .",
    "the old man said nothing and went home .",
    "we had bread and water for dinner .",
    "she may see the ocean again next summer .",
    "the train will leave the station at night .",
    "someone knew why the door was open .",
    "there is a small shop at the corner of the street .",
    "the wind was strong and the sky was dark .",
    "he found a letter in the kitchen and read it .",
    "some children play in the garden after school .",
    "the weather will change before the week is over .",
    "two friends talk about music and science .",
    "every story has a first page and a last page .",
    "the farm lies between the hill and the coast .",
    "in winter the day is short and the night is long .",
    "a man from the north came to the market .",
    "the guide told us to keep to the path .",
    "it is hard to find your way without light .",
    "the report was long but never clear .",
)
