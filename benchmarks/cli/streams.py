"""Commands about what goes on for long: windows that slide, streams and videos of them, a soak."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import Models, Parts, Quick, Report, Seed, model_loader
from emblema.cli.options import Device, Model, Plain


def window(
    model: Models = "reference",
    items: Annotated[int, typer.Option(help="How many fresh items for each table.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps of the agent's trace; a tenth of them of the novelty trace.")] = 200,
    pictures: Annotated[str, typer.Option(help="Pictures of 64 tokens in the traces' windows, with commas.")] = "32,16",
    only: Parts = None,
    seed: Seed = 0,
    report: Report = Path("build/window"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure the window: reorder, slide, recall and drift, and an agent's trace; a killed run goes on where it was."""
    from benchmarks.report import comma_list, numbers_of, parts_of
    from benchmarks.table import SampleSize
    from benchmarks.window.run import PARTS, WindowOptions, run_window
    from emblema.cli.screen import console, output_folder

    sizes, models = numbers_of(pictures, "--pictures"), tuple(comma_list(model))
    options = WindowOptions(models, SampleSize(items, seed), steps, sizes, parts_of(only, PARTS))
    folder, screen = output_folder(report, "--report"), console(plain)
    run_window(options, model_loader(device, screen), folder / "window.json", folder / "window.md", screen)
    screen.print(f"report: {folder / 'window.md'}   figures: {folder / 'window.json'}", soft_wrap=True)


def stream(
    model: Model = "reference-stream",
    only: Parts = None,
    kinds: Annotated[str | None, typer.Option(help="ego, movie, live, with commas; all if left out.")] = None,
    arms: Annotated[str | None, typer.Option(help="Methods and ablations with commas; all if left out.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the streams, with commas.")] = "201,202,203",
    items: Annotated[int, typer.Option(min=1, help="Streams of a kind and seed, at equal budget.")] = 3,
    others: Annotated[int, typer.Option(min=1, help="Streams of a kind and seed, by length and ablation.")] = 1,
    lengths: Annotated[str, typer.Option(help="Frames of streams by length, with commas.")] = "512,1024",
    quick: Quick = False,
    beside: Annotated[
        Path | None, typer.Option(help="stream.json of a run on other seeds, which the page shows too.")
    ] = None,
    report: Report = Path("build/stream"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure streams: how well every method answers at equal budget, and what it costs; a killed run goes on."""
    from benchmarks.report import labels_of, numbers_of, parts_of
    from benchmarks.stream import run
    from benchmarks.stream.plan import AccuracyOptions
    from benchmarks.stream.running import SystemsOptions
    from benchmarks.tasks.streams import STREAM_KINDS
    from emblema.cli.screen import console, output_folder

    known = AccuracyOptions()
    chosen = parts_of(arms, (*known.methods, *known.ablations), "--arms")
    accuracy = AccuracyOptions(
        kinds=parts_of(kinds, STREAM_KINDS, "--kinds"),
        seeds=numbers_of(seeds, "--seeds"),
        items=items,
        others=others,
        lengths=numbers_of(lengths, "--lengths"),
        methods=tuple(name for name in known.methods if name in chosen),
        ablations=tuple(name for name in known.ablations if name in chosen),
    )
    systems = SystemsOptions(accuracy.seeds[0], accuracy.kinds)
    if quick:
        accuracy, systems = accuracy.quick(), SystemsOptions.quick(systems.seed)
    parts, folder = parts_of(only, run.PARTS), output_folder(report, "--report")
    options = run.StreamRunOptions(labels_of([model])[0], accuracy, systems, parts, folder, beside)
    screen = console(plain)
    with model_loader(device, screen)(model) as engine:
        run.run_streams(engine, options, screen)
    screen.print(f"report: {folder / 'stream.md'}   figures: {folder / 'stream.json'}", soft_wrap=True)


def soak(
    model: Model = "reference-stream",
    frames: Annotated[int, typer.Option(min=800, help="Frames of the stream.")] = 100_000,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="End after about so long, wherever it is then.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Soak one stream for a day of video, kill it twice, and hold memory, times and answers to what they were."""
    from benchmarks.models import model_source
    from benchmarks.report import ModelTables, labels_of, show_tables
    from benchmarks.stream.soak import SoakPlan, soak_table
    from benchmarks.stream.soak import soak as run
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    plan = SoakPlan(model_source(model), device, frames, seed=seed, minutes=minutes)
    screen = console(plain)
    with steps(screen, f"soak of {frames:,} frames", frames // plan.every) as advance:
        log = run(plan, lambda _: advance())
    table = soak_table(log)
    show_tables(screen, ModelTables(labels_of([model])[0], (table,)))
    if not all(bar.holds or bar.aim for bar in table.bars):
        raise typer.Exit(1)


def videos(
    out: Annotated[Path, typer.Option(help="Folder for videos and streams.json.")],
    kind: Annotated[str, typer.Option(help="ego, movie or live.")] = "ego",
    frames: Annotated[int, typer.Option(min=1, help="Frames of a stream, one every two seconds.")] = 256,
    seed: Seed = 0,
    items: Annotated[int, typer.Option(min=1, help="How many streams.")] = 4,
    times: Annotated[int, typer.Option(min=1, help="How often each is asked, evenly, the last time at its end.")] = 4,
    plain: Plain = False,
) -> None:
    """Write fresh video streams, and questions with their times, in the form of RVS and ReKV."""
    from benchmarks.tasks.streams import generate, questions_of
    from benchmarks.tasks.streams.writing import write_streams
    from emblema.cli.screen import console, output_folder

    asked = sorted({max(1, frames * (place + 1) // times) for place in range(times)})
    drawn = ((stream, questions_of(stream, tuple(asked))) for stream in generate(kind, frames, seed, items))
    listing = write_streams(drawn, output_folder(out))
    console(plain).print(f"{items} streams of {frames} frames, {kind}, seed {seed}: {listing}", soft_wrap=True)
