"""One picture of all committed figures: what each method closes at the same bytes, on every model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.fidelity.arms import SHARES
from benchmarks.fidelity.plots import MARKS
from benchmarks.fidelity.summary import POOLED
from benchmarks.fidelity.tables import known

Row = Mapping[str, Any]
LEAST = -0.25
"""Methods that do more harm are drawn at the edge."""


def draw_overview(rows: Sequence[Row], path: Path) -> Path | None:
    """Eta of every method at each share of the bytes, slid and pooled; None if none was measured."""
    shown = [row for row in rows if row["task"] == POOLED and row["setting"] == "slid" and "@" in row["strategy"]]
    shown = [row for row in shown if known(row["eta"]) and row["kv_bytes_share"] > 0]
    if not shown:
        return None
    models = list(dict.fromkeys(row["model"] for row in shown))
    eta = {(row["model"], row["strategy"]): row for row in shown}
    methods = list(dict.fromkeys(row["strategy"].partition("@")[0] for row in shown))

    def mean(method: str) -> float:
        found = [row["eta"] for (_, name), row in eta.items() if name == f"{method}@{max(SHARES)}%"]
        return sum(found) / len(found) if found else LEAST

    methods.sort(key=mean)
    figure = Figure(figsize=(9.6, 0.34 * len(methods) + 1.5), layout="constrained")
    panels = figure.subplots(1, len(SHARES), sharey=True)
    for axes, share in zip(panels, SHARES, strict=True):
        for index, model in enumerate(models):
            places = [at for at, method in enumerate(methods) if (model, f"{method}@{share}%") in eta]
            held = [eta[model, f"{methods[at]}@{share}%"] for at in places]
            heights = [at + 0.16 * (index - (len(models) - 1) / 2) for at in places]
            values = [max(row["eta"], LEAST) for row in held]
            low = [value - max(row["intervals"]["eta"][0], LEAST) for value, row in zip(values, held, strict=True)]
            high = [max(row["intervals"]["eta"][1], LEAST) - value for value, row in zip(values, held, strict=True)]
            axes.errorbar(values, heights, xerr=[[max(0.0, one) for one in low], [max(0.0, one) for one in high]],
                          fmt=MARKS[index % len(MARKS)], markersize=4, linewidth=1, label=model)  # fmt: skip
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.axvline(1, color="0.6", linewidth=0.8)
        axes.set_xlim(LEAST - 0.05, 1.05)
        axes.set_title(f"{share} % of the KV bytes", fontsize=10)
        axes.set_xlabel("eta: share of blind reuse's KL removed, slid")
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(methods)), methods)
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path
