"""Rows as Markdown tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.fidelity.arms import BLIND, FULL, SHARES

Row = Mapping[str, Any]


def known(value: Any) -> bool:
    """Whether a figure is there: neither missing nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def number(value: Any, digits: int = 3) -> str:
    """A figure, or a dash where there is none."""
    if not known(value):
        return "–"
    shown = f"{value:.{digits}f}"
    return shown.lstrip("-") if float(shown) == 0 else shown


def small(value: Any) -> str:
    """Nats: three digits after the first that is not zero."""
    return "–" if not known(value) else "0" if value == 0 else f"{value:.2g}" if value >= 1e-3 else f"{value:.1e}"


def ranged(row: Row, name: str, digits: int = 3) -> str:
    """A figure with its interval."""
    if not known(row.get(name)):
        return "–"
    low, high = row["intervals"][name]
    return f"{number(row[name], digits)} [{number(low, digits)}, {number(high, digits)}]"


def flips(row: Row) -> str:
    """Flip recovery, always with the count."""
    return f"{ranged(row, 'flip_recovery', 2)} of {row['flips']}" if row["flips"] else "of none"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is aligned left."""
    rule = [":--", *("--:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def main_table(rows: Sequence[Row]) -> str:
    """A line for each strategy that stands by its own knob."""
    head = ("strategy", "KV bytes", "rows computed", "single-hop", "multi-hop", "KL", "eta", "median eta",
            "flips restored", "same answer")  # fmt: skip
    lines = []
    for row in rows:
        reused = row["strategy"] not in (FULL, BLIND)
        lines.append(
            (
                f"`{row['strategy']}`",
                f"{row['kv_bytes_share']:.1%}",
                f"{row['rows_computed_share']:.1%}",
                number(row["single_hop_accuracy"]),
                number(row["multi_hop_accuracy"]),
                small(row["kl"]),
                ranged(row, "eta") if reused else "",
                number(row["eta_median"], 2) if reused else "",
                flips(row) if reused else "",
                number(row["agreement"]) if row["strategy"] != FULL else "",
            )
        )
    return table(head, lines)


def matched_table(rows: Sequence[Row], shares: Sequence[float] = SHARES) -> str:
    """A line for each method at the same bytes, with its paired distance to the patch; empty if there is none."""
    at = {row["strategy"]: row for row in rows}
    methods = list(dict.fromkeys(name.partition("@")[0] for name in at if "@" in name))
    kept = [method for method in methods if any(f"{method}@{share:g}%" in at for share in shares)]
    if not kept:
        return ""
    head = ["method"]
    for share in shares:
        head += [f"bytes at {share:g} %", "eta", "patch's eta − its", "flips restored", "rows"]
    lines = []
    for method in kept:
        cells = [f"`{method}`"]
        for share in shares:
            row = at.get(f"{method}@{share:g}%")
            if row is None:
                cells += ["–"] * 5
                continue
            ahead = "" if method == "patch" else ranged(row, "eta_below_patch")
            cells += [f"{row['kv_bytes_share']:.1%}", ranged(row, "eta"), ahead, flips(row),
                      f"{row['rows_computed_share']:.0%}"]  # fmt: skip
        lines.append(cells)
    return table(head, lines)
