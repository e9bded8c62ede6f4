"""Drift: a stored patch behind antecedents that were changed, and what a cheap signal says of it."""

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.table import Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SUBJECT, Bed, Logits, added
from benchmarks.window.probe import COLUMNS, READING, cells, measured, note, quarter
from emblema.engine.engine import Engine
from emblema.eval.metrics import MEASURABLE, Interval, divergence
from emblema.kv.patch import form_patch

EVERY = 5
"""One item in so many is measured."""
BEFORE = ("legend0", "map0", "legend1", "map1")
CHANGES: dict[str, tuple[str, ...]] = {
    "none": BEFORE,
    "reordered": ("map1", "legend1", "map0", "legend0"),
    "a map dropped": ("legend0", "legend1", "map1"),
    "a map duplicated": ("legend0", "map0", "map0", "legend1", "map1"),
    "a legend dropped": ("map0", "legend1", "map1"),
    "a legend duplicated": ("legend0", "map0", "legend1", "map1", "legend0"),
    "a map replaced": ("legend0", "map2", "legend1", "map1"),
    "a legend replaced": ("other0", "map0", "legend1", "map1"),
    "all replaced": ("other0", "map2", "other1", "map3"),
}
STORED, EXACT = "stored patch", "exact patch"
SAFE = 0.5
"""Share of an item's gap that a stored patch has to close for its reuse to count as right."""


class Divergence:
    """See `measure`."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._log = AnswerLog()
        self._judged: list[tuple[float, bool]] = []

    def take(self, bed: Bed) -> None:
        """Measure one item under every change, if it is its turn."""
        if bed.index % self._every:
            return
        canonical, dtype = bed.canonical(SUBJECT), bed.adapter.dtype
        rank = quarter(bed.adapter, bed.chunk(SUBJECT).tokens)
        stored = form_patch(bed.front(*BEFORE, SUBJECT).deficits(), rank, dtype)
        for change, pages in CHANGES.items():
            front = bed.front(*pages, SUBJECT)
            own = form_patch(front.deficits(), rank, dtype)
            answers = {
                FULL: front.ask(),
                BLIND: front.ask({-1: canonical}),
                STORED: front.ask({-1: added(canonical, stored)}),
                EXACT: front.ask({-1: added(canonical, own)}),
            }
            note(self._log, bed, change, answers, known=False)
            apart = _cosine(bed, pages)
            self._log.value(bed.episode, {f"cosine/{change}": apart})
            self._judged += [(apart, safe) for safe in _safe(answers)]

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        for change in CHANGES:
            apart = self._log.estimate(f"cosine/{change}")
            hint = None if apart is None else Interval(apart.value, apart.low, apart.high)
            for setting in SETTINGS:
                for name in self._log.names(setting, change):
                    rows.append((change, hint, *cells(self._log, name, setting, change)[:-1]))
        return Table(
            "divergence",
            "Drift: a stored patch behind changed antecedents",
            f"A map behind {len(BEFORE)} pages, two of them legends, which are changed. Patches weigh a quarter of the "
            "map's KV: stored is of the pages as they were, exact of those that stand there now. A legend that is "
            "replaced gives the same colours other lands. Cosine: distance of the mean embedding of the antecedents' "
            f"media from what it was. {self._gate()} " + READING,
            ("change", "cosine", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("change", "eta", "method", bars=True), Plot("change", "KL", "method", bars=True)),
        )

    def _gate(self) -> str:
        """What the cosine distance would be worth as a gate."""
        safe, unsafe = ([apart for apart, one in self._judged if one is wanted] for wanted in (True, False))
        if not safe or not unsafe:
            return "As a gate it could not be judged: too few answers."
        nearest = sorted(self._judged, key=lambda one: one[0])[: len(self._judged) // 2]
        wrong = sum(not one for _, one in nearest)
        return (
            f"As a gate: where the stored patch closes {SAFE:g} of an answer's gap its median is "
            f"{np.median(safe):.3f}, where it does not {np.median(unsafe):.3f}, and of the nearer half of all "
            f"{len(self._judged)} answers {wrong / len(nearest):.0%} would be reused falsely."
        )


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, appendix D: divergent antecedents."""
    return measured(engine, wanted, (Divergence(),), advance)[0]


def _cosine(bed: Bed, pages: tuple[str, ...]) -> float:
    first, second = (
        torch.cat([bed.chunk(name).encoded.embeds[bed.chunk(name).encoded.visual] for name in names])
        .float()
        .mean(dim=0)
        for names in (BEFORE, pages)
    )
    return max(0.0, 1.0 - float(torch.nn.functional.cosine_similarity(first, second, dim=0)))


def _safe(answers: dict[str, Logits]) -> list[bool]:
    """For every answer that blind reuse moves, whether the stored patch closes enough of its gap."""
    found = []
    for setting in SETTINGS:
        for full, blind, stored in zip(*(answers[name][setting] for name in (FULL, BLIND, STORED)), strict=True):
            floor = divergence(full, blind)
            if floor >= MEASURABLE:
                found.append(divergence(full, stored) <= (1 - SAFE) * floor)
    return found
