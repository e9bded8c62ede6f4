"""Commands that measure what goes on for long: windows that slide, streams, a soak."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import Changes, Figures, Models, Parts, Quick, Report, Seed, model_loader
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
    arms: Annotated[str | None, typer.Option(help="Memories and ablations with commas; all if left out.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or a list of them with commas.")] = "3",
    items: Annotated[int, typer.Option(help="Streams of a kind and seed, at equal budget.")] = 3,
    others: Annotated[int, typer.Option(help="Streams of a kind and seed, by budget, length and ablation.")] = 1,
    frames: Annotated[int, typer.Option(help="Frames of a stream at equal budget.")] = 512,
    lengths: Annotated[str, typer.Option(help="Frames of streams by length, with commas.")] = "64,128,256,512,1024",
    budget: Annotated[int, typer.Option(help="Frames retrieved in each layer.")] = 64,
    budgets: Annotated[str, typer.Option(help="Likewise by budget, with commas.")] = "8,16,32,64",
    times: Annotated[int, typer.Option(help="How often a stream is asked, in its second half.")] = 5,
    each: Annotated[int, typer.Option(help="Questions of each kind each time, at the most.")] = 3,
    window: Annotated[int | None, typer.Option(help="Latest frames, always seen.")] = None,
    block: Annotated[int | None, typer.Option(help="Frames that are encoded together.")] = None,
    positions: Annotated[str | None, typer.Option(help="native or packed.")] = None,
    changes: Changes = None,
    quick: Quick = False,
    figures: Figures = None,
    runs: Annotated[
        str | None, typer.Option("--with", help="--json files of other runs with commas: what they measured counts.")
    ] = None,
    report: Report = Path("stream"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure streams: how well every memory answers at equal budget, and what it costs; a killed run goes on."""
    from benchmarks.report import labels_of, parts_of, report_places
    from benchmarks.stream import run
    from benchmarks.stream.plan import AccuracyOptions
    from benchmarks.stream.systems.running import SystemsOptions
    from benchmarks.tasks.streams import STREAM_KINDS
    from emblema.cli.screen import console

    methods, ablations = run.arms_of(arms)
    accuracy = AccuracyOptions(
        kinds=run.names_of(kinds, STREAM_KINDS),
        seeds=run.seeds_of(seeds),
        items=items,
        others=others,
        frames=frames,
        lengths=run.numbers_of(lengths, "--lengths"),
        budget=budget,
        budgets=run.numbers_of(budgets, "--budgets"),
        methods=methods,
        ablations=ablations,
        times=times,
        each=each,
        settings=run.settings_of(window, block, positions, changes or ()),
    )
    systems = SystemsOptions(accuracy.seeds[0], accuracy.kinds, settings=accuracy.settings)
    if quick:
        accuracy, systems = accuracy.quick(), SystemsOptions.quick(systems.seed, systems.settings)
    parts = parts_of(only, run.PARTS)
    folder, listing = report_places(report, figures, "stream.json")
    others_of = tuple(map(Path, run.names_of(runs or "", ())))
    options = run.StreamOptions(labels_of([model])[0], accuracy, systems, parts, listing, folder, others_of)
    screen = console(plain)
    with model_loader(device, screen)(model) as engine:
        run.run_streams(engine, options, screen)
    screen.print(f"report: {folder / 'stream.md'}   figures: {listing}", soft_wrap=True)


def soak(
    model: Model = "reference-stream",
    frames: Annotated[int, typer.Option(help="Frames of the stream.")] = 100_000,
    every: Annotated[int, typer.Option(help="Frames between one round of questions and the next.")] = 200,
    stretch: Annotated[int, typer.Option(help="Frames of one kind, before those of the next begin.")] = 500,
    minutes: Annotated[float | None, typer.Option(help="End after about so long, wherever it is then.")] = None,
    seed: Seed = 0,
    changes: Changes = None,
    report: Report = Path("soak"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Soak one stream for a day of video, kill it twice, and hold memory, times and answers to what they were."""
    from benchmarks.models import model_source
    from benchmarks.report import labels_of, report_places
    from benchmarks.stream.run import settings_of
    from benchmarks.stream.soak.plan import SETTINGS, SoakPlan
    from benchmarks.stream.soak.report import has_failed, write_soak
    from benchmarks.stream.soak.run import soak as run
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    settings = settings_of(None, None, None, changes or (), SETTINGS)
    plan = SoakPlan(
        model_source(model), device, frames, every=every, stretch=stretch, seed=seed, minutes=minutes, settings=settings
    )
    folder, _ = report_places(report, None, "soak.json")
    screen = console(plain)
    with steps(screen, f"soak of {frames:,} frames", frames // every) as advance:
        log = run(plan, lambda found: advance())
    bars = write_soak(log, plan.reported(labels_of([model])[0]), folder, screen)
    screen.print(f"report: {folder / 'soak.md'}   figures: {folder / 'soak.json'}", soft_wrap=True)
    if any(map(has_failed, bars)):
        raise typer.Exit(1)
