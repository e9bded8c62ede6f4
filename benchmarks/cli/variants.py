"""The command that measures pictures that differ a little from stored ones."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Report, drawn_seed
from emblema.cli.options import Device, Plain


def variants(
    model: Annotated[list[str] | None, typer.Option(help="Models of the page to measure; all if left out.")] = None,
    items: Annotated[int, typer.Option(min=1, help="Maps of each share and place.")] = 8,
    seed: DrawnSeed = None,
    report: Report = Path("build/variants"),
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write the page of the figures.")] = False,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure pictures of which some cells changed: rows, the encoder's work, agreement, time by share and method."""
    from benchmarks.figures import read_figures, write_figures
    from benchmarks.table import show_bars
    from benchmarks.variants.page import NAME, write_changed_page
    from benchmarks.variants.run import SUBJECTS, bars_of, measure, put
    from emblema.cli.screen import console, output_folder
    from emblema.errors import EmblemaError

    screen, folder = console(plain), output_folder(report, "--report")
    listing, chosen = folder / f"{NAME}.json", drawn_seed(seed)
    found = read_figures(listing) if listing.exists() else {"runs": [], "rows": []}
    for name in () if page else model or SUBJECTS:
        if name not in SUBJECTS:
            raise EmblemaError(f"--model {name!r}: choose of {', '.join(map(repr, SUBJECTS))}")
        put(found, measure(SUBJECTS[name], chosen, items, screen, device))
        write_figures({key: found[key] for key in ("runs", "rows")}, listing)
    show_bars(screen, bars_of(found))
    screen.print(f"report: {write_changed_page(found, folder)}   figures: {listing}", soft_wrap=True)
