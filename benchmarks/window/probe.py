"""What the tables share: items one after another, each through all probes; answers noted, and turned into cells."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from benchmarks.deficit.answerlog import BLIND, FULL, AnswerLog
from benchmarks.table import Cell, SampleSize, Table
from benchmarks.tasks.prompts import SETTINGS
from benchmarks.window.bed import Bed, Logits
from emblema.engine.engine import Engine
from emblema.eval.metrics import Interval, bootstrap_ratio
from emblema.kv.patch import rank_for_share
from emblema.models.adapter import Adapter

COLUMNS = ("setting", "method", "n", "KL", "eta", "flips restored", "same answer", "right")
"""Of every row of answers, behind the columns that say what was done to the window."""
READING = (
    "Divergence in nats from re-prefill of the same window; eta is the share of blind reuse's divergence that a method "
    "closes; flips restored: of the answers that blind reuse changes, those that are re-prefill's again. Intervals by "
    "item, 95 %. Setting slid: what stands in front conditioned the map and is absent for the question."
)


class Probe(Protocol):
    """One table under way."""

    def take(self, bed: Bed) -> None:
        """Measure one item; a probe may leave items out."""

    def table(self) -> Table:
        """What was measured."""


def measured(
    engine: Engine, wanted: SampleSize, probes: Sequence[Probe], advance: Callable[[], object] = lambda: None
) -> list[Table]:
    """Every item through all probes, so that its pages are encoded once; a table for each probe.

    Args:
        advance: called after each item.
    """
    spent = [0.0] * len(probes)
    for index in range(wanted.items):
        bed = Bed(engine, wanted.seed, index)
        for place, probe in enumerate(probes):
            began = time.perf_counter()
            probe.take(bed)
            spent[place] += time.perf_counter() - began
        advance()
    return [replace(probe.table(), seconds=seconds) for probe, seconds in zip(probes, spent, strict=True)]


def note(
    log: AnswerLog,
    bed: Bed,
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
        for place, question in enumerate(bed.questions):
            if question.legend in set(legends):
                logits = {name: one[setting][place] for name, one in answers.items()}
                log.answers(bed.episode, setting, group, question.expected if known else None, logits)


def cells(log: AnswerLog, name: str, setting: str, group: str) -> tuple[Cell, ...]:
    """A method's cells under `COLUMNS`; empty where nothing was answered."""
    row = log.row(name, setting, group)
    if row is None:
        return ()
    eta = None if name in (FULL, BLIND) else row.eta
    flips = None if name in (FULL, BLIND) else row.flips
    return (setting, LABELS.get(name, name), row.n, row.kl, eta, flips, row.agreement, row.accuracy)


def eta_gap(log: AnswerLog, better: str, worse: str, setting: str, group: str) -> tuple[Interval, int]:
    """How far a method's eta is below another's, from the same answers (paired), and how many they are."""
    kept = [
        one for one in log.noted
        if (one.setting, one.hop) == (setting, group) and {better, worse} <= one.losses.keys()
    ]  # fmt: skip
    if not kept:
        return Interval(float("nan"), float("nan"), float("nan")), 0
    above = np.array([one.losses[worse] - one.losses[better] for one in kept])
    below = np.array([one.losses[BLIND] for one in kept])
    return bootstrap_ratio(above, below, [one.episode for one in kept]), len(kept)


def quarter(adapter: Adapter, tokens: int) -> int:
    """The rank whose patch weighs a quarter of a chunk's KV."""
    return max(1, rank_for_share(0.25, tokens, adapter.layouts, range(len(adapter.layouts))))


def weight(adapter: Adapter, tokens: int, rank: int) -> float:
    """Bytes of a patch over those of the chunk's KV."""
    slots = [heads * width for one in adapter.layouts for heads, width in (one.keys, one.values)]
    return sum(min(rank, tokens, slot) * (tokens + slot) for slot in slots) / (tokens * sum(slots))


LABELS = {FULL: "re-prefill", BLIND: "blind reuse"}
