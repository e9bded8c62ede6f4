"""Commands that measure a running `emblema serve`: under load, and for half an hour."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import Parts, Report, Seed, model_loader
from emblema.cli.options import Plain

if TYPE_CHECKING:
    from benchmarks.serve.load import LoadRun
    from benchmarks.table import Table


def serve(
    only: Parts = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of decoding.")] = 7,
    rates: Annotated[str, typer.Option(help="Requests a second, with commas.")] = "2,4,8",
    talks: Annotated[int, typer.Option("--conversations", min=1, help="Conversations of four turns at a rate.")] = 8,
    seed: Seed = 0,
    report: Report = Path("serve"),
    plain: Plain = False,
) -> None:
    """Measure the service: replies decoded together, and conversations that arrive at rising rates, by method."""
    from benchmarks.report import ModelTables, comma_list, parts_of, report_places, show_tables
    from benchmarks.serve.decoding import measure_decoding
    from benchmarks.serve.load import LoadPlan, measure_load
    from benchmarks.serve.report import load_table, write_serve
    from emblema.cli.screen import console
    from emblema.errors import EmblemaError

    parts = parts_of(only, ("decoding", "load"))
    try:
        sent = tuple(sorted(float(rate) for rate in comma_list(rates)))
    except ValueError as error:
        raise EmblemaError(f"--rates {rates}: {error}") from error
    if not sent or sent[0] <= 0:
        raise EmblemaError(f"--rates {rates}: give requests a second, above zero, with commas")
    folder, _ = report_places(report, None, "serve.json")
    screen, before = console(plain), os.getloadavg()[0]
    tables: list[Table] = []
    runs: list[LoadRun] = []

    def say(line: str) -> None:
        screen.print(line, soft_wrap=True, markup=False)

    def tell(run: "LoadRun") -> None:
        say(f"{run.traffic} {run.method} at {run.rate:g}: {run.tokens / run.seconds:.1f} tokens a second")

    if "decoding" in parts:
        with model_loader(None, screen)("reference") as engine:
            tables.append(measure_decoding(engine, seed, rounds, say))
    if "load" in parts:
        began = perf_counter()
        with TemporaryDirectory(prefix="emblema-serve-") as place:
            runs = measure_load(LoadPlan("reference", sent, talks, seed), Path(place), tell)
        tables.append(load_table(runs, perf_counter() - began))
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} after"
    options = {"rounds": rounds, "rates": rates, "conversations": talks, "seed": seed, "load average": load}
    command = " ".join(["python -m benchmarks serve", *([] if only is None else [f"--only {only}"])])
    show_tables(screen, ModelTables("reference", tuple(tables)))
    page = write_serve(tables, runs, command, options, "reference", folder)
    screen.print(f"report: {page}", soft_wrap=True)


def soak_serve(
    minutes: Annotated[float, typer.Option(help="Minutes of load.")] = 30.0,
    seed: Seed = 0,
    report: Report = Path("serve-soak"),
    plain: Plain = False,
) -> None:
    """Soak a server with mixed and hostile load, and hold what its process takes to what it was."""
    from benchmarks.report import report_places
    from benchmarks.serve.soak import CLIENTS, soak_server
    from benchmarks.serve.soak_report import write_serve_soak
    from emblema.cli.screen import console
    from emblema.errors import EmblemaError

    if minutes <= 0:
        raise EmblemaError(f"--minutes {minutes:g}: give more than none")
    folder, _ = report_places(report, None, "serve-soak.json")
    screen, before = console(plain), os.getloadavg()[0]
    with TemporaryDirectory(prefix="emblema-soak-") as place:
        found = soak_server(
            minutes, seed, Path(place), lambda sample: screen.print(f"{sample.seconds:.0f} s, {sample.requests}")
        )
    load = f"{before:.1f} before and {os.getloadavg()[0]:.1f} at the end, with the soak's own"
    options = {"minutes": minutes, "clients": CLIENTS, "seed": seed, "load average": load}
    bars = write_serve_soak(found, options, folder, screen)
    screen.print(f"report: {folder / 'serve-soak.md'}", soft_wrap=True)
    if not all(bar.holds for bar in bars):
        raise typer.Exit(1)
