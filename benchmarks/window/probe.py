"""What the window's tables share: items one after another, each through all probes; answers noted, and made cells."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.intervals import Interval, bootstrap_ratio
from benchmarks.table import Cell, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.item import SUBJECT, Logits, PageSequence, Rows, WindowItem
from emblema.engine.engine import Engine
from emblema.kv.patch import rank_for_share
from emblema.models.adapter import Adapter

COLUMNS = ("setting", "method", "n", "KL", "eta", "flips restored", "same answer", "right")
"""Of every row of answers, after the columns that say what was done to the window."""
LABELS = {FULL: "re-prefill", BLIND: "blind reuse"}
READING = (
    "Divergence in nats from re-prefill of the same window; eta is the share of blind reuse's divergence that a method "
    "closes; flips restored: of the answers that blind reuse changes, those that are re-prefill's again. Intervals by "
    "item, 95 %. Setting slid: the pages before the map conditioned it and are absent for the question."
)


class Probe(Protocol):
    """Measures one table, item by item."""

    def take(self, item: WindowItem) -> None:
        """Measure one item; a probe may leave items out."""

    def table(self) -> Table:
        """Return what was measured."""


def measure_probes(
    engine: Engine, size: SampleSize, probes: Sequence[Probe], advance: Callable[[], object] = lambda: None
) -> list[Table]:
    """Take every item through all probes, so that its pages are encoded once; a table for each probe.

    Args:
        advance: called after each item.
    """
    spent = [0.0] * len(probes)
    for index in range(size.items):
        item = WindowItem(engine, size.seed, index)
        for place, probe in enumerate(probes):
            began = time.perf_counter()
            probe.take(item)
            spent[place] += time.perf_counter() - began
        advance()
    return [replace(probe.table(), seconds=seconds) for probe, seconds in zip(probes, spent, strict=True)]


def answers_of(sequence: PageSequence, ways: Mapping[str, Rows]) -> dict[str, Logits]:
    """Answer under re-prefill, under blind reuse of the last page, and with each way's rows in its place."""
    canonical = sequence.item.canonical(sequence.names[-1])
    given = {BLIND: canonical, **ways}
    return {FULL: sequence.ask(), **{name: sequence.ask({-1: rows}) for name, rows in given.items()}}


def note_answers(
    log: AnswerLog,
    item: WindowItem,
    group: str,
    answers: Mapping[str, Logits],
    *,
    legends: Iterable[int] = (0, 1),
    known: bool = True,
) -> None:
    """Note every question's answers by method, re-prefill's under `full` and blind reuse's under `blind`.

    Args:
        group: what was done to the window.
        legends: only questions whose answer these legends know.
        known: whether the answer can be known in this window.
    """
    for setting in SETTINGS:
        for place, question in enumerate(item.questions):
            if question.legend in set(legends):
                logits = {name: found[setting][place] for name, found in answers.items()}
                log.answers(item.episode, setting, group, question.expected if known else None, logits)


def method_cells(log: AnswerLog, group: str) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
    """Yield setting, method and the cells under `COLUMNS` of everything that was answered in a group."""
    for setting in SETTINGS:
        for name in log.names(setting, group):
            row = log.row(name, setting, group)
            if row is not None:
                eta, flips = (None, None) if name in LABELS else (row.eta, row.flips)
                figures = (row.n, row.kl, eta, flips, row.agreement, row.accuracy)
                yield setting, name, (setting, LABELS.get(name, name), *figures)


def figure(log: AnswerLog, name: str) -> Interval | None:
    """Return the mean of a figure; None if it was never noted."""
    found = log.estimate(name)
    return None if found is None else Interval(found.value, found.low, found.high)


def eta_gap(log: AnswerLog, better: str, worse: str, setting: str, group: str) -> tuple[Interval, int]:
    """Return how far a method's eta is below another's, from the same answers (paired), and how many they are."""
    kept = [
        noted
        for noted in log.noted
        if (noted.setting, noted.hop) == (setting, group) and {better, worse} <= noted.losses.keys()
    ]
    if not kept:
        return Interval(float("nan"), float("nan"), float("nan")), 0
    above = np.array([noted.losses[worse] - noted.losses[better] for noted in kept])
    below = np.array([noted.losses[BLIND] for noted in kept])
    return bootstrap_ratio(above, below, [noted.episode for noted in kept]), len(kept)


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
