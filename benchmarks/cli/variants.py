"""The command that measures pictures that differ a little from stored ones."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Report, drawn_seed
from emblema.cli.options import Device, Plain


def variants(
    items: Annotated[int, typer.Option(min=1, help="Maps of each share and place.")] = 12,
    side: Annotated[int, typer.Option(min=4, max=32, help="Cells along a map's side.")] = 16,
    seed: DrawnSeed = None,
    report: Report = Path("build/variants"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure pictures of which some cells changed: rows, the encoder's work, agreement, time by share and method."""
    from benchmarks.table import show_bars
    from benchmarks.variants.run import bars_of, measure
    from emblema.cli.screen import console, output_folder
    from emblema.models.load import load_model

    screen, listing = console(plain), output_folder(report, "--report") / "variants.json"
    found = measure(*load_model("reference", device), drawn_seed(seed), items, side, listing, screen)
    show_bars(screen, bars_of(found))
    screen.print(f"figures: {listing}", soft_wrap=True)
