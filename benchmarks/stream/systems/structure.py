"""What questions look at: how few rows, whether these lie in clusters, and maps of it (Mosaic, figures 3a and 4)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.intervals import Interval, bootstrap
from benchmarks.plots import INK, make_panels, save_figure, style_panel
from benchmarks.stream.systems.attention import (
    FrameClusters,
    all_seen,
    attention_on_frames,
    clusters_of,
    frames_for,
    likeness,
    question_attention,
    things,
    wordings,
)
from benchmarks.stream.systems.running import SystemsOptions, feed, film_of, opened, questions
from benchmarks.table import Cell, Plot, Table
from benchmarks.tasks.streams import GeneratedStream
from emblema.engine.engine import Engine
from emblema.eval.progress import steps
from emblema.stream.stream import Stream

TOPS = (1, 2, 5, 10, 20, 50)
MOST = 0.9
SPARSITY_COLUMNS = (
    "setting", "layer", "top %", "mass", "attention on frames", "frames for 90 %, a head", "frames for 90 %, a layer",
)  # fmt: skip
SPARSITY_NOTE = (
    "Mosaic's figure 3a. Streams of every kind under full attention, asked at their ends; the row that gives the "
    "first token, head by head: the share of its attention to frames that the top rows of them hold, and how much of "
    "all its attention falls on frames. Then how many frames hold 90 % of it: of one head's (mean over heads, counted "
    "likewise), and of all heads' of a layer together, which is what a memory would have to fetch there. Means over "
    "questions and kinds, with 95 % bootstrap intervals by stream. 'setting' is the length."
)


def measure_sparsity(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure the share of attention in the top rows, and frames that hold 90 % of it, by layer and length."""
    rows = list[tuple[Cell, ...]]()
    lengths = [frames for frames in options.lengths if frames <= options.frames] or [options.frames]
    with steps(console, "sparsity", len(lengths) * len(options.kinds)) as tick:
        for frames in lengths:
            looks = list[SparseLook]()
            for kind in options.kinds:
                looks += _looks(engine, options, kind, frames)
                tick()
            rows += _sparsity_rows(looks, frames, options.seed)
    plots = (Plot("top %", "mass", "layer", doubling=True), Plot("layer", "frames for 90 %, a layer", bars=True))
    return Table("sparsity", "Attention to frames is sparse", SPARSITY_NOTE, SPARSITY_COLUMNS, tuple(rows), plots)


@dataclass(frozen=True, slots=True)
class SparseLook:
    """One question on one film: [layers, tops] share held, and [layers] each of the others."""

    film: str
    held: np.ndarray
    on: np.ndarray
    heads: np.ndarray
    layers: np.ndarray


def look_of(film: str, weights: Tensor) -> SparseLook:
    """Return the figures of attention [layers, heads, frames, rows of a frame].

    Heads count by how much of their attention falls on frames; one that gives these nothing has nothing to share out.
    """
    by_frame = weights.double().sum(3)
    mass = by_frame.sum(2)
    counts = torch.tensor([max(1, round(weights[0, 0].numel() * top / 100)) for top in TOPS])
    ordered = weights.double().flatten(2).sort(dim=2, descending=True).values.cumsum(2)
    total = mass.sum(1).clamp_min(1e-12)
    held = ordered[:, :, counts - 1].sum(1) / total[:, None]
    heads = (frames_for(by_frame, MOST) * mass).sum(1) / total
    layers = frames_for(by_frame.sum(1), MOST).double()
    return SparseLook(film, held.numpy(), mass.mean(1).numpy(), heads.numpy(), layers.numpy())


def _looks(engine: Engine, options: SystemsOptions, kind: str, frames: int) -> list[SparseLook]:
    film = film_of(kind, frames, options)
    with ExitStack() as stack:
        stream = all_seen(stack, engine, options, frames)
        feed({"full": stream}, film, 0, frames, options.settings.block)
        stream.advance()
        return [
            look_of(film.id, attention_on_frames(stream, question.text)[:, :, -1])
            for question in questions(film, frames)
        ]


def _sparsity_rows(looks: list[SparseLook], frames: int, seed: int) -> list[tuple[Cell, ...]]:
    films = [look.film for look in looks]

    def mean(values: list[float]) -> Interval:
        return bootstrap(values, films, seed=seed)

    found: list[tuple[Cell, ...]] = []
    for layer in range(len(looks[0].on)):
        about = [
            mean([part(look)[layer] for look in looks])
            for part in (attrgetter("on"), attrgetter("heads"), attrgetter("layers"))
        ]
        for place, top in enumerate(TOPS):
            held = mean([look.held[layer, place] for look in looks])
            found.append((f"{frames} frames", f"layer {layer}", top, held, *(about if place == 0 else (None,) * 3)))
    return found


TOP, DRAWS, FILMS, THINGS = 8, 32, 2, 6
VISUAL, SEMANTIC = "in one visual cluster", "in one semantic cluster"
ATTENDED, RETRIEVED = "overlap, attended most", "overlap, retrieved by Mosaic"
ATTENDED_MOST, RANDOM, ROW = "attended most", "random", "random, in a row"
SAME, OTHER = "same thing", "different things"
STRUCTURE_COLUMNS = ("setting", "layer", "set", "share", "items")
STRUCTURE_NOTE = (
    f"Mosaic's figure 4. Left: the {TOP} frames that full attention looks at most for a question in a layer (mean over "
    "heads and the question's own rows), and the largest share of them that lies in one cluster of the memory that "
    f"Mosaic made of the same frames, against as many frames drawn at random ({DRAWS} draws), alone or in a row. "
    "Right: two wordings, one thing or two: how far the frames that they look at most overlap (Jaccard), and the "
    "frames that Mosaic retrieves for them (each weighted by the layers that had it). The two wordings are the same "
    "in every pair, so what differs is the thing. Means with 95 % bootstrap intervals by stream; frames that are "
    "always seen are left out."
)


@dataclass(frozen=True, slots=True)
class StructureValue:
    """One figure of one stream."""

    setting: str
    layer: str
    set: str
    film: str
    value: float


@dataclass(frozen=True, slots=True)
class StreamPair:
    """One film, seen by full attention and by Mosaic; `frames` have left Mosaic's window."""

    film: GeneratedStream
    full: Stream
    mosaic: Stream
    clusters: FrameClusters
    frames: tuple[int, ...]

    def attended(self, text: str) -> Tensor:
        """Return [layers, frames]: attention of the question's rows."""
        return question_attention(self.full, text)[:, list(self.frames)]

    def retrieved(self, text: str) -> list[float]:
        """Return the share of layers in which each frame was handed out."""
        shares = {moment.frame: moment.share for moment in self.mosaic.ask(text, max_new_tokens=1).moments}
        return [shares.get(frame, 0.0) for frame in self.frames]


def pair_of(stack: ExitStack, engine: Engine, options: SystemsOptions, film: GeneratedStream) -> StreamPair:
    """Return both streams, fed, and Mosaic asked what it is asked here, so that clusters are as they will be."""
    full, mosaic = (
        all_seen(stack, engine, options, len(film)),
        opened(stack, engine, "mosaic", options.settings, retrieval="clusters"),
    )
    feed({"full": full, "mosaic": mosaic}, film, 0, len(film), options.settings.block)
    for question in questions(film, len(film)):
        mosaic.ask(question.text, max_new_tokens=1)
    full.advance()
    clusters = clusters_of(mosaic)
    return StreamPair(film, full, mosaic, clusters, tuple(sorted(clusters.visual)))


def measure_structure(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure whether frames looked at together lie in clusters, and questions about one thing look at the same."""
    values = list[StructureValue]()
    with steps(console, "structure", FILMS * len(options.kinds)) as tick:
        for kind in options.kinds:
            for item in range(FILMS):
                with ExitStack() as stack:
                    pair = pair_of(stack, engine, options, film_of(kind, options.looked, options, item))
                    values += _clustered(pair, np.random.default_rng([options.seed, item]))
                    values += _overlapping(pair)
                tick()
    rows, plots = _structure_rows(values, options.seed), (Plot("layer", "share", "set", bars=True),)
    return Table("structure", "What questions look at lies in clusters", STRUCTURE_NOTE, STRUCTURE_COLUMNS, rows, plots)


def _structure_rows(values: list[StructureValue], seed: int) -> tuple[tuple[Cell, ...], ...]:
    found: list[tuple[Cell, ...]] = []
    for key in dict.fromkeys((value.setting, value.layer, value.set) for value in values):
        own = [value for value in values if (value.setting, value.layer, value.set) == key]
        share = bootstrap([value.value for value in own], [value.film for value in own], seed=seed)
        found.append((*key, share, len(own)))
    order = (VISUAL, SEMANTIC, ATTENDED, RETRIEVED)
    return tuple(sorted(found, key=lambda row: order.index(str(row[0]))))


def _clustered(pair: StreamPair, random: np.random.Generator) -> list[StructureValue]:
    count = min(TOP, len(pair.frames))
    found = []
    for question in questions(pair.film, len(pair.film)):
        attended = pair.attended(question.text)
        for layer, homes in enumerate(pair.clusters.layers):
            best = [pair.frames[place] for place in attended[layer].topk(count).indices.tolist()]
            alone = [random.choice(pair.frames, count, replace=False).tolist() for _ in range(DRAWS)]
            starts = random.integers(len(pair.frames) - count + 1, size=DRAWS)
            row = [pair.frames[start : start + count] for start in starts]
            for setting, own in ((VISUAL, pair.clusters.visual), (SEMANTIC, homes)):
                for name, sets in ((ATTENDED_MOST, [best]), (RANDOM, alone), (ROW, row)):
                    share = float(np.mean([largest_share(own, frames) for frames in sets]))
                    found.append(StructureValue(setting, f"layer {layer}", name, pair.film.id, share))
    return found


def largest_share(homes: Mapping[int, int], frames: Sequence[int]) -> float:
    """Return the largest share of frames that lies in one cluster."""
    return Counter(homes[frame] for frame in frames).most_common(1)[0][1] / len(frames)


def _overlapping(pair: StreamPair) -> list[StructureValue]:
    names = things(pair.film, len(pair.film), THINGS)
    texts = [wordings(name) for name in names]
    looks = [[pair.attended(text) for text in own] for own in texts]
    taken = [[pair.retrieved(text) for text in own] for own in texts]
    count = min(TOP, len(pair.frames))
    found = []
    for first in range(len(names)):
        for other in range(len(names)):
            name = SAME if first == other else OTHER
            for layer in range(len(pair.clusters.layers)):
                best = [_chosen(looks[thing][wording][layer], count) for thing, wording in ((first, 0), (other, 1))]
                found.append(StructureValue(ATTENDED, f"layer {layer}", name, pair.film.id, likeness(*best)))
            found.append(
                StructureValue(RETRIEVED, "all", name, pair.film.id, likeness(taken[first][0], taken[other][1]))
            )
    return found


def _chosen(weights: Tensor, count: int) -> Tensor:
    """Return 1 for the largest, 0 for the others."""
    return weights.new_zeros(len(weights)).scatter_(0, weights.topk(count).indices, 1.0)


MAPPED, CLUSTERS = 5, 10
CLUSTER, WITH, REST = "cluster", "with", "other clusters"
QUESTIONS_NOTE = (
    "Mosaic's figure 4 as maps, of one stream. A row is a question; two after one another ask about one thing in "
    "other words. Left: the share of full attention to frames (mean over layers, heads and the question's own rows) "
    "that falls on the frames of each visual cluster, with its size; the clusters that are looked at most, in the "
    "order of time. Right: overlap of what Mosaic retrieves for this question and for each of them, frames weighted "
    "by the layers that had them."
)


def measure_questions(engine: Engine, options: SystemsOptions, console: Console) -> Table:
    """Measure, a question a row, attention by visual cluster, and overlap with every other question."""
    film = film_of(options.kinds[0], options.looked, options)
    texts = [text for thing in things(film, len(film), MAPPED) for text in wordings(thing)]
    with ExitStack() as stack, steps(console, "questions", 1) as tick:
        pair = pair_of(stack, engine, options, film)
        names, shares = _cluster_shares(pair, texts)
        taken = [pair.retrieved(text) for text in texts]
        tick()
    overlap = [[likeness(own, other) for other in taken] for own in taken]
    columns = ("question", *names, *(f"{WITH} {number + 1}" for number in range(len(texts))))
    rows: list[tuple[Cell, ...]] = [
        (f"{number + 1}: {text}", *(float(share) for share in shares[number]), *overlap[number])
        for number, text in enumerate(texts)
    ]
    return Table("questions", "What questions look at, one by one", QUESTIONS_NOTE, columns, tuple(rows))


def _cluster_shares(pair: StreamPair, texts: list[str]) -> tuple[list[str], np.ndarray]:
    """Return names of clusters, and [questions, clusters] share of attention."""
    weights = np.stack([pair.attended(text).mean(0).double().numpy() for text in texts])
    weights /= weights.sum(1, keepdims=True)
    homes = np.asarray([pair.clusters.visual[frame] for frame in pair.frames])
    own = {int(home): weights[:, homes == home].sum(1) for home in np.unique(homes)}
    shown = sorted(own, key=lambda home: -own[home].sum())[:CLUSTERS]
    shown.sort(key=lambda home: float(np.mean(np.flatnonzero(homes == home))))
    names = [f"{CLUSTER} {place + 1} ({int((homes == home).sum())})" for place, home in enumerate(shown)]
    columns = [own[home] for home in shown]
    if len(own) > len(shown):
        names.append(REST)
        columns.append(1 - np.sum(columns, axis=0))
    return names, np.stack(columns, axis=1)


def draw_questions(table: Table, folder: Path) -> list[Path]:
    """Write both maps as one PNG; return its path."""
    groups = [[name for name in table.columns if name.startswith(CLUSTER)]]
    groups.append([name for name in table.columns if name.startswith(WITH)])
    titles = ("Attention by visual cluster (frames)", "Overlap of what is retrieved")
    figure, axes = make_panels(2, table.title, width=6.4, height=0.34 * len(table.rows) + 2.2)
    for panel, names, title in zip(axes, groups, titles, strict=True):
        style_panel(panel, title, "", "", grid="")
        _map(figure, panel, table, names)
    axes[0].set_yticks(range(len(table.rows)), [str(row[0]) for row in table.rows])
    axes[1].set_yticks(range(len(table.rows)), [str(number + 1) for number in range(len(table.rows))])
    return [save_figure(figure, folder, f"{table.name}-map")]


def _map(figure: Any, axes: Any, table: Table, names: list[str]) -> None:
    values = np.asarray([[float(row[name]) for name in names] for row in table.records])  # type: ignore[arg-type]
    drawn = axes.imshow(values, cmap="GnBu", vmin=min(values.min(), 0.999), vmax=values.max(), aspect="auto")
    labels = [name.removeprefix(f"{CLUSTER} ").removeprefix(f"{WITH} ") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=45, ha="right", color=INK)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8, length=0)
