"""The page of results on real weights: a table for each model and for its traffic, made of committed figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.figures import read_figures, write_figures
from benchmarks.report import measured_on
from benchmarks.table import markdown_table

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row, Row], str]]
"""Columns of a table by their head: the cell of a row, given its run's options and the row."""

ANSWERS: Columns = {
    "model, captured after": lambda run, row: f"{run['model']}, {row['anchor']}",
    "method": lambda run, row: f"`{row['method']}`",
    "CPU": lambda run, row: _share(row["seconds"]),
    "KL": lambda run, row: _nats(row["kl"]),
    "whole answer": lambda run, row: _share(row["whole"]),
}
FIRST_TOKENS: Columns = {
    "captured after": lambda run, row: row["anchor"],
    "method": lambda run, row: f"`{row['method']}`",
    "rows": lambda run, row: _share(row["rows"]),
    "KL [95 %]": lambda run, row: f"{_nats(row['kl'])} [{_nats(row['kl_low'])}, {_nats(row['kl_high'])}]",
    "eta": lambda run, row: _share(row["eta"]),
    "worse": lambda run, row: _share(row["worse"]),
    "agree": lambda run, row: _share(row["agree"]),
    "sure": lambda run, row: _share(row["agree_sure"]),
}
TRAFFIC: Columns = {
    "model, traffic": lambda run, row: f"{run['model']}, {run['shape']}",
    "sentences": lambda run, row: "{}–{}".format(*run["sentences"]),
    "requests": lambda run, row: str(row["requests"]),
    "seed": lambda run, row: str(run["seed"]),
    "rows": lambda run, row: _share(row["rows"]),
    "CPU": lambda run, row: _share(row["seconds"]),
    "KL a token": lambda run, row: _nats(row["mean"]),
    "first token agrees": lambda run, row: _share(row["agree"]),
    "whole answer": lambda run, row: _share(row["whole"]),
    "fallbacks": lambda run, row: _share(row["fallbacks"]),
}
BOUNDS: Columns = {
    "model, method": lambda run, row: f"{row['model']}, `{row['method']}`",
    "alpha": lambda run, row: _share(row["alpha"]),
    "KL allowed": lambda run, row: _share(row["max_kl"]),
    "answers": lambda run, row: str(row["answers"]),
    "surer than 0.5, differ": lambda run, row: f"{row['sure']}, {row['sure_wrong']}",
    "splits certified": lambda run, row: str(row["certified"]),
    "margin": lambda run, row: _share(row["margin"]),
    "answers that stand": lambda run, row: _share(row["accepted"]),
    "bound kept": lambda run, row: str(row["kept"]),
    "most that differ": lambda run, row: f"{row['wrong']:.3f}",
    "largest KL": lambda run, row: _nats(row["kl"]),
    "closed after a shift": lambda run, row: str(row["closed"]),
    "requests until then, median, most": lambda run, row: f"{row['closes']}, {row['closes_last']}",
}


def collect_runs(paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Write `real.json` in a folder, out of the files of runs; returns what it holds."""
    held = [read_figures(path) for path in paths]
    traffic = [run for run in held if "shape" in run["options"]]
    bounds = [run for run in held if "bound" in run["options"]]
    speeds = [run for run in held if "speed" in run["options"]]
    papers = [run for run in held if run["options"].get("every")]
    runs = [run for run in held if not any(run in others for others in (traffic, bounds, speeds, papers))]
    figures = {"runs": runs, "papers": papers, "traffic": traffic, "bounds": bounds, "speeds": speeds}
    return read_figures(write_figures(figures, folder / "real.json"))


def write_real_page(figures: Mapping[str, Any], folder: Path) -> Path:
    """Make the tables of `real.md` in a folder; returns the page's path.

    Args:
        figures: `runs`, `papers`, `traffic`, `bounds` and `speeds`, each a list of runs with their options,
            environment and rows.
        folder: of the page.
    """
    blocks: dict[str, str] = {}
    if figures["runs"]:
        blocks["answers"] = _answers(figures["runs"])
    for run in figures.get("papers", ()):
        blocks[f"{run['options']['model']} first tokens"] = _first_tokens(run)
    if figures["traffic"]:
        blocks["traffic"] = _rows_table(TRAFFIC, figures["traffic"])
    if figures.get("bounds"):
        blocks["bound"] = _rows_table(BOUNDS, figures["bounds"])
    if figures.get("speeds"):
        blocks["speed"] = "\n\n".join(map(_speed, figures["speeds"]))
    return write_blocks(folder / "real.md", "On real weights", blocks)


def _answers(runs: Sequence[Row]) -> str:
    """Return the table of runs with whole answers: a line for each model, anchor and method."""
    told = [
        f"{run['options']['model']}: seed {run['options']['seed']}, {run['rows'][0]['prompts']} prompts a line"
        for run in runs
    ]
    return f"{'; '.join(told)}.\n\n{_rows_table(ANSWERS, runs)}"


def _first_tokens(run: Row) -> str:
    """Return the table of a run of first tokens alone: answers have no length, and re-prefill's seconds say nothing."""
    options, asked = run["options"], run["rows"][0]["asked"]
    told = f"Seed {options['seed']}, {options['episodes']} episodes, {asked} questions a line"
    return f"{told}; {measured_on(run['environment'])}.\n\n{_rows_table(FIRST_TOKENS, [run])}"


def _rows_table(columns: Columns, runs: Sequence[Row]) -> str:
    lines = [[cell(run["options"], row) for cell in columns.values()] for run in runs for row in run["rows"]]
    return markdown_table(tuple(columns), lines)


def _speed(run: Row) -> str:
    """Return a line for each way, with its share of a full prefill's seconds at each length."""
    lengths = dict.fromkeys(row["tokens"] for row in run["rows"])
    held = {(row["tokens"], row["way"]): row for row in run["rows"]}
    ways = dict.fromkeys(row["way"] for row in run["rows"])
    lines = [
        (
            f"`{way}`",
            *(_share(held[length, way]["share"]) for length in lengths),
            _share(held[max(lengths), way]["rows"]),
        )
        for way in ways
    ]
    lines.append(("full, seconds", *(f"{held[length, 'full']['seconds']:.1f}" for length in lengths), "–"))
    told = f"{run['options']['model']}, seed {run['options']['seed']}; {measured_on(run['environment'])}."
    head = ("way", *(f"{length:,} tokens" for length in lengths), "rows at most tokens")
    return f"{told}\n\n{markdown_table(head, lines)}"


def _share(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _nats(value: float | None) -> str:
    return _share(value, 3)
