"""One request at a time, as in MPIC's evaluation: what each method costs and loses, by its knob and by pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from benchmarks.serve.requests import LARGE_SIDE, SHOWN, SIDE
from benchmarks.table import Cell, Plot, Table
from benchmarks.traffic.requests import TrafficShape
from benchmarks.traffic.run import measure
from benchmarks.traffic.stages import MethodRun, Stage
from emblema.engine.engine import Engine
from emblema.eval.metrics import Share

FULL, PREFIX, REUSE, AUTO = "full", "prefix", "full-reuse", "auto"
MPIC, CACHEBLEND = "mpic", "cacheblend"
TOKENS = (4, 8, 16, 32, 64, 128)
"""K of `mpic-K`: tokens at the beginning of every picture that are computed."""
PERCENTS = (5, 10, 15, 20, 30, 50)
"""R of `cacheblend-R`: the share of the pictures' tokens that is computed."""
KNOBS = {MPIC: TOKENS, CACHEBLEND: PERCENTS}
LEADS = (PREFIX, REUSE, "cacheblend-15", "mpic-32", "patch-25%", AUTO)
PICTURES = (2, 4, 6, 8, 10)
WORLD = 12
"""Pages that requests are about."""
SETTINGS = {"shown": "rag-large", "slid": "rag-slid"}
"""Larger pages that the question reads all; and smaller ones whose legends the question does not read any more."""
MILLI = 1e3
HOW = (
    "The bundled model in one process, one request after another; every method has an engine and a store of its own on "
    "the same weights, and each request goes to every method, another one first each time. The pages were prefilled "
    f"before, as in MPIC. A request shows some of {WORLD} pages in random order. *shown*: pages of 258 rows, all of "
    "which the question reads, as in MPIC's data. *slid*: pages of 66 rows, the legends of which condition the maps "
    "after them and are not read by the question, so that an answer is lost where a map's rows lack what they took "
    "from a legend. TTFT: p50, and the p50 of the ratios to `prefix` for the same request. *rows run*: of the prompt's "
    "rows, those that the decoder ran, one that ran in some layers alone as that share of one. *agrees*: the first "
    "token is re-prefill's; *right*: the answer is the pages', in the place of MPIC's score by ChatGPT. "
)
FIGURES = {
    3: "As MPIC's figure 3: prefix caching and full reuse by the number of pictures.",
    9: "As MPIC's figure 9: time against answers, for every K of MPIC (the first K tokens of every picture computed) "
    "and every R of CacheBlend (the R % of the pictures' tokens computed whose KV deviates most).",
    13: "As MPIC's figure 13: the methods by the number of pictures.",
}
COLUMNS = ("TTFT ms", "TTFT to prefix", "rows run", "agrees", "right")


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """What is asked: so many requests of each kind, from a seed."""

    requests: int
    seed: int


def measure_knobs(engine: Engine, plan: SinglePlan, screen: Console) -> Table:
    """Return the table of every K and R at ten pictures (figure 9).

    Args:
        engine: that has loaded the model; its weights are shared.
        screen: shows how far it is.
    """
    named: list[tuple[str, int | None]] = [(PREFIX, None), (REUSE, None), ("patch-25%", None), (AUTO, None)]
    named += [(family, knob) for family, knobs in KNOBS.items() for knob in knobs]
    rows: list[tuple[Cell, ...]] = []
    for setting in SETTINGS:
        found = _measured(engine, plan, setting, SHOWN, [_strategy(*name) for name in named], screen)
        rows += [(setting, family, knob, *_figures(found, _strategy(family, knob))) for family, knob in named]
    plots = (
        Plot("K or R", "TTFT to prefix", "method", split="pages", doubling=True),
        Plot("K or R", "right", "method", split="pages", doubling=True),
        Plot("TTFT ms", "right", "method", split="pages"),
    )
    columns = ("pages", "method", "K or R", *COLUMNS)
    return Table("figure-9", "One request at a time, ten pictures", HOW + FIGURES[9], columns, tuple(rows), plots)


def measure_pictures(engine: Engine, plan: SinglePlan, screen: Console) -> tuple[Table, Table]:
    """Return the tables by the number of pictures: prefix caching and full reuse (figure 3), and all (figure 13)."""
    rows: list[tuple[Cell, ...]] = []
    for setting in SETTINGS:
        for pictures in PICTURES:
            found = _measured(engine, plan, setting, pictures, LEADS, screen)
            rows += [(setting, pictures, method, *_figures(found, method)) for method in LEADS]
    columns = ("pages", "pictures", "method", *COLUMNS)
    plots = tuple(Plot("pictures", name, "method", split="pages") for name in ("TTFT ms", "right"))
    two = tuple(row for row in rows if row[2] in (PREFIX, REUSE))
    first = Table("figure-3", "Prefix caching and full reuse by pictures", FIGURES[3], columns, two, plots)
    return first, Table("figure-13", "Methods by pictures", FIGURES[13], columns, tuple(rows), plots)


def _strategy(family: str, knob: int | None) -> str:
    return family if knob is None else f"{family}-{knob}"


def _measured(
    engine: Engine, plan: SinglePlan, setting: str, pictures: int, methods: Sequence[str], screen: Console
) -> dict[str, MethodRun]:
    """Return what each method did with the same requests, re-prefill among them."""
    slid = setting == "slid"
    shape = TrafficShape("rag", plan.requests, SIDE if slid else LARGE_SIDE, WORLD, pictures, slid=slid)
    names = dict.fromkeys((FULL, *methods))
    stage = Stage(SETTINGS[setting], shape)
    # What happens once in a process is in the first requests: medians leave it out.
    found = measure(engine, stage, plan.seed, {name: name for name in names}, screen, warm_up=0)
    return {run.method: run for run in found}


def _figures(found: dict[str, MethodRun], method: str) -> tuple[Cell, ...]:
    """Return the cells of `COLUMNS`."""
    run, prefix, full = found[method], found[PREFIX], found[FULL]
    count = len(run.ttft)
    return (
        MILLI * median(run.ttft),
        median(own / other for own, other in zip(run.ttft, prefix.ttft, strict=True)),
        sum(run.ran) / sum(full.prompt),
        Share(sum(run.agrees) / count, count),
        Share(sum(run.right) / count, count),
    )
