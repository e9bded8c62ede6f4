"""Records turned into rows: one for each model, task, setting and strategy, with intervals by episode."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.measure import FidelityRecord
from benchmarks.intervals import Interval, bootstrap, bootstrap_eta, bootstrap_ratio
from emblema.eval.metrics import median_eta
from emblema.link.policy.margins import DEFAULT as LEAST_MARGIN

POOLED = "pooled"
"""Stands in a row's task for all tasks of a run together."""
PATCH, DEEP = "patch", "patch-deep"

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StrategyAnswers:
    """Records of one strategy laid end to end, question by question.

    Attributes:
        margins: of the first tokens; empty where a record has none.
        rows: rows computed over the prompt's, of the question's item.
    """

    episodes: NDArray[np.str_]
    multi_hop: NDArray[np.bool_]
    answers: tuple[tuple[int, ...], ...]
    right: Numbers
    divergences: Numbers
    judged: Numbers
    margins: Numbers
    rows: Numbers
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
            np.array([score for record in records for score in record.judged], dtype=np.float64),
            np.array(
                [value for record in records for value in record.margins]
                if all(record.margins for record in records)
                else [],
                dtype=np.float64,
            ),
            np.array([record.rows_computed_share for record in records for _ in record.answers], dtype=np.float64),
            float(np.mean([record.kv_bytes_share for record in records])),
            float(np.mean([record.rows_computed_share for record in records])),
        )

    def same(self, other: "StrategyAnswers") -> NDArray[np.bool_]:
        """Return whether each answer is the other's."""
        return np.array([own == its for own, its in zip(self.answers, other.answers, strict=True)], dtype=np.bool_)


def rows_of(records: Iterable[FidelityRecord]) -> list[dict[str, Any]]:
    """Return rows of all records; where there are several tasks, with rows over all of them together.

    Only items that every strategy of a setting has answered count, so that all rows of a table are on the same items.
    """
    groups: dict[tuple[str, str, str], dict[str, dict[str, FidelityRecord]]] = {}
    for record in records:
        for task in (record.task, POOLED):
            group = groups.setdefault((record.model, task, record.setting), {})
            group.setdefault(record.strategy, {})[f"{record.task}/{record.item}"] = record
    tasks = {(model, setting): set[str]() for model, _, setting in groups}
    for model, task, setting in groups:
        tasks[model, setting].add(task)
    rows = []
    for (model, task, setting), strategies in groups.items():
        if task != POOLED or len(tasks[model, setting]) > 2:
            rows += _rows(model, task, setting, strategies)
    return uniform(rows)


def uniform(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that all have the same figures: NaN where a row had none."""
    figures = dict.fromkeys(name for row in rows for name in row["intervals"])
    none = float("nan")
    return [
        {
            **dict.fromkeys(figures, none),
            **row,
            "intervals": {**dict.fromkeys(figures, (none, none)), **row["intervals"]},
        }
        for row in rows
    ]


def _rows(
    model: str, task: str, setting: str, strategies: Mapping[str, Mapping[str, FidelityRecord]]
) -> list[dict[str, Any]]:
    if FULL not in strategies or BLIND not in strategies:
        return []
    shared = [item for item in strategies[FULL] if all(item in found for found in strategies.values())]
    if not shared:
        return []
    every = {name: StrategyAnswers.of([found[item] for item in shared]) for name, found in strategies.items()}
    return [
        {
            "model": model,
            "task": task,
            "setting": setting,
            "strategy": name,
            "n": len(own.right),
            "items": len(shared),
            **_figures(
                every[FULL],
                every[BLIND],
                own,
                {
                    "patch": _at_its_share(name, PATCH, every),
                    "deep": _at_its_share(name, DEEP, every),
                    "like": _alike(name, every),
                },
            ),
        }
        for name, own in every.items()
    ]


def _figures(
    full: StrategyAnswers,
    blind: StrategyAnswers,
    own: StrategyAnswers,
    beside: Mapping[str, StrategyAnswers | None],
) -> dict[str, Any]:
    episodes = own.episodes
    flipped = ~full.same(blind)
    restored = flipped & full.same(own)
    median = median_eta(own.divergences, blind.divergences)
    found: dict[str, Interval] = {
        "accuracy": bootstrap(own.right, episodes),
        "single_hop_accuracy": _share(own.right, ~own.multi_hop, episodes),
        "multi_hop_accuracy": _share(own.right, own.multi_hop, episodes),
        "kl": bootstrap(own.divergences, episodes),
        "eta": bootstrap_eta(own.divergences, blind.divergences, episodes),
        "flip_recovery": _share(restored.astype(np.float64), flipped, episodes),
        "agreement": bootstrap(full.same(own).astype(np.float64), episodes),
        "accuracy_lost": bootstrap(full.right - own.right, episodes),
    }
    for against, other in beside.items():
        if other is not None:
            lost = own.divergences - other.divergences
            found[f"eta_below_{against}"] = bootstrap_ratio(lost, blind.divergences, episodes)
    if len(own.judged) == len(own.right):
        found["judged"] = bootstrap(own.judged, episodes)
    if len(own.margins):
        found |= _certified(full, own)
    return {
        **{name: interval.value for name, interval in found.items()},
        "eta_median": median.value,
        "eta_median_n": median.count,
        "flips": int(flipped.sum()),
        "kv_bytes_share": own.kv_bytes_share,
        "rows_computed_share": own.rows_computed_share,
        "intervals": {name: [interval.low, interval.high] for name, interval in found.items()},
        "kl_quartiles": [float(value) for value in np.quantile(own.divergences, (0, 0.25, 0.5, 0.75, 1))],
    }


def _certified(full: StrategyAnswers, own: StrategyAnswers) -> dict[str, Interval]:
    """Return what the first token's margin decides: which answers are accepted, and which are computed in full."""
    unsure, same = own.margins < LEAST_MARGIN, full.same(own)
    return {
        "unsure": bootstrap(unsure.astype(np.float64), own.episodes),
        "wrong_accepted": _share((~same).astype(np.float64), ~unsure, own.episodes),
        "agreement_with_fallbacks": bootstrap((same | unsure).astype(np.float64), own.episodes),
        "rows_with_fallbacks": bootstrap(own.rows + unsure, own.episodes),
    }


def _share(values: Numbers, chosen: NDArray[np.bool_], episodes: NDArray[np.str_]) -> Interval:
    if not chosen.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    return bootstrap_ratio(values * chosen, chosen.astype(np.float64), episodes)


def _alike(name: str, every: Mapping[str, StrategyAnswers]) -> StrategyAnswers | None:
    """Return the strategy whose rows or bytes a method is given, for one at those."""
    found = re.fullmatch(r"[^@]+@[0-9.]+x-(.+)", name)
    return None if found is None else every.get(found[1])


def _at_its_share(name: str, method: str, every: Mapping[str, StrategyAnswers]) -> StrategyAnswers | None:
    """Return a method at the same share of bytes, for one at a share."""
    _, at, share = name.partition("@")
    return every.get(f"{method}@{share}") if at else None
