"""The device's placing kernel against the reference in torch: the same rows, and how much quicker."""

from functools import partial

import torch

from benchmarks.cost.placing import PlaceCase, PlaceRing
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace, interleaved
from benchmarks.table import Bar, Cell, Table
from emblema.kv.placers import placer_for
from emblema.kv.placing import Placer
from emblema.kv.placing_torch import TorchPlacer

STEPS = 2.0
"""Steps of the dtype by which a number may differ: both work in float32 and cast once, in other orders."""


def kernel_table(subject: CostSubject, tokens: int, payload: int, pace: Pace) -> Table:
    """Return the largest difference of what the device's placer and torch's write, and the times of both."""
    own, reference = placer_for(subject.device), TorchPlacer()
    rows: list[tuple[Cell, ...]] = []
    worst = 0.0
    for case in (PlaceCase(tokens, chunks, rank) for chunks in (1, 3) for rank in (0, 32)):
        steps = _steps(PlaceRing(subject, case, 1), own, reference)
        worst = max(worst, steps)
        ring = PlaceRing(subject, case, payload)
        actions = {"own": partial(ring.place, own), "torch": partial(ring.place, reference)}
        seconds = interleaved(actions, subject.device, pace)
        times = seconds.ratio("torch", "own")
        rows.append((case.tokens, case.chunks, case.rank, 1e3 * seconds.median("own"), times, steps))
    return Table(
        "kernel",
        f"{type(own).__name__} against the reference in torch",
        "The same rows placed by both; the difference is in steps of the dtype at the number's size.",
        ("rows", "chunks", "rank", "own ms", "times", "steps apart"),
        tuple(rows),
        bars=(Bar(f"{type(own).__name__} against torch, steps apart", worst, STEPS, False),),
    )


def _steps(ring: PlaceRing, own: Placer, reference: Placer) -> float:
    """Return by how many steps of the dtype the rows of a ring of one set differ at most."""
    found: list[list[torch.Tensor]] = []
    table = ring.sets[0][1]
    for placer in (own, reference):
        ring.place(placer)
        layers = map(table.read, range(len(table.layouts)))
        found.append([held.float().clone() for rows in layers for held in (rows.keys, rows.values)])
    step = torch.finfo(ring.subject.dtype).eps
    sizes = (other.abs().clamp(min=float(other.abs().mean())) for other in found[1])
    return max(
        float(((one - other).abs() / (size * step)).max()) for one, other, size in zip(*found, sizes, strict=True)
    )
