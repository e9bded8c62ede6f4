"""`python -m benchmarks soak`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Model, Plain, Seed


def soak(
    model: Model = "reference-stream",
    frames: Annotated[int, typer.Option(help="Frames of the stream.")] = 20_000,
    every: Annotated[int, typer.Option(help="Frames between one round of questions and the next.")] = 200,
    stretch: Annotated[int, typer.Option(help="Frames of one kind, before those of the next begin.")] = 500,
    minutes: Annotated[float | None, typer.Option(help="End after about so long, wherever it is then.")] = None,
    seed: Seed = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="name=value of a setting of the stream; may come again.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("soak"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Soak one stream for hours of video, kill it half way, and hold memory, times and answers to what they were."""
    from benchmarks.models import model_source
    from benchmarks.report import labels_of, report_places
    from benchmarks.stream.options import settings_of
    from benchmarks.stream.soak.plan import SETTINGS, SoakPlan
    from benchmarks.stream.soak.report import report as written
    from benchmarks.stream.soak.run import soak as run
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    settings = settings_of(None, None, None, changes or (), SETTINGS)
    plan = SoakPlan(model_source(model), device, frames, every, stretch, seed, minutes, settings)
    folder, _ = report_places(report, None, "soak.json")
    screen = console(plain)
    with steps(screen, f"soak of {frames:,} frames", frames // every) as advance:
        said = run(plan, lambda _: advance())
    bars = written(said, plan.told(labels_of([model])[0]), folder, screen)
    screen.print(f"report: {folder / 'soak.md'}   figures: {folder / 'soak.json'}", soft_wrap=True)
    if not all(bar.holds for bar in bars):
        raise typer.Exit(1)
