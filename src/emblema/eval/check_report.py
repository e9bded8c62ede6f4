"""Report a check: tables, one sentence and plain data."""

import math
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from emblema.engine.engine import Engine
from emblema.eval.check import BLIND, FULL, QUERY, SETTINGS, CheckResult, CheckRow

SMALL = 1e-2
"""Nats of mean divergence that are called small."""


def selfcheck_table(model: str, engine: Engine) -> Table:
    """Return what the model's self-check measured, as a table."""
    dtype = str(engine.adapter.dtype).removeprefix("torch.")
    title = f"self-check of {model}: {engine.selfcheck.family}, {len(engine.adapter.layouts)} layers, {dtype}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check")
    for name in ("measured", "bound"):
        table.add_column(name, justify="right")
    for name in ("", "worst at"):
        table.add_column(name)
    for check in engine.selfcheck.checks:
        mark = Text("passed", "green") if check.passed else Text("FAILED", "bold red")
        table.add_row(check.name, f"{check.measured:.1e}", f"{check.bound:.0e}", mark, check.where)
    return table


def fidelity_table(result: CheckResult) -> Table:
    """Return a table with a line for each setting and strategy."""
    prompts = f"{len(result.orders)} orders of {result.pictures} pictures, {len(result.questions)} questions"
    table = Table(title=f"against re-prefill: {prompts}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    for name in ("rank", "bytes", "rows", "mean KL", "worst KL", "eta", "first", "answer", "flips"):
        table.add_column(name, justify="right", no_wrap=True)
    for setting in SETTINGS:
        table.add_row(Text(setting, "bold"))
        for strategy in result.strategies:
            table.add_row(*_line(result.row(setting, strategy)), end_section=strategy == result.strategies[-1])
    return table


def _line(row: CheckRow) -> tuple[str, ...]:
    cells = [f"  {row.strategy}", "", "", f"{row.computed:.0f}"]
    if row.strategy == FULL:
        return tuple(cells)
    shares = (f"{row.first_token:.0%}", f"{row.greedy:.0%}")
    measured = (f"{row.divergence:.1e}", f"{row.worst:.1e}")
    if row.strategy == BLIND:
        return (*cells, *measured, "", *shares)
    if row.unsure is None:
        cells[1:3] = [f"{row.rank}", f"{row.patch_share:.0%}"]
    flips = f"{row.flips.value:.2f} of {row.flips.count}" if row.flips.count else "of none"
    return (*cells, *measured, f"{row.eta:.3f}", *shares, flips)


def verdict(result: CheckResult) -> str:
    """Return what was found of these pictures on this model, in one sentence."""
    blind = [result.row(setting, BLIND) for setting in SETTINGS]
    prompts = sum(row.prompts for row in blind)
    changed = round(sum((1 - row.first_token) * row.prompts for row in blind))
    worst = max(row.divergence for row in blind)
    if all(row.greedy == 1 for row in blind) and worst < SMALL:
        return (
            f"On these pictures blind reuse answers as re-prefill on all {prompts} prompts (mean KL at most "
            f"{worst:.1e} nats): no patch is needed."
        )
    names = [name for name in result.strategies if name not in (FULL, BLIND, QUERY.name)]
    patched = [[result.row(setting, name) for setting in SETTINGS] for name in names]
    patched = sorted((rows for rows in patched if _weight(rows) < 1), key=_weight)
    start = f"On these pictures blind reuse changes the first token on {changed} of {prompts} prompts"
    for rows in patched:
        if all(row.first_token == 1 and row.greedy == 1 for row in rows):
            found = f"gives re-prefill's whole answer on all of them and removes {_removed(rows)} of the KL"
            return f"{start}; {_named(rows)} {found}."
    best = max(patched, key=lambda rows: min((row.greedy, -row.divergence) for row in rows))
    left = round(sum((1 - row.greedy) * row.prompts for row in best))
    return (
        f"{start}; the best patch measured, {_named(best)}, removes {_removed(best)} of the KL and leaves {left} of "
        f"{prompts} whole answers changed: take a higher rank, or full, where that matters."
    )


def new_combinations(result: CheckResult) -> str:
    """Return how `auto` would answer on these pictures where a combination is new to it, in one sentence."""
    rows = [result.row(setting, QUERY.name) for setting in SETTINGS]
    prompts = sum(row.prompts for row in rows)
    unsure = sum((row.unsure or 0.0) * row.prompts for row in rows)
    wrong = sum((row.wrong or 0.0) * (1 - (row.unsure or 0.0)) * row.prompts for row in rows)
    sure = prompts - round(unsure)
    return (
        f"In a combination that is new, {QUERY.name} is sure on {sure} of {prompts} prompts and gives another first "
        f"token than re-prefill on {round(wrong)} of these; auto computes the other {prompts - sure} in full."
    )


def _named(rows: list[CheckRow]) -> str:
    return f"{rows[0].strategy} ({_weight(rows):.0%} of the KV's bytes)"


def _weight(rows: list[CheckRow]) -> float:
    return max(row.patch_share for row in rows)


def _removed(rows: list[CheckRow]) -> str:
    known = [row.eta for row in rows if not math.isnan(row.eta)]
    least = min(known, default=0.0)
    return "none" if least <= 0 else f"{least:.1%} or more" if least < 0.9995 else "practically all"


def report(model: str, engine: Engine, result: CheckResult, pictures: list[str]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "model": model,
        "family": engine.selfcheck.family,
        "dtype": str(engine.adapter.dtype).removeprefix("torch."),
        "device": str(engine.adapter.device),
        "selfcheck": [{**asdict(check), "passed": check.passed} for check in engine.selfcheck.checks],
        "files": pictures,
        "verdict": verdict(result),
        "new_combinations": new_combinations(result),
        **asdict(result),
    }
