"""Commands that measure what goes on for long: windows that slide, streams, a soak."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import Figures, Models, Parts, Quick, Report, Seed, model_loader
from emblema.cli.options import Device, Model, Plain


def window(
    model: Models = "reference",
    items: Annotated[int, typer.Option(help="How many fresh items for each table.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps of the agent's trace; a tenth of them of the novelty trace.")] = 200,
    pictures: Annotated[str, typer.Option(help="Pictures of 64 tokens in the traces' windows, with commas.")] = "32,16",
    only: Parts = None,
    seed: Seed = 0,
    figures: Figures = None,
    report: Report = Path("window"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure the window: reorder, slide, recall and drift, and an agent's trace; a killed run goes on where it was."""
    from benchmarks.report import comma_list, models_of, parts_of, report_places
    from benchmarks.table import SampleSize
    from benchmarks.window.run import PARTS, WindowOptions, run_window
    from emblema.cli.screen import console
    from emblema.errors import EmblemaError

    windows = comma_list(pictures)
    if not windows or not all(map(str.isdecimal, windows)):
        raise EmblemaError(f"--pictures {pictures!r}: give numbers with commas")
    sizes = tuple(map(int, windows))
    options = WindowOptions(tuple(models_of(model)), SampleSize(items, seed), steps, sizes, parts_of(only, PARTS))
    folder, listing = report_places(report, figures, "window.json")
    screen = console(plain)
    run_window(options, model_loader(device, screen), listing, folder / "window.md", screen)
    screen.print(f"report: {folder / 'window.md'}   figures: {listing}", soft_wrap=True)


def stream(
    model: Model = "reference-stream",
    only: Parts = None,
    kinds: Annotated[str | None, typer.Option(help="ego, movie, live, with commas; all if left out.")] = None,
    arms: Annotated[str | None, typer.Option(help="Methods and ablations with commas; all if left out.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the streams, with commas.")] = "201,202,203",
    items: Annotated[int, typer.Option(help="Streams of a kind and seed, at equal budget.")] = 3,
    others: Annotated[int, typer.Option(help="Streams of a kind and seed, by length and ablation.")] = 1,
    lengths: Annotated[str, typer.Option(help="Frames of streams by length, with commas.")] = "512,1024",
    quick: Quick = False,
    beside: Annotated[
        Path | None, typer.Option(help="stream.json of a run on other seeds, which the page shows too.")
    ] = None,
    report: Report = Path("stream"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure streams: how well every method answers at equal budget, and what it costs; a killed run goes on."""
    from benchmarks.report import comma_list, labels_of, parts_of, writable_folder
    from benchmarks.stream import run
    from benchmarks.stream.plan import AccuracyOptions
    from benchmarks.stream.running import SystemsOptions
    from benchmarks.tasks.streams import STREAM_KINDS
    from emblema.cli.screen import console

    methods, ablations = run.arms_of(arms)
    accuracy = AccuracyOptions(
        kinds=STREAM_KINDS if kinds is None else tuple(comma_list(kinds)),
        seeds=run.numbers_of(seeds, "--seeds"),
        items=items,
        others=others,
        lengths=run.numbers_of(lengths, "--lengths"),
        methods=methods,
        ablations=ablations,
    )
    systems = SystemsOptions(accuracy.seeds[0], accuracy.kinds)
    if quick:
        accuracy, systems = accuracy.quick(), SystemsOptions.quick(systems.seed)
    parts, folder = parts_of(only, run.PARTS), writable_folder(report, "--report")
    options = run.StreamOptions(labels_of([model])[0], accuracy, systems, parts, folder, beside)
    screen = console(plain)
    with model_loader(device, screen)(model) as engine:
        run.run_streams(engine, options, screen)
    screen.print(f"report: {folder / 'stream.md'}   figures: {folder / 'stream.json'}", soft_wrap=True)


def soak(
    model: Model = "reference-stream",
    frames: Annotated[int, typer.Option(help="Frames of the stream.")] = 100_000,
    minutes: Annotated[float | None, typer.Option(help="End after about so long, wherever it is then.")] = None,
    seed: Seed = 0,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Soak one stream for a day of video, kill it twice, and hold memory, times and answers to what they were."""
    from benchmarks.models import model_source
    from benchmarks.report import ModelTables, labels_of, show_tables
    from benchmarks.stream.soak import SoakPlan, has_failed, soak_table
    from benchmarks.stream.soak import soak as run
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    plan = SoakPlan(model_source(model), device, frames, seed=seed, minutes=minutes)
    screen = console(plain)
    with steps(screen, f"soak of {frames:,} frames", frames // plan.every) as advance:
        log = run(plan, lambda _: advance())
    table = soak_table(log)
    show_tables(screen, ModelTables(labels_of([model])[0], (table,)))
    if any(map(has_failed, table.bars)):
        raise typer.Exit(1)
