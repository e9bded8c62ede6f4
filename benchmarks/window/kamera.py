"""The tables of Kamera's section 5: reorder, slide and recall."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.deficit.rank import NOISE, SLOTS, directions, matrix, singular
from benchmarks.intervals import Interval
from benchmarks.table import Bar, Cell, Plot, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.item import SUBJECT, Logits, Rows, WindowItem, added, difference, norm
from benchmarks.window.probe import (
    COLUMNS,
    READING,
    answers_of,
    eta_gap,
    figure,
    method_cells,
    note_answers,
    patch_weight,
    quarter_rank,
)
from emblema.kv.patch import form_patch
from emblema.link.forming import EXHAUSTIVE, SAMPLED, mean_deficits

NEAR = 0.05
"""How much less eta an orbit patch may have than the exact one."""


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

    @property
    def forwards(self) -> int:
        """Forwards that an orbit patch takes."""
        return factorial(len(self.pages)) - 1 if len(self.pages) <= EXHAUSTIVE else SAMPLED

    def orders(self, turn: int) -> tuple[list[tuple[str, ...]], list[int]]:
        """Return the orderings of an item, and the places of those that are asked in."""
        every = list(permutations(self.pages))
        if len(self.pages) <= EXHAUSTIVE:
            return every, [(self.asked * turn + place) % len(every) for place in range(self.asked)]
        # One more than are averaged over, as the one that is asked in is left out.
        drawn = [every[0], *random.Random(turn).sample(every[1:], SAMPLED)]
        return drawn, list(range(1, 1 + self.asked))


SETS = (
    PageSet("K = 3", ("legend0", "map0", "legend1"), 1, 1),
    PageSet("K = 4", ("legend0", "map0", "legend1", "map1"), 5, 2),
    PageSet("K = 6", ("legend0", "map0", "legend1", "map1", "map2", "map3"), 10, 4),
    PageSet("K = 3, order decides", ("legend0", "other0", "map0"), 5, 2, agree=False),
)


class Orbit:
    """Reorder: one orbit patch for every ordering of a set, beside the ordering's own and another ordering's patch."""

    def __init__(self, sets: Sequence[PageSet] = SETS) -> None:
        self._sets = tuple(sets)
        self._log = AnswerLog()

    def take(self, item: WindowItem) -> None:
        """Measure one item on every set whose turn it is."""
        for pages in self._sets:
            if item.index % pages.every == 0:
                self._take(item, pages, item.index // pages.every)

    def _take(self, item: WindowItem, pages: PageSet, turn: int) -> None:
        orders, tested = pages.orders(turn)
        deficits: list[Rows] = [item.sequence(*order, SUBJECT).deficits() for order in orders]
        size = norm(deficits[0])
        ratios = [norm(difference(other, deficits[0])) / size for other in deficits[1:]]
        self._log.value(item.episode, {f"moved/{pages.name}": sum(ratios) / len(ratios)})
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        for place in tested:
            mean = mean_deficits([own for other, own in enumerate(deficits) if other != place])
            ways = {"transfer": deficits[0 if place else 1], "exact": deficits[place], "orbit": mean}
            patched = {name: added(canonical, form_patch(way, rank, dtype)) for name, way in ways.items()}
            answers = answers_of(item.sequence(*orders[place], SUBJECT), patched)
            legends = (0, 1) if pages.agree else (0,)
            note_answers(self._log, item, pages.name, answers, legends=legends, known=pages.agree)

    def table(self) -> Table:
        """Return what was measured."""
        rows: list[tuple[Cell, ...]] = []
        bars = []
        for pages in self._sets:
            moved = figure(self._log, f"moved/{pages.name}")
            forwards = {FULL: 0, BLIND: 0, "orbit": pages.forwards}
            for _, name, cells in method_cells(self._log, pages.name):
                rows.append((pages.name, forwards.get(name, 1), moved, *cells))
            for setting in SETTINGS if pages.agree else ():
                gap, answered = eta_gap(self._log, "exact", "orbit", setting, pages.name)
                if answered:
                    name = f"eta of the exact patch less the orbit's, {pages.name}, {setting}"
                    bars.append(Bar(name, gap.value, NEAR, False, answered))
        return Table(
            "orbit",
            "Reorder: one patch for every ordering of a set",
            "A map after K pages in another order. Patches weigh a quarter of the map's KV: exact is the ordering's "
            "own, transfer another ordering's, orbit the mean over all orderings but the one that is "
            f"asked in (of more than {EXHAUSTIVE} pages, over {SAMPLED} that are drawn). Forwards: what forming takes. "
            "Moved: the norm of the difference between an ordering's deficit and the first one's, over its norm. "
            "Where order decides, two legends give the same colours other lands, and nothing is expected. " + READING,
            ("pages", "forwards", "moved", *COLUMNS),
            tuple(rows),
            (Plot("pages", "eta", "method", bars=True), Plot("pages", "KL", "method", bars=True)),
            tuple(bars),
        )


REMOVAL_RANK = 64
AS_IS = "as they are"
REMOVED = "removal patch, rank 64"
REMOVED_QUARTER = "removal patch, 25 %"
STATED = 0.05
"""Nats of divergence from re-prefill up to which survivors may stay as they are."""
ENOUGH = 0.9
STAY = ("legend0", "map1", SUBJECT)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A page that leaves, and the questions that are put then.

    Attributes:
        legends: questions whose answer these legends know.
        known: whether the window still tells their answer.
    """

    name: str
    page: str
    legends: tuple[int, ...]
    known: bool = True

    @property
    def gap(self) -> str:
        """Name of the answers that are compared with survivors as they are."""
        return f"{self.name}: gap"


EVICTIONS = (
    Eviction("a map leaves", "map0", (0,)),
    Eviction("another legend leaves", "legend1", (0,)),
    Eviction("the legend asked for leaves", "legend1", (1,), known=False),
)


class Survivors:
    """Slide: what the pages that stay need when the leading one leaves: nothing, or a patch that removes it."""

    def __init__(self) -> None:
        self._log = AnswerLog()

    def take(self, item: WindowItem) -> None:
        """Measure one item with every page that leaves."""
        after = item.sequence(*STAY)
        shared = {FULL: after.ask(), BLIND: after.ask({at: item.canonical(name) for at, name in enumerate(STAY)})}
        answers = {page: self._leaving(item, page) for page in dict.fromkeys(case.page for case in EVICTIONS)}
        for case in EVICTIONS:
            own = answers[case.page]
            note_answers(self._log, item, case.name, {**shared, **own}, legends=case.legends, known=case.known)
            # Against survivors as they are, in place of blind reuse, for what removal closes of their gap.
            closing = {FULL: shared[FULL], BLIND: own[AS_IS], REMOVED: own[REMOVED]}
            closing[REMOVED_QUARTER] = own[REMOVED_QUARTER]
            note_answers(self._log, item, case.gap, closing, legends=case.legends, known=case.known)

    def _leaving(self, item: WindowItem, page: str) -> dict[str, Logits]:
        """Answer with survivors as they are, and with removal patches; note the removal's shape."""
        places = range(len(STAY))
        before, after = item.sequence(page, *STAY), item.sequence(*STAY)
        written = {at: before.rows(at + 1) for at in places}
        gone = {at: difference(after.rows(at), written[at]) for at in places}
        self._log.value(item.episode, _shape(page, gone[places[-1]], written[places[-1]]))
        patches = {at: form_patch(rows, REMOVAL_RANK, item.adapter.dtype) for at, rows in gone.items()}
        narrow = {at: patches[at].slice(quarter_rank(item, STAY[at])) for at in places}
        return {
            AS_IS: after.ask(written),
            REMOVED: after.ask({at: added(written[at], patches[at]) for at in places}),
            REMOVED_QUARTER: after.ask({at: added(written[at], narrow[at]) for at in places}),
        }

    def table(self) -> Table:
        """Return what was measured."""
        rows: list[tuple[Cell, ...]] = []
        for case in EVICTIONS:
            shape = tuple(figure(self._log, f"{name}/{case.page}") for name in ("shallow", "deep", "rank"))
            for setting, name, cells in method_cells(self._log, case.name):
                rows.append((case.name, *shape, *cells, self._closed(case, name, setting)))
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
            tuple(bar for case in EVICTIONS for setting in SETTINGS for bar in self._bars(case, setting)),
        )

    def _closed(self, case: Eviction, name: str, setting: str) -> Interval | None:
        row = self._log.row(name, setting, case.gap) if name in (REMOVED, REMOVED_QUARTER) else None
        return None if row is None else row.eta

    def _bars(self, case: Eviction, setting: str) -> Iterable[Bar]:
        row = self._log.row(AS_IS, setting, case.name)
        if row is None:
            return
        if row.kl.value <= STATED:
            yield Bar(f"KL of survivors as they are, {case.name}, {setting}", row.kl.value, STATED, False, row.n)
        else:
            closed = self._closed(case, REMOVED_QUARTER, setting)
            name = f"gap closed by the removal patch of 25 %, {case.name}, {setting}"
            yield Bar(name, None if closed is None else closed.value, ENOUGH, True, row.n)


def _shape(page: str, gone: Rows, written: Rows) -> dict[str, float]:
    """Return the removal's relative norm by depth, and the directions that hold 90 % of its energy."""
    shares = [norm((own,)) / norm((rows,)) for own, rows in zip(gone, written, strict=True)]
    half = len(shares) // 2
    ranks = [
        directions(singular(matrix(getattr(own, slot))))
        for own, share in zip(gone, shares, strict=True)
        for slot in SLOTS
        if share >= NOISE
    ]
    return {
        f"shallow/{page}": float(np.mean(shares[:half])),
        f"deep/{page}": float(np.mean(shares[half:])),
        f"rank/{page}": float(max(ranks, default=0)),
    }


RANK = 32
AT_EVICTION = ("legend0", "map0", "map1", "legend1", "map2")
COMING = ("other0", "map3", "map4", "other1", "map5")
"""What comes in turn by turn as the oldest leave; the new legends give the same colours other lands."""
ASKED = 3
"""Turnovers of an item: none, and others in turn."""
STALE, FRESH, FRESH_QUARTER = "stale patch", "fresh patch", "fresh patch, 25 %"
RECOVERED = 0.95
ALL = "all"


class Recall:
    """Recall: an evicted page comes back to a window that has moved on: its stored patch, a fresh one, re-prefill."""

    def __init__(self) -> None:
        self._log = AnswerLog()
        self._share = 0.0

    def take(self, item: WindowItem) -> None:
        """Measure one item at three turnovers."""
        canonical, dtype = item.canonical(SUBJECT), item.adapter.dtype
        self._share = patch_weight(item.adapter, item.chunk(SUBJECT).tokens, RANK)
        stale = form_patch(item.sequence(*AT_EVICTION, SUBJECT).deficits(), RANK, dtype)
        for left in turnovers_of(item.index):
            sequence = item.sequence(*AT_EVICTION[left:], *COMING[:left], SUBJECT)
            fresh = form_patch(sequence.deficits(), RANK, dtype)
            patches = {STALE: stale, FRESH: fresh, FRESH_QUARTER: fresh.slice(quarter_rank(item))}
            answers = answers_of(sequence, {name: added(canonical, patch) for name, patch in patches.items()})
            for group in (f"turnover {left}", ALL):
                note_answers(self._log, item, group, answers, known=False)

    def table(self) -> Table:
        """Return what was measured."""
        rows = [
            (left / len(AT_EVICTION), *cells[:-1])
            for left in range(len(AT_EVICTION) + 1)
            for _, _, cells in method_cells(self._log, f"turnover {left}")
        ]
        bars = []
        for setting in SETTINGS:
            row = self._log.row(FRESH, setting, ALL)
            if row is not None and row.flips.count:
                name = f"flips restored by a fresh patch at all turnovers, {setting}"
                bars.append(Bar(name, row.flips.value, RECOVERED, True, row.flips.count))
        return Table(
            "recall",
            "Recall: a page comes back to a window that has moved on",
            f"A map after {len(AT_EVICTION)} pages is evicted with its patch, and comes back when a share of them has "
            "left and others have come (the turnover), the first of these a legend that gives the same colours other "
            f"lands. Patches of rank {RANK} ({self._share:.0%} of the map's KV): stale is the one from before, fresh "
            "is formed on the pages that are there now. Re-prefill is the reference. " + READING,
            ("turnover", *COLUMNS[:-1]),
            tuple(rows),
            (Plot("turnover", "eta", "method"), Plot("turnover", "flips restored", "method")),
            tuple(bars),
        )


def turnovers_of(index: int) -> list[int]:
    """Return how many pages have left: none, and two more that items take in turns."""
    count = len(AT_EVICTION)
    return [0, *(1 + (index * (ASKED - 1) + step) % count for step in range(ASKED - 1))]
