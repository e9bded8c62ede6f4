"""Reorder: one orbit patch for every ordering of a set, beside the ordering's own and another ordering's patch."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.table import Bar, Cell, Plot, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import SUBJECT, Bed, Rows, added, difference, norm
from benchmarks.window.probe import COLUMNS, READING, cells, eta_gap, measured, note, quarter
from emblema.engine.engine import Engine
from emblema.eval.metrics import Interval
from emblema.kv.patch import form_patch
from emblema.link.forming import EXHAUSTIVE, SAMPLED, mean_deficits

NEAR = 0.05


@dataclass(frozen=True, slots=True)
class PageSet:
    """Pages to put in every order.

    Attributes:
        name: of the set, in the table.
        every: one item in how many is measured: the forwards grow with the orderings.
        asked: orderings of an item that are asked in; over the items all of a small set have their turn.
        agree: whether any order means the same; otherwise order decides the answer between two legends, and nothing is
            expected of a patch that knows no order.
    """

    name: str
    pages: tuple[str, ...]
    every: int
    asked: int
    agree: bool = True


SETS = (
    PageSet("K = 3", ("legend0", "map0", "legend1"), 1, 1),
    PageSet("K = 4", ("legend0", "map0", "legend1", "map1"), 5, 2),
    PageSet("K = 6", ("legend0", "map0", "legend1", "map1", "map2", "map3"), 10, 4),
    PageSet("K = 3, order decides", ("legend0", "other0", "map0"), 5, 2, agree=False),
)


class Orbit:
    """See `measure`."""

    def __init__(self, sets: Sequence[PageSet] = SETS) -> None:
        self._sets = tuple(sets)
        self._log = AnswerLog()

    def take(self, bed: Bed) -> None:
        """Measure one item on every set whose turn it is."""
        for one in self._sets:
            if bed.index % one.every == 0:
                self._set(bed, one, bed.index // one.every)

    def _set(self, bed: Bed, pages: PageSet, turn: int) -> None:
        orders, tested = _orders(pages, turn)
        deficits: list[Rows] = [bed.front(*order, SUBJECT).deficits() for order in orders]
        size = norm(deficits[0])
        ratios = [norm(difference(one, deficits[0])) / size for one in deficits[1:]]
        self._log.value(bed.episode, {f"moved/{pages.name}": sum(ratios) / len(ratios)})
        canonical, dtype = bed.canonical(SUBJECT), bed.adapter.dtype
        rank = quarter(bed.adapter, bed.chunk(SUBJECT).tokens)
        for place in tested:
            front = bed.front(*orders[place], SUBJECT)
            mean = mean_deficits([one for other, one in enumerate(deficits) if other != place])
            ways = {"transfer": deficits[0 if place else 1], "exact": deficits[place], "orbit": mean}
            answers = {FULL: front.ask(), BLIND: front.ask({-1: canonical})}
            for name, way in ways.items():
                answers[name] = front.ask({-1: added(canonical, form_patch(way, rank, dtype))})
            legends = (0, 1) if pages.agree else (0,)
            note(self._log, bed, pages.name, answers, legends=legends, known=pages.agree)

    def table(self) -> Table:
        """What was measured."""
        rows: list[tuple[Cell, ...]] = []
        bars = []
        for pages in self._sets:
            moved = self._log.estimate(f"moved/{pages.name}")
            ratio = None if moved is None else Interval(moved.value, moved.low, moved.high)
            for setting in SETTINGS:
                for name in self._log.names(setting, pages.name):
                    forwards = {FULL: 0, BLIND: 0, "orbit": _forwards(len(pages.pages))}.get(name, 1)
                    found = cells(self._log, name, setting, pages.name)
                    rows.append((pages.name, forwards, ratio, *found))
                gap, answered = eta_gap(self._log, "exact", "orbit", setting, pages.name)
                if pages.agree and answered:
                    name = f"eta of the exact patch less the orbit's, {pages.name}, {setting}"
                    bars.append(Bar(name, gap.value, NEAR, False, answered))
        return Table(
            "orbit",
            "Reorder: one patch for every ordering of a set",
            "A map behind K pages in another order. Patches weigh a quarter of the map's KV: exact is the ordering's "
            "own, transfer another ordering's, orbit the mean over all orderings but the one that is "
            f"asked in (of more than {EXHAUSTIVE} pages, over {SAMPLED} that are drawn). Forwards: what forming takes. "
            "Moved: the norm of the difference between an ordering's deficit and the first one's, over its norm. "
            "Where order decides, two legends give the same colours other lands, and nothing is expected. " + READING,
            ("pages", "forwards", "moved", *COLUMNS),
            tuple(rows),
            (Plot("pages", "eta", "method", bars=True), Plot("pages", "KL", "method", bars=True)),
            tuple(bars),
        )


def measure(engine: Engine, wanted: SampleSize, advance: Callable[[], object] = lambda: None) -> Table:
    """Kamera, section 5: orbit against exact and transfer at K = 3, 4 and 6."""
    return measured(engine, wanted, (Orbit(),), advance)[0]


def _forwards(count: int) -> int:
    return factorial(count) - 1 if count <= EXHAUSTIVE else SAMPLED


def _orders(pages: PageSet, turn: int) -> tuple[list[tuple[str, ...]], list[int]]:
    """The orderings of an item, and the places of those that are asked in."""
    every = list(permutations(pages.pages))
    if len(pages.pages) <= EXHAUSTIVE:
        return every, [(pages.asked * turn + place) % len(every) for place in range(pages.asked)]
    # One more than are averaged over, as the one that is asked in is left out.
    drawn = [every[0], *random.Random(turn).sample(every[1:], SAMPLED)]
    return drawn, list(range(1, 1 + pages.asked))
