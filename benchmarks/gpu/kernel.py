"""The device's placing kernel against the reference in torch: the same rows, and how much quicker."""

from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.cost.placing import PlaceCase, PlaceRing
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Action, Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.placers import placer_for
from emblema.kv.placing import Placer
from emblema.kv.placing_torch import TorchPlacer

STEPS = 2.0
"""Steps of the dtype by which a number may differ: both work in float32 and cast once, in other orders."""


def kernel_table(subject: CostSubject, cases: Sequence[PlaceCase], payload: int, pace: Pace) -> Table:
    """Return the largest difference of what the device's placer and torch's write, and the times of both."""
    own, reference = placer_for(subject.device), TorchPlacer()
    rows: list[tuple[Cell, ...]] = []
    worst = 0.0
    for case in cases:
        ring = PlaceRing(subject, case, payload)
        steps = _steps(ring, own, reference)
        worst = max(worst, steps)
        actions: dict[str, Action] = {"own": partial(ring.place, own), "torch": partial(ring.place, reference)}
        seconds = interleaved(actions, subject.device, pace)
        rows.append(
            (case.tokens, case.chunks, case.rank, 1e3 * seconds.median("own"), 1e3 * seconds.median("torch"),
             seconds.ratio("torch", "own"), steps)
        )  # fmt: skip
    return Table(
        "kernel",
        f"{type(own).__name__} against the reference in torch",
        "The same rows placed by both; the difference is in steps of the dtype at the number's size.",
        ("rows", "chunks", "rank", "own ms", "torch ms", "times", "steps apart"),
        tuple(rows),
        bars=(Bar(f"{type(own).__name__} against torch, steps apart", worst, STEPS, False),),
    )


def _steps(ring: PlaceRing, own: Placer, reference: Placer) -> float:
    """Return by how many steps of the dtype one set's rows differ at most."""
    found = []
    for placer in (own, reference):
        ring.rewind()
        ring.place(placer)
        table = ring.sets[0][1]
        found.append([(rows.keys.clone(), rows.values.clone()) for rows in map(table.read, range(len(table.layouts)))])
    step = torch.finfo(ring.subject.dtype).eps
    worst = 0.0
    for layers in zip(*found, strict=True):
        for one, other in zip(*layers, strict=True):
            size = other.float().abs().clamp(min=float(other.float().abs().mean()))
            worst = max(worst, float(((one.float() - other.float()).abs() / (size * step)).max()))
    return worst
