"""Time to first token with KV on disk, in memory, and not at all; and how much of a load is hidden by computing.

What is timed runs from the chunks' ids to the logits of the answer. Before everything that is called cold the files are
out of the page cache, and another prompt has pushed the chunks out of memory.
"""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cost.subject import BEFORE, QUESTION, CostSubject
from benchmarks.cost.tiered import TieredPrompt
from benchmarks.cost.timing import Action, Pace, interleaved
from emblema.errors import StoreError

RECOMPUTE, MEMORY, DISK, LOAD = "recompute", "memory", "disk, cold", "load alone, cold"
LANES = (RECOMPUTE, MEMORY, DISK, LOAD)
STRATEGY = "blind"


@dataclass(frozen=True, slots=True)
class Overlap:
    """One way to a first token on one model: the median of rounds, and over that with the KV in memory.

    `hidden` is the share of a load from disk that the linked prefill did not wait for, with quartiles; below 0 more was
    lost than the load takes by itself.
    """

    model: str
    parameters: int
    rows: int
    bytes: int
    rounds: int
    kv: str
    ms: float
    ratio: float
    hidden: float | None
    low: float | None
    high: float | None


def measure(folder: Path, subject: CostSubject, chunks: int, tokens: int, rounds: int) -> list[Overlap]:
    """Link a prompt of `chunks` chunks of so many tokens and a question, in every way, in turns."""
    rows = BEFORE + chunks * tokens + QUESTION
    with ExitStack() as stack:
        disk = TieredPrompt(subject, folder / subject.name, rows, chunks, STRATEGY, False, stack)
        disk.push(cold=True)
        first, second = (disk.engine.prefill(disk.first.parts, STRATEGY, template=False).logits for _ in range(2))
        if gap := float((first - second).abs().max()):
            raise StoreError(f"logits differ by {gap:g} between KV from disk and from memory")
        held = stack.enter_context(subject.prompt(rows, chunks))
        actions: dict[str, Action] = {
            RECOMPUTE: partial(subject.link, held, "full"),
            MEMORY: partial(subject.link, held, STRATEGY),
            DISK: partial(disk.link, True),
            LOAD: partial(disk.load, True),
        }
        seconds = interleaved(actions, subject.device, Pace(rounds, math.inf))
        size = sum(path.stat().st_size for path in disk.files) // 2
    about = (subject.name, sum(weights.numel() for weights in subject.model.parameters()), rows, size, rounds)
    taken = {lane: np.array(seconds.rounds[lane]) for lane in LANES}
    hidden = 1 - (taken[DISK] - taken[MEMORY]) / taken[LOAD]
    low, middle, high = map(float, np.quantile(hidden, (0.25, 0.5, 0.75)))
    return [
        Overlap(*about, lane, 1e3 * seconds.median(lane), seconds.median(lane) / seconds.median(MEMORY),
                *((middle, low, high) if lane == DISK else (None, None, None)))
        for lane in LANES
    ]  # fmt: skip
