"""Records turned into rows: one for each model, task, setting and strategy, with intervals by episode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityRecord
from benchmarks.intervals import Interval, bootstrap, bootstrap_eta, bootstrap_ratio

POOLED = "pooled"
"""Stands in a row's task for all tasks of a run together."""
FigureRow = Mapping[str, Any]
"""Figures of one strategy, as `rows_of` makes them and files keep them."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StrategyAnswers:
    """Records of one strategy laid end to end, question by question."""

    episodes: NDArray[np.str_]
    multi_hop: NDArray[np.bool_]
    answers: tuple[tuple[int, ...], ...]
    right: Numbers
    divergences: Numbers
    kv_bytes_share: float
    rows_computed_share: float

    @classmethod
    def of(cls, records: Sequence[FidelityRecord]) -> "StrategyAnswers":
        """Return the answers of records in their order."""
        return cls(
            np.array([f"{record.task}/{record.episode}" for record in records for _ in record.answers]),
            np.array([hop for record in records for hop in record.multi_hop], dtype=np.bool_),
            tuple(answer for record in records for answer in record.answers),
            np.array([found for record in records for found in record.right], dtype=np.float64),
            np.array([value for record in records for value in record.divergences], dtype=np.float64),
            float(np.mean([record.kv_bytes_share for record in records])),
            float(np.mean([record.rows_computed_share for record in records])),
        )

    def same(self, other: "StrategyAnswers") -> Numbers:
        """Return 1 for each answer that is the other's, else 0."""
        return np.array([own == its for own, its in zip(self.answers, other.answers, strict=True)], dtype=np.float64)


def rows_of(records: Iterable[FidelityRecord]) -> list[dict[str, Any]]:
    """Return rows of all records; where there are several tasks, with rows over all of them together.

    Only items that every strategy of a setting has answered count, so that all rows of a table are on the same items.
    """
    groups: dict[tuple[str, str, str], dict[str, dict[str, FidelityRecord]]] = {}
    tasks: dict[tuple[str, str], set[str]] = {}
    for record in records:
        tasks.setdefault((record.model, record.setting), set()).add(record.task)
        for task in (record.task, POOLED):
            group = groups.setdefault((record.model, task, record.setting), {})
            group.setdefault(record.strategy, {})[f"{record.task}/{record.item}"] = record
    rows = []
    for (model, task, setting), strategies in groups.items():
        if task != POOLED or len(tasks[model, setting]) > 1:
            place = {"model": model, "task": task, "setting": setting}
            rows += [{**place, **figures} for figures in _group_figures(strategies)]
    return rows


def _group_figures(strategies: Mapping[str, Mapping[str, FidelityRecord]]) -> list[dict[str, Any]]:
    """Return figures of each strategy on the items that all have answered; none without re-prefill and blind reuse."""
    if FULL not in strategies or BLIND not in strategies:
        return []
    shared = [item for item in strategies[FULL] if all(item in found for found in strategies.values())]
    if not shared:
        return []
    every = {name: StrategyAnswers.of([found[item] for item in shared]) for name, found in strategies.items()}
    return [
        {"strategy": name, "n": len(own.right), "items": len(shared), **_figures(every[FULL], every[BLIND], own)}
        for name, own in every.items()
    ]


def _figures(full: StrategyAnswers, blind: StrategyAnswers, own: StrategyAnswers) -> dict[str, Any]:
    episodes, same = own.episodes, full.same(own)
    flipped = 1 - full.same(blind)
    found: dict[str, Interval] = {
        "accuracy": bootstrap(own.right, episodes),
        "single_hop_accuracy": _share(own.right, ~own.multi_hop, episodes),
        "multi_hop_accuracy": _share(own.right, own.multi_hop, episodes),
        "kl": bootstrap(own.divergences, episodes),
        "eta": bootstrap_eta(own.divergences, blind.divergences, episodes),
        "flip_recovery": _share(same, flipped > 0, episodes),
        "agreement": bootstrap(same, episodes),
        "accuracy_lost": bootstrap(full.right - own.right, episodes),
    }
    return {
        **{name: interval.value for name, interval in found.items()},
        "flips": int(flipped.sum()),
        "kv_bytes_share": own.kv_bytes_share,
        "rows_computed_share": own.rows_computed_share,
        "intervals": {name: [interval.low, interval.high] for name, interval in found.items()},
    }


def _share(values: Numbers, chosen: NDArray[np.bool_], episodes: NDArray[np.str_]) -> Interval:
    if not chosen.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    return bootstrap_ratio(values * chosen, chosen.astype(np.float64), episodes)
