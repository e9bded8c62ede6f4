"""The command that measures the store: saving and loading, and loads that are hidden by computing."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Quick, Report, drawn_seed
from emblema.cli.options import Model, Plain


def store(
    only: Annotated[str | None, typer.Option(help="throughput, overlap; both if left out.")] = None,
    quick: Quick = False,
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write the page of the figures.")] = False,
    disk: Annotated[
        Path | None, typer.Option(help="Folder to write to, on the disk to be measured; a temporary one by default.")
    ] = None,
    seed: DrawnSeed = None,
    report: Report = Path("store"),
    model: Model = "reference",
    plain: Plain = False,
) -> None:
    """Measure the store: verified loads over plain reads, and first tokens by where the KV is."""
    from benchmarks.figures import read_figures, write_figures
    from benchmarks.report import parts_of, report_places
    from benchmarks.store.run import FULL, PARTS, QUICK, measure_store, write_store_page
    from benchmarks.table import show_bars
    from emblema.cli.screen import console, output_folder, quiet

    screen = console(plain)
    folder, listing = report_places(report, None, "store.json")
    quiet()
    if not page:
        place = None if disk is None else output_folder(disk, "--disk")
        parts, extent = parts_of(only, PARTS), QUICK if quick else FULL
        write_figures(measure_store(extent, drawn_seed(seed), model, parts, place), listing)
    written, bars = write_store_page(read_figures(listing), folder)
    show_bars(screen, bars)
    screen.print(f"report: {written}   figures: {listing}", soft_wrap=True)
