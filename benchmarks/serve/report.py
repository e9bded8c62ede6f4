"""The figures of the service as tables, on a page with plots."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy

from benchmarks.report import ModelTables, options_text, write_page
from benchmarks.rowfile import write_rows
from benchmarks.serve.load import AUTO, METHODS, PREFIX, RISE, LoadRun
from benchmarks.serve.requests import PAGES, SHOWN, SLOWER, TALKS, TEN
from benchmarks.serve.servers import EMBEDDED, VLLM
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.eval.metrics import Share

FIRST_STATED = 8.0
"""Conversations a second at which their bars were first stated."""
ENGINE_NAMES = {EMBEDDED: "Embedded engine", VLLM: "vLLM"}
PROTOCOL = (
    "This was written before the run. One server of an engine has all methods, each as a tenant of its own; `full` "
    "answers everything first, one request after another, and its answers are what the others are compared with. "
    "Requests arrive by a Poisson process of a fixed seed, the same moments for every method, whether or not those "
    "before are answered; waiting in the server counts. Rates rise, from none: one request after another, each sent "
    "when the one before is answered. Every rate has requests of its own, and at each the methods "
    "take turns, another one first each time, once the server is quiet. A method is sent no higher rate "
    f"when its answers a second have risen by less than {RISE - 1:.0%}: the server is full then. `talks` are "
    "conversations in the form of MMDU: four turns over ten pages in an order of its own, 4, 2, 2 and 2 pages, each "
    "turn sent whole, with all turns before it; the server is shown all pages once before. "
    f"`subsets`: {SHOWN} of {PAGES} pages in random order (traffic (a)); the pages were uploaded and prefilled before, "
    f"as in MPIC, and a request names their files. `subsets-large`: the same with pages of 258 rows in place of 66, "
    f"{SLOWER} times slower. `windows`: an agent's last {SHOWN} screenshots, sent whole at every turn (traffic (b)). "
    "`novelty`: conversations about pages that nobody has seen. The last two are sent to the "
    "embedded engine alone. TTFT is the client's, from the arrival to the first "
    "event with text. Tokens a second are all tokens made over the time from the first arrival to the last end; *CPU* "
    "is the time of all of the server's processors for an answer, which other work on the machine disturbs least. "
    "*rows taken* as the server counts them. *agrees*: the answer is that of `full`; *right*: it is the pages'."
)
METHODS_NOTE = (
    "`prefix`: the longest beginning that an earlier prompt had too, computed from there on; under vLLM its own "
    "prefix cache. `full-reuse`: the pictures' rows as they were prefilled alone, the text computed without them, as "
    "in MPIC. `cacheblend-15`: 15 % of the pictures' tokens computed again. vLLM's pages hold rows of one forward, so "
    "both are the embedded engine's alone; in their place `blind` has the text see the pictures. `mpic-32`: the first "
    "32 tokens of every picture computed. `patch-25%`: rows corrected for the pictures before them; in an order that "
    "is new the corrections are formed first, by running all rows; under vLLM the prompt is computed, and they are "
    "formed of its rows. `auto`: the default."
)
COLUMNS = (
    "rate", "method", "TTFT p50 ms", "TTFT p99 ms", "output tokens a second", "answers a second",
    "CPU ms an answer", "rows taken", "agrees", "right",
)  # fmt: skip
PLOTTED = ("TTFT p50 ms", "output tokens a second")
"""As in MPIC's figure 10."""
MILLI = 1e3


def load_tables(runs: Sequence[LoadRun]) -> list[Table]:
    """Return a table for each engine and traffic, with its bars."""
    parts = dict.fromkeys((run.engine, run.traffic) for run in runs)
    return [_load_table([run for run in runs if (run.engine, run.traffic) == part]) for part in parts]


def _load_table(runs: Sequence[LoadRun]) -> Table:
    engine, traffic = runs[0].engine, runs[0].traffic
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            run.rate or None,
            run.method,
            MILLI * float(numpy.percentile(run.ttfts, 50)),
            MILLI * float(numpy.percentile(run.ttfts, 99)),
            run.tokens / run.seconds,
            len(run.ttfts) / run.seconds,
            MILLI * run.processor / len(run.ttfts),
            run.cached / run.prompt,
            Share(run.agreeing / len(run.ttfts), len(run.ttfts)),
            Share(run.right / len(run.ttfts), len(run.ttfts)),
        )
        for run in sorted(runs, key=lambda run: (run.rate, METHODS[engine].index(run.method)))
    )
    rising = len({run.rate for run in runs}) > 1
    plots = tuple(Plot("rate", name, "method", doubling=True) for name in PLOTTED) if rising else ()
    title = f"{ENGINE_NAMES[engine]}: {traffic}"
    return Table(f"{engine}-{traffic}", title, "", COLUMNS, rows, plots, tuple(_bars(runs)))


def _bars(runs: Sequence[LoadRun]) -> Iterator[Bar]:
    """Yield what has to hold of `auto` beside `prefix`: time to the first token without a queue, tokens a second."""
    engine, traffic = runs[0].engine, runs[0].traffic
    auto, prefix = ({run.rate: run for run in runs if run.method == method} for method in (AUTO, PREFIX))
    both = sorted(auto.keys() & prefix.keys())
    if traffic not in (TALKS, *TEN) or not both:
        return
    about = traffic if engine == EMBEDDED else f"{engine}, {traffic}"
    # Ten pictures where nothing waits yet; conversations where their bar was stated first.
    rate = (FIRST_STATED if FIRST_STATED in both else both[-1]) if traffic == TALKS else both[0]
    count = len(auto[rate].ttfts)
    share = float(numpy.median(auto[rate].ttfts) / numpy.median(prefix[rate].ttfts))
    when = f"at {rate:g} a second" if rate else "one after another"
    yield Bar(f"{about}: TTFT p50 of auto to prefix's, {when}", share, 0.25, least=False, count=count)
    if traffic == TALKS:
        faster = _speed(auto[rate]) / _speed(prefix[rate])
        yield Bar(f"{about}: tokens a second of auto to prefix's at {rate:g} a second", faster, 2.0, count=count)
    most, other = (max(_speed(run) for run in of.values()) for of in (auto, prefix))
    sent = sum(len(run.ttfts) for run in auto.values())
    yield Bar(f"{about}: tokens a second of auto to prefix's, the most of each", most / other, 2.0, count=sent)
    spent, saved = (_processor(of.values()) for of in (auto, prefix))
    yield Bar(f"{about}: answers a processor second, auto's to prefix's", saved / spent, 2.0, count=sent, aim=True)


def _processor(runs: Iterable[LoadRun]) -> float:
    """Return the processor seconds of an answer, over all rates."""
    every = list(runs)
    return sum(run.processor for run in every) / sum(len(run.ttfts) for run in every)


def _speed(run: LoadRun) -> float:
    return run.tokens / run.seconds


def write_serve(
    tables: Sequence[Table], runs: Sequence[LoadRun], command: str, options: Mapping[str, Any], label: str, folder: Path
) -> Path:
    """Write `serve.md`, its plots and `serve.json` into a folder; returns the page's path."""
    found = ModelTables(label, tuple(tables))
    # What was measured under load is in the rows; its tables would say it again.
    kept = ModelTables(label, tuple(table for table in tables if table.columns != COLUMNS))
    bars = [bar.data() for bar in found.bars]
    made = {"options": dict(options), **kept.data(), "bars": bars, "rows": [asdict(run) for run in runs]}
    write_rows(made, folder / "serve.json")
    words = f"`{command}`: {options_text(options)}; figures in [serve.json](serve.json)"
    return write_page(folder / "serve.md", "The service, measured", words, [found], remarks=(METHODS_NOTE, PROTOCOL))
