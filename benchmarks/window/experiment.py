"""What the window's experiments share: items one after another, answers noted, and what they come to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.fidelity.arms import slot_widths
from benchmarks.intervals import Interval, bootstrap_eta, bootstrap_ratio
from benchmarks.table import Bar, SampleSize
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.item import SUBJECT, Logits, PageSequence, Rows, WindowItem, added
from emblema.engine.engine import Engine
from emblema.kv.patch import form_patch, rank_for_share
from emblema.link.policy.samples import divergence, first_token
from emblema.models.adapter import Adapter

FULL, BLIND = "full", "blind"
SHOWN = "slid"
"""The setting that is reported row by row; bars are held in both."""
EVERY = 5
"""One item in so many is measured by an experiment that takes many forwards."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NotedAnswer:
    """One question: by method, its divergence from re-prefill and its first token."""

    episode: str
    setting: str
    group: str
    losses: dict[str, float]
    tokens: dict[str, int]


@dataclass
class AnswerLog:
    """Figures by name. A question's answers are compared with its own re-prefill."""

    values: dict[str, list[float]] = field(default_factory=dict)
    noted: list[NotedAnswer] = field(default_factory=list)

    def value(self, figures: Mapping[str, float]) -> None:
        """Note figures of an item."""
        for name, figure in figures.items():
            self.values.setdefault(name, []).append(float(figure))

    def answers(
        self, item: WindowItem, group: str, answers: Mapping[str, Logits], legends: Sequence[int] = (0, 1)
    ) -> None:
        """Note every question's answers by method, re-prefill's under `full` and blind reuse's under `blind`.

        Args:
            group: what was done to the window.
            legends: only questions whose answer these legends know.
        """
        for setting in SETTINGS:
            for place, question in enumerate(item.questions):
                if question.legend in legends:
                    logits = {name: found[setting][place] for name, found in answers.items()}
                    losses = {name: divergence(logits[FULL], answer) for name, answer in logits.items()}
                    tokens = {name: first_token(answer) for name, answer in logits.items()}
                    self.noted.append(NotedAnswer(item.episode, setting, group, losses, tokens))

    def mean(self, name: str) -> float:
        """Return the mean of a figure; NaN if it was never noted."""
        return float(np.mean(self.values.get(name, [float("nan")])))

    def names(self, setting: str, group: str) -> list[str]:
        """Return every method that answered in a setting, in the order of first use; not re-prefill."""
        found = dict.fromkeys(name for noted in self.of(setting, group) for name in noted.losses)
        return [name for name in found if name != FULL]

    def kl(self, name: str, setting: str, group: str) -> float:
        """Return a method's mean divergence in nats."""
        return float(np.mean([noted.losses[name] for noted in self.of(setting, group)]))

    def eta(self, name: str, setting: str, group: str) -> Interval:
        """Return the share of blind reuse's divergence that a method closes, with its interval by item."""
        kept = self.of(setting, group)
        losses, floors = ([noted.losses[of] for noted in kept] for of in (name, BLIND))
        return bootstrap_eta(losses, floors, [noted.episode for noted in kept])

    def of(self, setting: str, group: str) -> list[NotedAnswer]:
        """Return the questions of a group in a setting."""
        return [noted for noted in self.noted if (noted.setting, noted.group) == (setting, group)]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on one model: rows by the name of their list in the run's file, and what has to hold."""

    rows: Mapping[str, list[Row]]
    bars: tuple[Bar, ...]


class Experiment(ABC):
    """One table of Kamera's, measured item by item.

    Attributes:
        name: its own.
        floor: whether blind reuse is reported beside the methods.
        log: what was noted.
    """

    name: str
    floor = False

    def __init__(self) -> None:
        self.log = AnswerLog()

    @abstractmethod
    def take(self, item: WindowItem) -> None:
        """Measure one item; some are left out."""

    def figures(self) -> Mapping[str, float]:
        """Return figures by name."""
        return {name: self.log.mean(name) for name in self.log.values}

    def bars(self) -> Iterable[Bar]:
        """Return what has to hold."""
        return ()

    def measured(self, model: str) -> Measured:
        """Return what was measured on a model."""
        about, answers = {"experiment": self.name, "model": model}, list[Row]()
        for group in dict.fromkeys(noted.group for noted in self.log.noted):
            for method in self.log.names(SHOWN, group):
                if self.floor or method != BLIND:
                    kl, eta = self.log.kl(method, SHOWN, group), self.log.eta(method, SHOWN, group)
                    spread = {"eta": eta.value, "low": eta.low, "high": eta.high}
                    answers.append({**about, "group": group, "method": method, "kl": kl, **spread})
        figures: list[Row] = [{**about, "name": name, "value": value} for name, value in self.figures().items()]
        return Measured({"answers": answers, "figures": figures}, tuple(self.bars()))


def measure(
    engine: Engine,
    model: str,
    size: SampleSize,
    experiments: Sequence[Experiment],
    advance: Callable[[], object] = lambda: None,
) -> list[Measured]:
    """Take every item through all experiments, so that its pages are encoded once.

    Args:
        model: its name.
        advance: called after each item.
    """
    for index in range(size.items):
        item = WindowItem(engine, size.seed, index)
        for experiment in experiments:
            experiment.take(item)
        advance()
    return [experiment.measured(model) for experiment in experiments]


def answers_of(sequence: PageSequence, ways: Mapping[str, Rows]) -> dict[str, Logits]:
    """Answer under re-prefill, under blind reuse of the last page, and with each way's rows in its place."""
    given = {BLIND: sequence.item.canonical(sequence.names[-1]), **ways}
    return {FULL: sequence.ask(), **{name: sequence.ask({-1: rows}) for name, rows in given.items()}}


def patched(item: WindowItem, pages: Sequence[str], rank: int) -> Rows:
    """Return the map's rows as computed alone, with the patch of some antecedents added."""
    patch = form_patch(item.sequence(*pages, SUBJECT).deficits(), rank, item.adapter.dtype)
    return added(item.canonical(SUBJECT), patch)


class StoredPatch(Experiment):
    """The patch of antecedents as they were, beside that of the antecedents as they are now.

    Attributes:
        stored, rebuilt: what the two are called.
        every: one item in how many is measured.
        rank: of the patches; that of a quarter of the map's KV by default.
    """

    stored, rebuilt = "stored patch", "rebuilt patch"
    every = EVERY
    rank: int | None = None

    @abstractmethod
    def cases(self, index: int) -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
        """Return an item's groups, each with the antecedents as they were and as they are."""

    def note(self, item: WindowItem, group: str, pages: Sequence[str], answers: Mapping[str, Logits]) -> None:
        """Note a case's answers."""
        self.log.answers(item, group, answers)

    def take(self, item: WindowItem) -> None:
        if item.index % self.every:
            return
        rank = self.rank or quarter_rank(item)
        rows: dict[Sequence[str], Rows] = {}
        for group, before, now in self.cases(item.index):
            rows |= {pages: patched(item, pages, rank) for pages in (before, now) if pages not in rows}
            ways = {self.stored: rows[before], self.rebuilt: rows[now]}
            self.note(item, group, now, answers_of(item.sequence(*now, SUBJECT), ways))


def eta_gap(log: AnswerLog, better: str, worse: str, setting: str, group: str) -> tuple[float, int]:
    """Return how far a method's eta is below another's, from the same answers (paired), and how many they are."""
    kept = [noted for noted in log.of(setting, group) if {better, worse} <= noted.losses.keys()]
    if not kept:
        return float("nan"), 0
    above = np.array([noted.losses[worse] - noted.losses[better] for noted in kept])
    below = np.array([noted.losses[BLIND] for noted in kept])
    return bootstrap_ratio(above, below, [noted.episode for noted in kept]).value, len(kept)


def quarter_rank(item: WindowItem, page: str = SUBJECT) -> int:
    """Return the rank whose patch weighs a quarter of a page's KV."""
    layouts = item.adapter.layouts
    return max(1, rank_for_share(0.25, item.chunk(page).tokens, layouts, range(len(layouts))))


def patch_weight(adapter: Adapter, tokens: int, rank: int) -> float:
    """Return the bytes of a patch over those of the chunk's KV."""
    slots = slot_widths(adapter.layouts)
    return sum(min(rank, tokens, slot) * (tokens + slot) for slot in slots) / (tokens * sum(slots))
