"""What the window's experiments share: items one after another, answers noted, and what they come to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.intervals import bootstrap_ratio
from benchmarks.table import Bar, SampleSize
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.answerlog import BLIND, FULL, AnswerLog
from benchmarks.window.item import SUBJECT, Logits, PageSequence, Rows, WindowItem
from emblema.engine.engine import Engine
from emblema.kv.patch import rank_for_share
from emblema.models.adapter import Adapter

SHOWN = "slid"
"""The setting that is reported row by row; bars are held in both."""
EVERY = 5
"""One item in so many is measured by an experiment that takes many forwards."""


@dataclass(frozen=True, slots=True)
class WindowAnswers:
    """What a method came to on the questions of a group, their pages having slid.

    Attributes:
        group: what was done to the window.
        kl: mean divergence in nats from re-prefill of the same window.
        eta: share of blind reuse's divergence that is closed, with its 95 % interval by item.
    """

    experiment: str
    model: str
    group: str
    method: str
    kl: float
    eta: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class WindowFigure:
    """A figure of an experiment that is not an answer's."""

    experiment: str
    model: str
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one experiment came to on one model."""

    answers: tuple[WindowAnswers, ...]
    figures: tuple[WindowFigure, ...]
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
        return {}

    def bars(self) -> Iterable[Bar]:
        """Return what has to hold."""
        return ()

    def measured(self, model: str) -> Measured:
        """Return what was measured on a model."""
        answers = []
        for group in dict.fromkeys(noted.group for noted in self.log.noted):
            for method in self.log.names(SHOWN, group):
                found = self.log.figures(method, SHOWN, group)
                if found is not None and (self.floor or method != BLIND):
                    spread = (found.eta.value, found.eta.low, found.eta.high)
                    answers.append(WindowAnswers(self.name, model, group, method, found.kl.value, *spread))
        figures = tuple(WindowFigure(self.name, model, name, value) for name, value in self.figures().items())
        return Measured(tuple(answers), figures, tuple(self.bars()))


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


def note_answers(
    log: AnswerLog, item: WindowItem, group: str, answers: Mapping[str, Logits], legends: Iterable[int] = (0, 1)
) -> None:
    """Note every question's answers by method, re-prefill's under `full` and blind reuse's under `blind`.

    Args:
        group: what was done to the window.
        legends: only questions whose answer these legends know.
    """
    for setting in SETTINGS:
        for place, question in enumerate(item.questions):
            if question.legend in set(legends):
                logits = {name: found[setting][place] for name, found in answers.items()}
                log.answers(item.episode, setting, group, logits)


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
    slots = slot_widths(adapter)
    return sum(min(rank, tokens, slot) * (tokens + slot) for slot in slots) / (tokens * sum(slots))


def slot_widths(adapter: Adapter) -> list[int]:
    """Return the features of a row's keys and of its values, layer by layer."""
    return [heads * width for layout in adapter.layouts for heads, width in (layout.keys, layout.values)]
