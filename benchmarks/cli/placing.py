"""The command that simulates many replicas."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Figures, Parts, Quick, Report, drawn_seed
from emblema.cli.options import Plain


def place(
    only: Parts = None,
    costs: Annotated[str, typer.Option(help="Measured costs, with commas: store, vllm.")] = "store,vllm",
    real: Annotated[
        str | None, typer.Option(help="Numbers of real replicas, with commas: each policy serves a trace; needs Ray.")
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(help="Figures of earlier runs, with commas, for what is not measured now."),
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw plots beside the tables.")] = True,
    quick: Quick = False,
    seed: DrawnSeed = None,
    figures: Figures = None,
    report: Report = Path("place"),
    plain: Plain = False,
) -> None:
    """Simulate many replicas under five policies of placement, and time the router; costs are our own measured ones."""
    from benchmarks.place.amounts import amounts_of
    from benchmarks.place.beside import filled
    from benchmarks.place.costs import measured_costs
    from benchmarks.place.real import RealOptions, measure
    from benchmarks.place.report import plain_rows, tables_of, write_report
    from benchmarks.place.routing import time_routing
    from benchmarks.place.streams import measure_rounds
    from benchmarks.place.studies import STUDIES, settings_of, simulate
    from benchmarks.report import comma_list, parts_of, report_places, show_tables
    from benchmarks.rowfile import write_rows
    from emblema.cli.screen import console

    screen, chosen = console(plain), drawn_seed(seed)
    parts = parts_of(only, (*STUDIES, "routing", "amounts", "streams"))
    folder, listing = report_places(report, figures, "place.json")
    taken = [measured_costs(name) for name in comma_list(costs)]
    rows = []
    for setting in settings_of([part for part in parts if part in STUDIES], 0.02 if quick else 1.0):
        for one in taken:
            rows += simulate(setting, one, chosen)
            screen.print(f"{setting.study} {setting.value:g}, costs {one.name}", highlight=False)
    digests = 20_000 if quick else 1_000_000
    asked_routing = {"routing", "amounts"} & set(parts)
    routing = [time_routing(digests, many, chosen) for many in (10, 1_000)] if asked_routing else []
    amounts = [amounts_of(pictures, routing[-1].bytes) for pictures in (10**6, 10**9)] if "amounts" in parts else []
    frames = 8 if quick else 96
    rounds = 1 if quick else 5
    streams = measure_rounds((1, 2, 4), 4, frames, chosen, rounds) if "streams" in parts else []
    served = []
    for many in comma_list(real or ""):
        served += measure(RealOptions(int(many)), chosen)
        screen.print(f"{many} real replicas", highlight=False)
    found = {
        "asked": {"seed": chosen, "parts": list(parts), "quick": quick, "real": real},
        "costs": [asdict(one) for one in taken],
        "rows": rows, "routing": plain_rows(routing), "amounts": plain_rows(amounts), "real": plain_rows(served),
        "streams": plain_rows(streams),
    }  # fmt: skip
    found = filled(found, [Path(name) for name in comma_list(beside or "")])
    write_rows(found, listing)
    for tables in tables_of(found, plots):
        show_tables(screen, tables)
    screen.print(f"report: {write_report(found, folder, plots)}   figures: {listing}", soft_wrap=True)
