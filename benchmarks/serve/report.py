"""The figures of the service as tables, on a page with plots."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy

from benchmarks.report import ModelTables, options_text, write_page
from benchmarks.rowfile import write_rows
from benchmarks.serve.load import LoadRun
from benchmarks.table import Bar, Plot, Table
from emblema.eval.metrics import Share

PROTOCOL = (
    "This was written before the run. Each method has a server process and a store of its own on the same "
    "machine; `full` answers everything first, one request after another, and its answers are what the others are "
    "compared with. Conversations are those of MMDU in form: four turns over ten pages in an order of its own, 4, "
    "2, 2 and 2 pages, each turn sent whole, with all turns before it. Turns arrive by a Poisson process of a "
    "fixed seed, the same moments for every method, whether or not those before are answered; waiting in the "
    "server counts. Before them the server is shown all pages once. `novelty` is the same with pages that nobody "
    "has seen. Methods run one after another, so that other work on the machine may weigh on one and not on "
    "another; the load average is told. TTFT is the client's, from the arrival to the first event with text. "
    "Tokens a second are all tokens made over the time from the first arrival to the last end: below saturation "
    "the rate of arrival bounds it. *agrees*: the answer is that of `full`; *right*: it is the pages'."
)
VLLM = "vLLM behind the same router is measured by `python -m benchmarks vllm`; it is not part of this run."


def load_table(runs: Sequence[LoadRun], seconds: float) -> Table:
    """Return the table of load, with its bars at the highest rate."""
    rows = tuple(
        (
            run.traffic,
            f"{run.rate:g}",
            run.method,
            1e3 * float(numpy.percentile(run.ttfts, 50)),
            1e3 * float(numpy.percentile(run.ttfts, 99)),
            run.tokens / run.seconds,
            len(run.ttfts) / run.seconds,
            run.cached / run.prompt,
            Share(run.agreeing / len(run.ttfts), len(run.ttfts)),
            Share(run.right / len(run.ttfts), len(run.ttfts)),
        )
        for run in runs
    )
    columns = (
        "traffic", "rate", "method", "TTFT p50 ms", "TTFT p99 ms", "output tokens a second", "answers a second",
        "rows taken", "agrees", "right",
    )  # fmt: skip
    only = ("traffic", "talks")
    plots = tuple(
        Plot("rate", name, "method", bars=True, only=only)
        for name in ("TTFT p50 ms", "TTFT p99 ms", "output tokens a second", "agrees")
    )
    highest = max(run.rate for run in runs)
    at = {run.method: run for run in runs if run.traffic == "talks" and run.rate == highest}
    share = float(numpy.median(at["auto"].ttfts) / numpy.median(at["prefix"].ttfts))
    faster = at["auto"].tokens / at["auto"].seconds / (at["prefix"].tokens / at["prefix"].seconds)
    bars = (
        Bar(f"TTFT p50 of auto to prefix's at {highest:g} a second", share, 0.25, least=False, count=len(rows)),
        Bar(f"tokens a second of auto to prefix's at {highest:g} a second", faster, 2.0, count=len(rows)),
    )
    return Table("load", "Conversations at a rate", PROTOCOL, columns, rows, plots, bars, seconds)


def write_serve(
    tables: Sequence[Table], runs: Sequence[LoadRun], command: str, options: Mapping[str, Any], label: str, folder: Path
) -> Path:
    """Write `serve.md`, its plots and `serve.json` into a folder; returns the page's path."""
    found = ModelTables(label, tuple(tables))
    write_rows({"options": dict(options), **found.data(), "rows": [asdict(run) for run in runs]}, folder / "serve.json")
    words = f"`{command}`: {options_text(options)}; figures in [serve.json](serve.json)"
    return write_page(folder / "serve.md", "The service, measured", words, [found], remarks=(VLLM,))
