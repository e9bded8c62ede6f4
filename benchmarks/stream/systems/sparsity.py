"""How much of a question's attention few rows hold (Mosaic, figure 3a)."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.intervals import Interval, bootstrap
from benchmarks.stream.systems.looking import all_seen, attention_on_frames, frames_for
from benchmarks.stream.systems.running import feed, film_of, questions
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.table import Cell, Plot, Table
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

TOPS = (1, 2, 5, 10, 20, 50)
MOST = 0.9
COLUMNS = (
    "setting",
    "layer",
    "top %",
    "mass",
    "attention on frames",
    "frames for 90 %, a head",
    "frames for 90 %, a layer",
)
NOTE = (
    "Mosaic's figure 3a. Streams of every kind under full attention, asked at their ends; the row that gives the "
    "first token, head by head: the share of its attention to frames that the top rows of them hold, and how much of "
    "all its attention falls on frames. Then how many frames hold 90 % of it: of one head's (mean over heads, counted "
    "likewise), and of all heads' of a layer together, which is what a memory would have to fetch there. Means over "
    "questions and kinds, with 95 % bootstrap intervals by stream. 'setting' is the length."
)


def measure_sparsity(engine: Engine, wanted: SystemsWanted, console: Console) -> Table:
    """Share of attention in the top rows, and frames that hold 90 % of it, by layer and length."""
    began, rows = time.perf_counter(), list[tuple[Cell, ...]]()
    lengths = [frames for frames in wanted.lengths if frames <= wanted.frames] or [wanted.frames]
    with steps(console, "sparsity", len(lengths) * len(wanted.kinds)) as tick:
        for frames in lengths:
            looks = list[Look]()
            for kind in wanted.kinds:
                looks += _looks(engine, wanted, kind, frames)
                tick()
            rows += _rows(looks, frames, wanted.seed)
    plots = (Plot("top %", "mass", "layer", doubling=True), Plot("layer", "frames for 90 %, a layer", bars=True))
    spent = time.perf_counter() - began
    return Table("sparsity", "Attention to frames is sparse", NOTE, COLUMNS, tuple(rows), plots, seconds=spent)


@dataclass(frozen=True, slots=True)
class Look:
    """One question on one film: [layers, tops] share held, and [layers] each of the others."""

    film: str
    held: np.ndarray
    on: np.ndarray
    heads: np.ndarray
    layers: np.ndarray


def look_of(film: str, weights: Tensor) -> Look:
    """From attention [layers, heads, frames, rows of a frame].

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
    return Look(film, held.numpy(), mass.mean(1).numpy(), heads.numpy(), layers.numpy())


def _looks(engine: Engine, wanted: SystemsWanted, kind: str, frames: int) -> list[Look]:
    film = film_of(kind, frames, wanted)
    with ExitStack() as stack:
        stream = all_seen(stack, engine, wanted, frames)
        feed({"full": stream}, film, 0, frames, wanted.settings.block, lambda: None)
        stream.advance()
        asked = questions(film, frames)
        return [look_of(film.id, attention_on_frames(stream, one.text)[:, :, -1]) for one in asked]


def _rows(looks: list[Look], frames: int, seed: int) -> list[tuple[Cell, ...]]:
    films = [one.film for one in looks]

    def mean(values: list[float]) -> Interval:
        return bootstrap(values, films, seed=seed)

    found: list[tuple[Cell, ...]] = []
    for layer in range(len(looks[0].on)):
        about = [
            mean([part(one)[layer] for one in looks])
            for part in (attrgetter("on"), attrgetter("heads"), attrgetter("layers"))
        ]
        for place, top in enumerate(TOPS):
            held = mean([one.held[layer, place] for one in looks])
            found.append((f"{frames} frames", f"layer {layer}", top, held, *(about if place == 0 else (None,) * 3)))
    return found
