"""Slide: what the pages that stay need when the leading one leaves: nothing, or a patch that removes it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.deficit.rank import NOISE, SLOTS, directions, matrix, singular
from benchmarks.table import Bar, Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SUBJECT, Bed, Rows, added, difference, norm
from benchmarks.window.probe import COLUMNS, READING, cells, measured, note, quarter
from emblema.engine.engine import Engine
from emblema.eval.metrics import Interval
from emblema.kv.patch import form_patch

RANK = 64
AS_IS = "as they are"
REMOVED = "removal patch, rank 64"
QUARTER = "removal patch, 25 %"
STATED = 0.05
"""Nats of divergence from re-prefill up to which survivors may stay as they are."""
ENOUGH = 0.9
STAY = ("legend0", "map1", SUBJECT)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A page that leaves, and the questions that are put then.

    Attributes:
        legends: questions whose answer these legends know.
        known: whether the window still tells their answer.
    """

    name: str
    page: str
    legends: tuple[int, ...]
    known: bool = True


CASES = (
    Leaving("a map leaves", "map0", (0,)),
    Leaving("another legend leaves", "legend1", (0,)),
    Leaving("the legend asked for leaves", "legend1", (1,), known=False),
)


class Survivors:
    """See `measure`."""

    def __init__(self) -> None:
        self._log = AnswerLog()

    def take(self, bed: Bed) -> None:
        """Measure one item with every page that leaves."""
        after = bed.front(*STAY)
        places = range(len(STAY))
        full, blind = after.ask(), after.ask({at: bed.canonical(name) for at, name in enumerate(STAY)})
        kept: dict[str, dict[str, dict[str, list[np.ndarray]]]] = {}
        for page in dict.fromkeys(case.page for case in CASES):
            before = bed.front(page, *STAY)
            written = {at: before.rows(at + 1) for at in places}
            gone = {at: difference(after.rows(at), written[at]) for at in places}
            patches = {at: form_patch(rows, RANK, bed.adapter.dtype) for at, rows in gone.items()}
            ranks = {at: quarter(bed.adapter, bed.chunk(STAY[at]).tokens) for at in places}
            kept[page] = {
                FULL: full,
                BLIND: blind,
                AS_IS: after.ask(written),
                REMOVED: after.ask({at: added(written[at], patches[at]) for at in places}),
                QUARTER: after.ask({at: added(written[at], patches[at].slice(ranks[at])) for at in places}),
            }
            self._log.value(bed.episode, _shape(page, gone[places[-1]], written[places[-1]]))
        for case in CASES:
            answers = kept[case.page]
            note(self._log, bed, case.name, answers, legends=case.legends, known=case.known)
            # Against survivors as they are, in place of blind reuse, for what removal closes of their gap.
            closing = {FULL: full, BLIND: answers[AS_IS], REMOVED: answers[REMOVED], QUARTER: answers[QUARTER]}
            note(self._log, bed, _closing(case), closing, legends=case.legends, known=case.known)

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        bars: list[Bar] = []
        for case in CASES:
            shape = tuple(self._figure(f"{name}/{case.page}") for name in ("shallow", "deep", "rank"))
            for setting in SETTINGS:
                for name in self._log.names(setting, case.name):
                    closed = self._closed(case, name, setting)
                    rows.append((case.name, *shape, *cells(self._log, name, setting, case.name), closed))
                bars += self._bars(case, setting)
        return Table(
            "survivors",
            "Slide: survivors as they are, and with a removal patch",
            "The leading page of four leaves. The three that stay are relocated from their rows as first written; a "
            "removal patch takes out of each what it absorbed from the page that left (rank 64 is all but full for "
            "pages of 64 tokens; 25 % is the rank that weighs a quarter of their KV). Shallow, deep: the removal's "
            "norm over that of the map's rows, in the first and the second half of the layers; rank 90 %: the "
            "directions that hold 90 % of its energy, in the layer that has most. Gap closed: eta against survivors as "
            f"they are. Up to {STATED} nats they may stay so; above, the patch of 25 % has to close {ENOUGH} of the "
            "gap. Where the legend asked for leaves, survivors know an answer that re-prefill does not. " + READING,
            ("what left", "shallow", "deep", "rank 90 %", *COLUMNS, "gap closed"),
            tuple(rows),
            (Plot("what left", "KL", "method", bars=True), Plot("what left", "gap closed", "method", bars=True)),
            tuple(bars),
        )

    def _figure(self, name: str) -> Interval | None:
        found = self._log.estimate(name)
        return None if found is None else Interval(found.value, found.low, found.high)

    def _closed(self, case: Leaving, name: str, setting: str) -> Interval | None:
        row = self._log.row(name, setting, _closing(case)) if name in (REMOVED, QUARTER) else None
        return None if row is None else row.eta

    def _bars(self, case: Leaving, setting: str) -> list[Bar]:
        row = self._log.row(AS_IS, setting, case.name)
        if row is None:
            return []
        if row.kl.value <= STATED:
            return [Bar(f"KL of survivors as they are, {case.name}, {setting}", row.kl.value, STATED, False, row.n)]
        closed = self._closed(case, QUARTER, setting)
        name = f"gap closed by the removal patch of 25 %, {case.name}, {setting}"
        return [Bar(name, None if closed is None else closed.value, ENOUGH, True, row.n)]


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, section 5 and table 1: survivors as they are and with a removal patch."""
    return measured(engine, wanted, (Survivors(),), advance)[0]


def _closing(case: Leaving) -> str:
    return f"{case.name}: gap"


def _shape(page: str, gone: Rows, written: Rows) -> dict[str, float]:
    """The removal's relative norm by depth, and the directions that hold 90 % of its energy."""
    shares = [norm((one,)) / norm((rows,)) for one, rows in zip(gone, written, strict=True)]
    half = len(shares) // 2
    ranks = [
        directions(singular(matrix(getattr(one, slot))))
        for one, share in zip(gone, shares, strict=True)
        for slot in SLOTS
        if share >= NOISE
    ]
    return {
        f"shallow/{page}": float(np.mean(shares[:half])),
        f"deep/{page}": float(np.mean(shares[half:])),
        f"rank/{page}": float(max(ranks, default=0)),
    }
