"""Episodes from a seed: plans say how many pages of what kind, and make_episode fills them at random."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.questions import ask
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, Clip, Episode, Legend, Map
from emblema.errors import PromptError


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
    """A legend of the given colours, each on one or several random cells, an eighth to a half of all cells together."""
    cells = side * side
    listed = list(lands)
    total = int(random.integers(max(len(listed), cells // 8), max(len(listed), cells // 2) + 1))
    repeated = listed + list(random.choice(listed, total - len(listed)))
    colours = np.full(cells, BLANK, dtype=np.int64)
    colours[random.permutation(cells)[:total]] = repeated
    return Legend(colours.reshape(side, side), lands)


def map_page(random: np.random.Generator, side: int, colours: list[int], icons: list[int]) -> Map:
    """A map over the given colours with the given icons on random cells."""
    ground = random.choice(colours, (side, side))
    placed = np.full(side * side, BLANK, dtype=np.int64)
    placed[random.permutation(side * side)[: len(icons)]] = icons
    return Map(ground.astype(np.int64), placed.reshape(side, side))


def make_episode(random: np.random.Generator, plan: Plan, seed: int = 0, task: str = "maps", item: int = 0) -> Episode:
    """One episode of a plan: legends list disjoint colours, maps hold disjoint icons, lands are drawn anew."""
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
    shown: tuple[Legend | Map | Clip, ...] = (Clip(tuple(pages)),) if plan.clip else tuple(pages)
    episode = Episode(seed, shown, (), task, item, lands)
    return Episode(seed, shown, ask(random, episode, dict(plan.limits)), task, item, lands)


def maps_plan(random: np.random.Generator) -> Plan:
    """One or two legends, then a map of 8 x 8 cells with six to ten icons."""
    legends = int(random.integers(1, 3))
    return Plan("L" * legends + "M", 8, (int(random.integers(6, 11)),), int(random.integers(4, 9)))


def atlas_plan(random: np.random.Generator) -> Plan:
    """Two or three legends among eight to sixteen maps of 8 x 8 cells; the first page is a legend."""
    legends, maps = int(random.integers(2, 4)), int(random.integers(8, 17))
    rest = list("L" * (legends - 1) + "M" * maps)
    counts = np.ones(maps, dtype=np.int64) + random.multinomial(len(ICON_NAMES) - maps, np.full(maps, 1 / maps))
    return Plan(
        "L" + "".join(random.permutation(rest)), 8, tuple(int(count) for count in counts), int(random.integers(6, 10))
    )


def clip_plan(random: np.random.Generator) -> Plan:
    """A clip of one or two legend scenes, then two to five map scenes of three or four icons."""
    legends, maps = int(random.integers(1, 3)), int(random.integers(2, 6))
    icons = tuple(int(count) for count in random.integers(3, 5, maps))
    return Plan("L" * legends + "M" * maps, 8, icons, int(random.integers(4, 9)), clip=True)


TASKS: dict[str, Callable[[np.random.Generator], Plan]] = {"maps": maps_plan, "atlas": atlas_plan, "clip": clip_plan}


def generate(task: str, seed: int, items: int) -> Iterator[Episode]:
    """`items` fresh episodes of a task; the same seed gives the same episodes."""
    if task not in TASKS:
        raise PromptError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}")
    for item in range(items):
        random = np.random.default_rng([seed, zlib.crc32(task.encode()), item])
        yield make_episode(random, TASKS[task](random), seed, task, item)
