"""Whether what questions look at lies in clusters (Mosaic, figure 4)."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from torch import Tensor

from benchmarks.intervals import bootstrap
from benchmarks.stream.systems.inside import Homes, homes_of
from benchmarks.stream.systems.looking import all_seen, likeness, looks_of, things, wordings
from benchmarks.stream.systems.running import feed, film_of, opened, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Cell, Plot, Table
from benchmarks.tasks.streams import GeneratedStream
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream

TOP, DRAWS, FILMS, THINGS = 8, 32, 2, 6
VISUAL, SEMANTIC = "in one visual cluster", "in one semantic cluster"
ATTENDED, RETRIEVED = "overlap, attended most", "overlap, retrieved by Mosaic"
MOST, RANDOM, ROW = "attended most", "random", "random, in a row"
SAME, OTHER = "same thing", "different things"
COLUMNS = ("setting", "layer", "set", "share", "items")
NOTE = (
    f"Mosaic's figure 4. Left: the {TOP} frames that full attention looks at most for a question in a layer (mean over "
    "heads and the question's own rows), and the largest share of them that lies in one cluster of the memory that "
    f"Mosaic made of the same frames, against as many frames drawn at random ({DRAWS} draws), alone or in a row. "
    "Right: two wordings, one thing or two: how far the frames that they look at most overlap (Jaccard), and the "
    "frames that Mosaic retrieves for them (each weighted by the layers that had it). The two wordings are the same "
    "in every pair, so what differs is the thing. Means with 95 % bootstrap intervals by stream; frames that are "
    "always seen are left out."
)


@dataclass(frozen=True, slots=True)
class Value:
    """One figure of one stream."""

    setting: str
    layer: str
    set: str
    film: str
    value: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One film, seen by full attention and by Mosaic; `frames` have left Mosaic's window."""

    film: GeneratedStream
    full: Stream
    mosaic: Stream
    homes: Homes
    frames: tuple[int, ...]

    def attended(self, text: str) -> Tensor:
        """[layers, frames] attention of the question's rows."""
        return looks_of(self.full, text)[:, list(self.frames)]

    def retrieved(self, text: str) -> list[float]:
        """Share of layers in which each frame was handed out."""
        shares = {moment.frame: moment.share for moment in self.mosaic.ask(text, max_new_tokens=1).moments}
        return [shares.get(frame, 0.0) for frame in self.frames]


def pair_of(stack: ExitStack, engine: Engine, wanted: SystemsWanted, film: GeneratedStream) -> Pair:
    """Both streams, fed, and Mosaic asked what it is asked here, so that clusters are as they will be."""
    full, mosaic = all_seen(stack, engine, wanted, len(film)), opened(stack, engine, "mosaic", wanted.settings)
    feed({"full": full, "mosaic": mosaic}, film, 0, len(film), wanted.settings.block, lambda: None)
    for one in questions(film, len(film)):
        mosaic.ask(one.text, max_new_tokens=1)
    full.advance()
    homes = homes_of(mosaic)
    return Pair(film, full, mosaic, homes, tuple(sorted(homes.visual)))


def measure_structure(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Frames that are looked at together lie in clusters, and questions about one thing look at the same frames."""
    began, values = time.perf_counter(), list[Value]()
    with steps(console, "structure", FILMS * len(wanted.kinds)) as tick:
        for kind in wanted.kinds:
            for item in range(FILMS):
                film = film_of(kind, wanted.looked, wanted, item)
                with ExitStack() as stack:
                    pair = pair_of(stack, engine, wanted, film)
                    values += _clustered(pair, np.random.default_rng([wanted.seed, item]))
                    values += _overlapping(pair)
                tick()
    plots = (Plot("layer", "share", "set", bars=True),)
    rows, spent = _rows(values, wanted.seed), time.perf_counter() - began
    return Table("structure", "What questions look at lies in clusters", NOTE, COLUMNS, rows, plots, seconds=spent)


def _rows(values: list[Value], seed: int) -> tuple[tuple[Cell, ...], ...]:
    found: list[tuple[Cell, ...]] = []
    for key in dict.fromkeys((one.setting, one.layer, one.set) for one in values):
        own = [one for one in values if (one.setting, one.layer, one.set) == key]
        share = bootstrap([one.value for one in own], [one.film for one in own], seed=seed)
        found.append((*key, share, len(own)))
    order = (VISUAL, SEMANTIC, ATTENDED, RETRIEVED)
    return tuple(sorted(found, key=lambda row: order.index(str(row[0]))))


def _clustered(pair: Pair, random: np.random.Generator) -> list[Value]:
    count = min(TOP, len(pair.frames))
    found = []
    for one in questions(pair.film, len(pair.film)):
        attended = pair.attended(one.text)
        for layer, homes in enumerate(pair.homes.layers):
            best = [pair.frames[place] for place in attended[layer].topk(count).indices.tolist()]
            alone = [random.choice(pair.frames, count, replace=False).tolist() for _ in range(DRAWS)]
            starts = random.integers(len(pair.frames) - count + 1, size=DRAWS)
            row = [pair.frames[start : start + count] for start in starts]
            for setting, own in ((VISUAL, pair.homes.visual), (SEMANTIC, homes)):
                for name, sets in ((MOST, [best]), (RANDOM, alone), (ROW, row)):
                    share = float(np.mean([largest_share(own, frames) for frames in sets]))
                    found.append(Value(setting, f"layer {layer}", name, pair.film.id, share))
    return found


def largest_share(homes: Mapping[int, int], frames: Sequence[int]) -> float:
    """Largest share of frames that lies in one cluster."""
    return Counter(homes[frame] for frame in frames).most_common(1)[0][1] / len(frames)


def _overlapping(pair: Pair) -> list[Value]:
    names = things(pair.film, len(pair.film), THINGS)
    texts = [wordings(name) for name in names]
    looks = [[pair.attended(text) for text in own] for own in texts]
    taken = [[pair.retrieved(text) for text in own] for own in texts]
    count = min(TOP, len(pair.frames))
    found = []
    for one in range(len(names)):
        for other in range(len(names)):
            name = SAME if one == other else OTHER
            for layer in range(len(pair.homes.layers)):
                best = [_chosen(looks[thing][wording][layer], count) for thing, wording in ((one, 0), (other, 1))]
                found.append(Value(ATTENDED, f"layer {layer}", name, pair.film.id, likeness(*best)))
            found.append(Value(RETRIEVED, "all", name, pair.film.id, likeness(taken[one][0], taken[other][1])))
    return found


def _chosen(weights: Tensor, count: int) -> Tensor:
    """1 for the largest, 0 for the others."""
    return weights.new_zeros(len(weights)).scatter_(0, weights.topk(count).indices, 1.0)
