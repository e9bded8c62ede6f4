"""The experiments of Kamera's section 5: reorder, slide and recall."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch

from benchmarks.table import Bar
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.experiment import (
    BLIND,
    FULL,
    Experiment,
    StoredPatch,
    answers_of,
    eta_gap,
    quarter_rank,
)
from benchmarks.window.item import SUBJECT, Logits, Rows, WindowItem, added, difference, norm
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


class Reorder(Experiment):
    """One orbit patch for every ordering of a set, beside the ordering's own and another ordering's patch."""

    name = "reorder"

    def __init__(self, sets: Sequence[PageSet] = SETS) -> None:
        super().__init__()
        self._sets = tuple(sets)

    def take(self, item: WindowItem) -> None:
        for pages in self._sets:
            if item.index % pages.every == 0:
                self._take(item, pages, item.index // pages.every)

    def _take(self, item: WindowItem, pages: PageSet, turn: int) -> None:
        orders, tested = pages.orders(turn)
        deficits: list[Rows] = [item.sequence(*order, SUBJECT).deficits() for order in orders]
        size = norm(deficits[0])
        ratios = [norm(difference(other, deficits[0])) / size for other in deficits[1:]]
        self.log.value({f"moved, {pages.name}": sum(ratios) / len(ratios)})
        canonical, rank, dtype = item.canonical(SUBJECT), quarter_rank(item), item.adapter.dtype
        for place in tested:
            mean = mean_deficits([own for other, own in enumerate(deficits) if other != place])
            ways = {"transfer": deficits[0 if place else 1], "exact": deficits[place], "orbit": mean}
            patched = {name: added(canonical, form_patch(way, rank, dtype)) for name, way in ways.items()}
            answers = answers_of(item.sequence(*orders[place], SUBJECT), patched)
            self.log.answers(item, pages.name, answers, (0, 1) if pages.agree else (0,))

    def bars(self) -> Iterable[Bar]:
        for pages in self._sets:
            for setting in SETTINGS if pages.agree else ():
                gap, answered = eta_gap(self.log, "exact", "orbit", setting, pages.name)
                if answered:
                    name = f"eta of the exact patch less the orbit's, {pages.name}, {setting}"
                    yield Bar(name, gap, NEAR, False, answered)


REMOVAL_RANK = 64
REMOVED, REMOVED_QUARTER = "removal patch, rank 64", "removal patch, 25 %"
STATED = 0.05
"""Nats of divergence from re-prefill up to which pages that stay may keep their rows."""
ENOUGH = 0.9
STAY = ("legend0", "map1", SUBJECT)
NOISE = 1e-4
"""Relative norm under which a layer has nothing to remove: the first layer's rows depend on no other page."""
ENERGY = 0.9


@dataclass(frozen=True, slots=True)
class Eviction:
    """A page that leaves, and the legends that know the answers of the questions that are put then."""

    name: str
    page: str
    legends: tuple[int, ...]


EVICTIONS = (
    Eviction("a map leaves", "map0", (0,)),
    Eviction("another legend leaves", "legend1", (0,)),
    Eviction("the legend asked for leaves", "legend1", (1,)),
)


class Slide(Experiment):
    """What pages that stay need when the leading one leaves: nothing, or a patch that removes it.

    Their rows kept as they are stand for blind reuse: eta is the share of their divergence that removal closes.
    """

    name = "slide"
    floor = True

    def take(self, item: WindowItem) -> None:
        answers = {page: self._leaving(item, page) for page in dict.fromkeys(case.page for case in EVICTIONS)}
        for case in EVICTIONS:
            self.log.answers(item, case.name, answers[case.page], case.legends)

    def _leaving(self, item: WindowItem, page: str) -> dict[str, Logits]:
        """Answer with rows as they are, and with removal patches; note the removal's shape."""
        places = range(len(STAY))
        before, after = item.sequence(page, *STAY), item.sequence(*STAY)
        written = {at: before.rows(at + 1) for at in places}
        gone = {at: difference(after.rows(at), written[at]) for at in places}
        self.log.value(_shape(page, gone[places[-1]], written[places[-1]]))
        patches = {at: form_patch(rows, REMOVAL_RANK, item.adapter.dtype) for at, rows in gone.items()}
        narrow = {at: patches[at].slice(quarter_rank(item, STAY[at])) for at in places}
        return {
            FULL: after.ask(),
            BLIND: after.ask(written),
            REMOVED: after.ask({at: added(written[at], patches[at]) for at in places}),
            REMOVED_QUARTER: after.ask({at: added(written[at], narrow[at]) for at in places}),
        }

    def bars(self) -> Iterable[Bar]:
        for case in EVICTIONS:
            for setting in SETTINGS:
                count = len(self.log.of(setting, case.name))
                if not count:
                    continue
                kept = self.log.kl(BLIND, setting, case.name)
                if kept <= STATED:
                    name = f"KL of rows kept as they are, {case.name}, {setting}"
                    yield Bar(name, kept, STATED, False, count)
                else:
                    name = f"eta of the removal patch of 25 %, {case.name}, {setting}"
                    yield Bar(name, self.log.eta(REMOVED_QUARTER, setting, case.name).value, ENOUGH, True, count)


def _shape(page: str, gone: Rows, written: Rows) -> dict[str, float]:
    """Return the removal's relative norm by depth, and the directions that hold 90 % of its energy."""
    kind = "a map" if page.startswith("map") else "a legend"
    shares = [norm((own,)) / norm((rows,)) for own, rows in zip(gone, written, strict=True)]
    half = len(shares) // 2
    ranks = [
        _directions(slot)
        for own, share in zip(gone, shares, strict=True)
        if share >= NOISE
        for slot in (own.keys, own.values)
    ]
    return {
        f"norm of the removal in shallow layers, {kind}": float(np.mean(shares[:half])),
        f"norm of the removal in deep layers, {kind}": float(np.mean(shares[half:])),
        f"directions with 90 % of its energy, {kind}": float(max(ranks, default=0)),
    }


def _directions(rows: torch.Tensor) -> int:
    """Return how many directions hold `ENERGY` of rows [heads, tokens, width]."""
    weights = torch.linalg.svdvals(rows.transpose(0, 1).flatten(1).float())
    energy = weights.double().square().cpu().numpy()
    return int(np.searchsorted(energy.cumsum() / energy.sum(), ENERGY - 1e-12) + 1) if energy.sum() else 0


RANK = 32
AT_EVICTION = ("legend0", "map0", "map1", "legend1", "map2")
COMING = ("other0", "map3", "map4", "other1", "map5")
"""What comes in turn by turn as the oldest leave; the new legends give the same colours other lands."""
ASKED = 3
"""Turnovers of an item: none, and others in turn."""
STALE, FRESH = "stale patch", "fresh patch"
RECOVERED = 0.95


class Recall(StoredPatch):
    """An evicted page comes back to a window that has moved on: its stored patch, or a fresh one."""

    name = "recall"
    stored, rebuilt = STALE, FRESH
    every, rank = 1, RANK

    def cases(self, index: int) -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
        for left in turnovers_of(index):
            yield f"{left / len(AT_EVICTION):g}", AT_EVICTION, (*AT_EVICTION[left:], *COMING[:left])

    def bars(self) -> Iterable[Bar]:
        for setting in SETTINGS:
            noted = [each.tokens for each in self.log.noted if each.setting == setting]
            flipped = [tokens for tokens in noted if tokens[BLIND] != tokens[FULL]]
            if flipped:
                restored = sum(tokens[FRESH] == tokens[FULL] for tokens in flipped) / len(flipped)
                name = f"flips restored by a fresh patch, all turnovers, {setting}"
                yield Bar(name, restored, RECOVERED, True, len(flipped))


def turnovers_of(index: int) -> list[int]:
    """Return how many pages have left: none, and two more that items take in turns."""
    count = len(AT_EVICTION)
    return [0, *(1 + (index * (ASKED - 1) + step) % count for step in range(ASKED - 1))]
