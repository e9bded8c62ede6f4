"""Commands that load the servers and the embedded engine: stages and rates, and a soak."""

import os
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Report, Seed, drawn_seed, model_loader
from emblema.cli.options import Device, Model, Plain


def load(
    engines: Annotated[str, typer.Option(help="engine, serve, vllm, sglang, with commas.")] = "engine",
    stages: Annotated[str | None, typer.Option(help="Stages, with commas; the six of traffic if left out.")] = None,
    methods: Annotated[str | None, typer.Option(help="Strategies, with commas; each engine's own if left out.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a stage, or of all rates.")] = 200,
    pages: Annotated[int, typer.Option(help="Pages that requests of rag are about.")] = 30,
    shown: Annotated[int, typer.Option(help="Pages in a request of rag.")] = 8,
    rates: Annotated[
        str | None, typer.Option(help="Requests a second of a server, such as 0,4,8,inf; one after another without.")
    ] = None,
    shape: Annotated[str, typer.Option(help="The model of random weights: 137m, or qwen2.5-vl-7b for a GPU.")] = "137m",
    dtype: Annotated[str, typer.Option(help="Of that model: bfloat16, float16 or float32.")] = "float32",
    random: Annotated[
        bool, typer.Option("--random", help="Measure all stages of servers on that model, not only `first`.")
    ] = False,
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write the page of the figures.")] = False,
    seed: DrawnSeed = None,
    report: Report = Path("build/load"),
    model: Model = "reference",
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Load the embedded engine or servers: first tokens, throughput, processor time, agreement with plain prefill."""
    from benchmarks.load.figures import LISTS, put, read_load, write_load
    from benchmarks.load.page import write_load_page
    from benchmarks.load.run import LoadBench
    from benchmarks.load.stages import ENGINES, SIX, STAGES, stages_of
    from benchmarks.report import comma_list, parts_of
    from emblema.cli.screen import console, output_folder

    folder = output_folder(report, "--report")
    listing = folder / "load.json"
    screen, chosen = console(plain), drawn_seed(seed)
    found = read_load(listing) if page or listing.exists() else {name: [] for name in LISTS}
    if not page:
        command = f"python -m benchmarks {shlex.join(sys.argv[1:])}" + (f" --seed {chosen}" if seed is None else "")
        names = SIX if stages is None else parts_of(stages, STAGES)
        sent = rates_of(rates)
        bench = LoadBench(
            model, lambda: model_loader(device, screen)(model), command, chosen, screen, shape, dtype, random
        )
        for engine in parts_of(engines, ENGINES):
            for stage, traffic in stages_of(names, requests, pages, shown).items():
                put(found, bench.measure(engine, stage, traffic, comma_list(methods or ""), sent))
                write_load(found, listing)
    screen.print(f"report: {write_load_page(found, folder)}   figures: {listing}", soft_wrap=True)


def soak_serve(
    minutes: Annotated[float, typer.Option(min=0.01, help="Minutes of load.")] = 30.0,
    seed: Seed = 0,
    plain: Plain = False,
) -> None:
    """Soak `emblema serve` with mixed and hostile load, and hold what its process takes to what it was."""
    from benchmarks.load.soak import soak_server
    from benchmarks.table import show_bars, show_table
    from emblema.cli.screen import console

    screen, before = console(plain), os.getloadavg()[0]
    with TemporaryDirectory(prefix="emblema-soak-") as place:
        found = soak_server(minutes, seed, Path(place), lambda sample: screen.print(f"{sample.seconds:.0f} s"))
    table = found.table()
    load = f"load average {before:.1f} before and {os.getloadavg()[0]:.1f} at the end"
    show_table(screen, table, f"{table.title}, {load}")
    show_bars(screen, table.bars)
    if not all(bar.holds for bar in table.bars):
        raise typer.Exit(1)


def rates_of(text: str | None) -> tuple[float, ...]:
    """Return rates of a command line, rising.

    Raises:
        EmblemaError: one is no number from 0 on.
    """
    from benchmarks.report import comma_list
    from emblema.errors import EmblemaError

    parts = comma_list(text or "")
    if not all(part == "inf" or part.replace(".", "", 1).isdecimal() for part in parts):
        raise EmblemaError(f"--rates {text}: give requests a second with commas, 0 for one after another")
    return tuple(sorted(map(float, parts)))
