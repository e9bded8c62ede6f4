"""Episodes from a seed: random pages, questions whose answers are worked out from the pages, and their files."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import (
    BLANK,
    COLOUR_NAMES,
    KINDS,
    LANDS,
    NUMBERS,
    Episode,
    Legend,
    Map,
    Page,
    Question,
    SceneClip,
)
from emblema.errors import PromptError

TEMPLATES: dict[str, tuple[str, ...]] = {
    "colour": (
        "what colour is under the {} ?",
        "which colour lies under the {} ?",
        "on which colour does the {} stand ?",
    ),
    "land": ("on which land does the {} stand ?", "what land is under the {} ?", "in which land is the {} ?"),
    "legend": ("what land is {} ?", "which land does {} mean ?", "what does {} stand for ?"),
    "count": ("how many icons stand in the {} ?", "how many icons are in a {} ?"),
    "which": ("which icon stands in the {} ?", "what stands in the {} ?"),
}


def facts(episode: Episode) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """Return kind -> subject -> (answer, indices of the pages needed), for every question that has one clear answer.

    A map's icon has a land only if a legend before the map lists its colour; count and which look at all maps
    together and are left out when some icon has no land. A colour that legends give different lands is not asked for
    by itself.
    """
    known: dict[int, tuple[int, int]] = {}
    colours: dict[str, tuple[str, tuple[int, ...]]] = {}
    lands: dict[str, tuple[str, tuple[int, ...]]] = {}
    legend: dict[str, tuple[str, tuple[int, ...]]] = {}
    pages: list[int] = []
    disputed: set[str] = set()
    for index, scene in episode.scenes():
        pages.append(index)
        if isinstance(scene, Legend):
            for colour, land in scene.lands.items():
                if known.setdefault(colour, (land, index))[0] == land:
                    legend.setdefault(COLOUR_NAMES[colour], (LANDS[land], (index,)))
                else:
                    disputed.add(COLOUR_NAMES[colour])
                known[colour] = (land, index)
            continue
        for icon, colour in scene.icon_colours().items():
            colours[ICON_NAMES[icon]] = (COLOUR_NAMES[colour], (index,))
            if colour in known:
                land, source = known[colour]
                lands[ICON_NAMES[icon]] = (LANDS[land], tuple(dict.fromkeys((source, index))))
    legend = {colour: fact for colour, fact in legend.items() if colour not in disputed}
    counts: dict[str, tuple[str, tuple[int, ...]]] = {}
    which: dict[str, tuple[str, tuple[int, ...]]] = {}
    if colours and len(colours) == len(lands):
        everything = tuple(dict.fromkeys(pages))
        for land_name in LANDS:
            inside = [icon for icon, (answer, _) in lands.items() if answer == land_name]
            if len(inside) < len(NUMBERS):
                counts[land_name] = (NUMBERS[len(inside)], everything)
            if len(inside) == 1:
                which[land_name] = (inside[0], everything)
    return {"colour": colours, "land": lands, "legend": legend, "count": counts, "which": which}


def ask(random: np.random.Generator, episode: Episode, limits: dict[str, int]) -> tuple[Question, ...]:
    """Return up to limits[kind] questions of each kind about random subjects; counts of zero are kept rare."""
    questions: list[Question] = []
    answers = facts(episode)
    for kind in KINDS:
        subjects = list(answers[kind])
        subjects = [subjects[position] for position in random.permutation(len(subjects))]
        if kind == "count":
            subjects.sort(key=lambda subject: answers["count"][subject][0] == "zero" and random.random() < 0.7)
        for subject in subjects[: limits.get(kind, 0)]:
            answer, pages = answers[kind][subject]
            text = TEMPLATES[kind][int(random.integers(len(TEMPLATES[kind])))].format(subject)
            questions.append(Question(kind, text, answer, pages))
    return tuple(questions)


@dataclass(frozen=True)
class Plan:
    """Shape of an episode: order of pages ("L" legend, "M" map), cells along a side, icons of each map in turn.

    colours: how many colours all legends list together. open_maps: share of maps that also use colours no legend
    before them lists. limits: the most questions of each kind. changed: legends after all other pages that give
    colours a new meaning; what stands on earlier maps keeps the meaning that its colour had by then.
    """

    order: str
    side: int
    icons: tuple[int, ...]
    colours: int
    limits: tuple[tuple[str, int], ...] = (("colour", 4), ("land", 4), ("legend", 2), ("count", 2), ("which", 2))
    open_maps: float = 0.0
    clip: bool = False
    changed: int = 0


def legend_page(random: np.random.Generator, side: int, lands: dict[int, int]) -> Legend:
    """Return a legend of the given colours, each on random cells, an eighth to a half of all cells together."""
    cells = side * side
    listed = list(lands)
    total = int(random.integers(max(len(listed), cells // 8), max(len(listed), cells // 2) + 1))
    repeated = listed + list(random.choice(listed, total - len(listed)))
    colours = np.full(cells, BLANK, dtype=np.int64)
    colours[random.permutation(cells)[:total]] = repeated
    return Legend(colours.reshape(side, side), lands)


def map_page(random: np.random.Generator, side: int, colours: list[int], icons: list[int]) -> Map:
    """Return a map over the given colours with the given icons on random cells."""
    ground = random.choice(colours, (side, side))
    placed = np.full(side * side, BLANK, dtype=np.int64)
    placed[random.permutation(side * side)[: len(icons)]] = icons
    return Map(ground.astype(np.int64), placed.reshape(side, side))


def make_episode(random: np.random.Generator, plan: Plan, seed: int = 0, task: str = "maps", item: int = 0) -> Episode:
    """Return one episode of a plan: disjoint colours on legends, disjoint icons on maps, random lands."""
    legends = plan.order.count("L")
    listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[: plan.colours]]
    lands = {colour: int(random.integers(LAND_COUNT)) for colour in listed}
    shares = [listed[index::legends] for index in range(legends)]
    icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
    known: list[int] = []
    pages: list[Legend | Map] = []
    maps = 0
    for letter in plan.order:
        if letter == "L":
            share = shares.pop()
            pages.append(legend_page(random, plan.side, {colour: lands[colour] for colour in share}))
            known += share
            continue
        everything = not known or random.random() < plan.open_maps
        chosen, icons = icons[: plan.icons[maps]], icons[plan.icons[maps] :]
        pages.append(map_page(random, plan.side, list(range(COLOUR_COUNT)) if everything else known, chosen))
        maps += 1
    for _ in range(plan.changed):
        share = [int(colour) for colour in random.permutation(listed)[: max(1, plan.colours // 2)]]
        pages.append(legend_page(random, plan.side, {colour: int(random.integers(LAND_COUNT)) for colour in share}))
    shown: tuple[Legend | Map | SceneClip, ...] = (SceneClip(tuple(pages)),) if plan.clip else tuple(pages)
    episode = Episode(seed, shown, (), task, item, lands)
    return Episode(seed, shown, ask(random, episode, dict(plan.limits)), task, item, lands)


def maps_plan(random: np.random.Generator) -> Plan:
    """Return one or two legends, then a map of 8 x 8 cells with six to ten icons."""
    legends = int(random.integers(1, 3))
    return Plan("L" * legends + "M", 8, (int(random.integers(6, 11)),), int(random.integers(4, 9)))


def atlas_plan(random: np.random.Generator) -> Plan:
    """Return two or three legends among eight to sixteen maps of 8 x 8 cells; the first page is a legend."""
    legends, maps = int(random.integers(2, 4)), int(random.integers(8, 17))
    rest = list("L" * (legends - 1) + "M" * maps)
    counts = np.ones(maps, dtype=np.int64) + random.multinomial(len(ICON_NAMES) - maps, np.full(maps, 1 / maps))
    return Plan(
        "L" + "".join(random.permutation(rest)), 8, tuple(int(count) for count in counts), int(random.integers(6, 10))
    )


def clip_plan(random: np.random.Generator) -> Plan:
    """Return a clip of one or two legend scenes, then two to five map scenes of three or four icons."""
    legends, maps = int(random.integers(1, 3)), int(random.integers(2, 6))
    icons = tuple(int(count) for count in random.integers(3, 5, maps))
    return Plan("L" * legends + "M" * maps, 8, icons, int(random.integers(4, 9)), clip=True)


EPISODE_PLANS: dict[str, Callable[[np.random.Generator], Plan]] = {
    "maps": maps_plan,
    "atlas": atlas_plan,
    "clip": clip_plan,
}


def generate(task: str, seed: int, items: int) -> Iterator[Episode]:
    """Yield `items` fresh episodes of a task; the same seed gives the same episodes."""
    if task not in EPISODE_PLANS:
        raise PromptError(f"unknown task {task!r}: choose one of {', '.join(EPISODE_PLANS)}")
    for item in range(items):
        random = np.random.default_rng([seed, zlib.crc32(task.encode()), item])
        yield make_episode(random, EPISODE_PLANS[task](random), seed, task, item)


CLIP_RATE = 2


def write_clip(clip: SceneClip, path: Path) -> None:
    """Write a clip as an mp4 of CLIP_RATE frames a second; read at one frame a second it gives two frames a scene."""
    options = {"crf": "20", "g": str(clip.seconds * CLIP_RATE)}
    frames = clip.frames(CLIP_RATE)
    write_frames(frames, frames[0].size, path, CLIP_RATE, "yuv420p", options)


def write_frames(
    frames: Iterable[Image.Image],
    size: tuple[int, int],
    path: Path,
    rate: int | Fraction,
    pixels: str,
    options: dict[str, str],
) -> None:
    """Write frames as an H.264 mp4, encoded one by one; on one machine the same frames give the same bytes.

    Args:
        size: width and height of every frame.
        rate: frames a second.
        pixels: ffmpeg's name of the pixels' format; `options`: of its encoder.
    """
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        (stream.width, stream.height), stream.pix_fmt = size, pixels
        # Several threads encode the same frames into other bytes from run to run. So does x264's macroblock tree:
        # its AVX-512 code reads memory that nothing has written.
        stream.thread_count, stream.options = 1, {**options, "mbtree": "0"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(frame), format="rgb24")))
        container.mux(stream.encode())


def write_page(page: Page, path: Path) -> Path:
    """Write a page beside `path` with the suffix its kind has; returns the file."""
    if isinstance(page, SceneClip):
        written = path.with_suffix(".mp4")
        write_clip(page, written)
    else:
        written = path.with_suffix(".png")
        page.image().save(written, optimize=True)
    return written
