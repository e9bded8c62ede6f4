"""The bars themselves, and the result of holding the model to them: a table and a JSON file."""

import math
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.bars import BLIND, FULL, SETTINGS, BarsResult, Row
from benchmarks.table import Bar, show_bars

PATCH = "patch-25%"
EXACT = 1e-3


def bars_of(result: BarsResult) -> tuple[Bar, ...]:
    """The bars of task `maps`; none for other tasks, or where a strategy or kind that they speak of was left out."""
    measured = {(row.kind, row.strategy) for row in result.rows}
    needed = {(kind, strategy) for kind in ("single-hop", "multi-hop") for strategy in (FULL, BLIND, PATCH)}
    if result.task != "maps" or not needed <= measured:
        return ()
    bars = []
    for setting in SETTINGS:
        single, multi = (result.row(setting, kind, FULL).accuracy.value for kind in ("single-hop", "multi-hop"))
        bars += [
            Bar(f"re-prefill, single-hop, {setting}", single, 0.97, True),
            Bar(f"re-prefill, multi-hop, {setting}", multi, 0.95, True),
        ]
    for setting in SETTINGS:
        lost = abs(result.row(setting, "single-hop", BLIND).loss.value)
        bars.append(Bar(f"blind against re-prefill, single-hop, {setting}", lost, 0.01, False))
    for setting in reversed(SETTINGS):
        aim = setting == "visible"
        floor = result.row(setting, "multi-hop", BLIND).accuracy.value
        bars.append(Bar(f"blind, multi-hop, {setting}", floor, 0.5, False, aim=aim))
        for kind in ("multi-hop", "single-hop"):
            upper = result.row(setting, kind, PATCH).loss.high
            bars.append(Bar(f"{PATCH} loses, {kind}, {setting}, upper bound", upper, 0.01, False, aim=aim))
    bars.append(Bar("prefix against full, largest difference of a logit", result.exactness, EXACT, False))
    return tuple(bars)


def show(screen: Console, result: BarsResult) -> None:
    """Print the result."""
    screen.print(results_table(result))
    screen.print(
        "Intervals: 95 %, bootstrap by episode. loss: accuracy lost against re-prefill, paired, upper bound. same: "
        "answers equal to re-prefill's. eta: 1 - KL / KL of blind, in brackets the median over items with a deficit. "
        "flips: share of the answers changed by blind reuse that this restored."
    )
    bars = bars_of(result)
    if not bars:
        return
    show_bars(screen, bars)
    missed = [bar.name for bar in bars if not bar.holds and not bar.aim]
    said = f"missed: {'; '.join(missed)}" if missed else "every bar holds"
    screen.print(Text(said, "bold red" if missed else "bold green"))


def results_table(result: BarsResult) -> Table:
    """A line for each setting, kind of question and strategy."""
    title = f"{result.model} on {result.episodes} episodes of {result.task}, seed {result.seed}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    for name in ("n", "accuracy", "loss ≤", "same", "eta (median)", "flips"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        reuse = row.strategy != FULL
        found = row.accuracy
        if not reuse:
            table.add_row(Text(f"{row.setting}, {row.kind}", "bold"))
        table.add_row(
            f"  {row.strategy}",
            f"{row.items:,}",
            f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]",
            f"{row.loss.high:.3f}" if reuse else "",
            f"{row.agreement:.3f}" if reuse else "",
            _eta(row) if reuse and row.strategy != BLIND else "",
            _flips(row) if reuse and row.strategy != BLIND else "",
        )
    return table


def _eta(row: Row) -> str:
    known = not math.isnan(row.median_eta.value)
    return f"{row.eta.value:.3f} ({row.median_eta.value:.2f})" if known else f"{row.eta.value:.3f}       "


def _flips(row: Row) -> str:
    return f"{row.flips.value:.2f} of {row.flips.count:,}" if row.flips.count else "of none"


def report(result: BarsResult) -> dict[str, Any]:
    """The result as plain data."""
    return {**asdict(result), "bars": [bar.data() for bar in bars_of(result)]}
