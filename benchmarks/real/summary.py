"""The figures of a run on a real model: one row for each anchor and method."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high
from typing import Any

from benchmarks.intervals import bootstrap, bootstrap_eta
from emblema.errors import EmblemaError

INFORMATIVE = ("two", "one", "direct")
SURE = 0.2
"""Re-prefill's own margin from which a question counts as one that it is sure of."""


def summary_rows(records: Sequence[Mapping[str, Any]], baseline: tuple[str, str]) -> list[dict[str, Any]]:
    """Return a row for each anchor and method.

    KL and agreement are of the first token of the informative questions, `mean` and `whole` of all tokens of all
    questions. `eta` is 1 - sum KL / sum KL of the baseline.

    Args:
        records: of `measure_real`, as plain data.
        baseline: the anchor and method that eta is counted from.

    Raises:
        EmblemaError: the baseline was not measured.
    """
    arms: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        arms.setdefault((record["anchor"], record["method"]), []).append(record)
    if baseline not in arms:
        raise EmblemaError(f"the baseline {baseline} is not among what was measured")
    # Every arm has the same questions in the same order.
    base = [record["first"] for record in arms[baseline] if record["kind"] in INFORMATIVE]
    return [_row(arm, own, base) for arm, own in arms.items()]


def _row(arm: tuple[str, str], own: Sequence[Mapping[str, Any]], blind: Sequence[float]) -> dict[str, Any]:
    asked = [record for record in own if record["kind"] in INFORMATIVE]
    sure = [record for record in asked if record["sure"] >= SURE]
    episodes = [record["episode"] for record in asked]
    first = bootstrap([record["first"] for record in asked], episodes)
    eta = bootstrap_eta([record["first"] for record in asked], blind, episodes)
    by_kind = {
        f"kl_{kind}": _mean(record["first"] for record in asked if record["kind"] == kind) for kind in INFORMATIVE
    }
    return {
        "anchor": arm[0],
        "method": arm[1],
        "prompts": len(own),
        "asked": len(asked),
        "rows": _mean(record["rows"] for record in own),
        "seconds": median_high(record["seconds"] for record in own),
        **by_kind,
        "kl": first.value,
        "kl_low": first.low,
        "kl_high": first.high,
        "eta": eta.value,
        "eta_low": eta.low,
        "eta_high": eta.high,
        "worse": _mean(record["first"] > lost + 1e-6 for record, lost in zip(asked, blind, strict=True)),
        "agree": _mean(record["agree"] for record in asked),
        "agree_sure": _mean(record["agree"] for record in sure),
        "right": _mean(record["right"] for record in asked),
        "mean": _mean(record["mean"] for record in own),
        "whole": _mean(record["whole"] for record in own),
    }


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held) if held else float("nan")
