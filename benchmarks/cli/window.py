"""`python -m benchmarks window`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Plain, Seed


def window(
    model: Annotated[str, typer.Option(help="Bundled names, folders or Hugging Face ids, with commas.")] = "reference",
    items: Annotated[int, typer.Option(help="How many fresh items for each table.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps of the agent's trace; a tenth of them of the novelty trace.")] = 200,
    pictures: Annotated[int, typer.Option(help="Pictures of 64 tokens in the trace's window.")] = 32,
    changing: Annotated[
        bool, typer.Option("--changing", help="A harder trace: every legend gives its colours other lands.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="agent, novelty, or tables by name, with commas; all if left out.")
    ] = None,
    seed: Seed = 0,
    figures: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; window.json in the report's folder if left out.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("window"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure the window: reorder, slide, recall and drift, and an agent's trace; a killed run goes on where it was."""
    from benchmarks.report import models_of, parts_of, report_places
    from benchmarks.table import SampleSize
    from benchmarks.window.parts import PARTS
    from benchmarks.window.trace import TraceSettings
    from emblema.cli.screen import console, load_engine

    parts, wanted, models = parts_of(only, PARTS), SampleSize(items, seed), models_of(model)
    settings = TraceSettings(steps=steps, window=pictures, changing=changing)
    folder, listing = report_places(report, figures, "window.json")
    screen = console(plain)
    from benchmarks.models import model_source
    from benchmarks.window.command import Asked, run

    asked = Asked(tuple(models), wanted, settings, parts)
    run(asked, lambda name: load_engine(model_source(name), device, screen, measured=True), listing, folder, screen)
    screen.print(f"report: {folder / 'window.md'}   figures: {listing}", soft_wrap=True)
