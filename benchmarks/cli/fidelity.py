"""Commands that measure answers against re-prefill, and the page of their results."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import (
    DrawnSeed,
    EpisodeTask,
    Models,
    Seed,
    drawn_seed,
    model_loader,
)
from emblema.cli.options import Device, Model, Out, Plain
from emblema.errors import EmblemaError


def reference(
    count: Annotated[int, typer.Option("--episodes", min=2, help="How many fresh episodes.")] = 500,
    seed: DrawnSeed = None,
    task: EpisodeTask = "maps",
    out: Out = Path("build/bench"),
    model: Model = "reference",
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold the bundled model to its bars, on fresh episodes with intervals by episode."""
    from benchmarks.bars import measure, report, show
    from benchmarks.tasks import EPISODE_PLANS
    from emblema.cli.screen import console, output_folder
    from emblema.eval.figures import write_figures

    if task not in EPISODE_PLANS:
        raise EmblemaError(f"unknown task {task!r}: choose one of {', '.join(EPISODE_PLANS)}")
    folder = output_folder(out)
    screen = console(plain)
    chosen = drawn_seed(seed)
    engine = model_loader(device, screen)(model)
    result = measure(engine, task, chosen, count, screen=screen)
    show(screen, result)
    listing = write_figures(report(result), folder / f"reference-{task}-{chosen}.json")
    screen.print(f"figures: {listing}", soft_wrap=True)


def fidelity(
    model: Models = "reference",
    tasks: Annotated[str, typer.Option(help="Names with commas; trained: all that bundled models know.")] = "trained",
    strategies: Annotated[
        str, typer.Option(help="Names with commas, or groups: headline, every, matched.")
    ] = "headline",
    setting: Annotated[str, typer.Option(help="visible, slid or both.")] = "both",
    items: Annotated[int, typer.Option(help="How many items of each task; an item has several questions.")] = 100,
    seed: Seed = 0,
    figures: Annotated[Path, typer.Option("--json", help="File for every figure; records lie beside it.")] = Path(
        "fidelity/fidelity.json"
    ),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure how far strategies are from re-prefill, on the same items; a killed run goes on where it was."""
    from benchmarks.fidelity.run import run, wanted_of
    from benchmarks.report import comma_list
    from emblema.cli.screen import console

    screen = console(plain)
    wanted = wanted_of(strategies.split(","), setting, items, seed)
    run(comma_list(model), tasks.split(","), wanted, model_loader(device, screen), figures, screen)
    screen.print(f"figures: {figures}", soft_wrap=True)


def hybrids(
    items: Annotated[int, typer.Option(min=2, help="How many items of maps; each has several questions.")] = 100,
    seed: Seed = 0,
    figures: Annotated[Path, typer.Option("--json", help="File for every figure; records lie beside it.")] = Path(
        "docs/results/hybrids.json"
    ),
    page: Annotated[Path, typer.Option(help="The page whose tables are made.")] = Path("docs/results/hybrids.md"),
    kept: Annotated[
        bool, typer.Option("--kept", help="Measure nothing: make the page of the figures there are.")
    ] = False,
    plain: Plain = False,
) -> None:
    """Measure reuse on the bundled hybrid, also beside HYPIC's method, and make the page of it."""
    from benchmarks.hybrids.page import write_page
    from benchmarks.hybrids.run import measure
    from emblema.cli.screen import console

    screen = console(plain)
    if not kept:
        measure(items, seed, model_loader(None, screen), figures, screen)
    screen.print(f"page: {write_page(figures, page)}", soft_wrap=True)


def results(
    figures: Annotated[Path, typer.Option(help="Folder of the page's figures, fidelity.json.")] = Path("docs/results"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
    runs: Annotated[
        list[Path] | None, typer.Option(help="Files that `fidelity --json` wrote: make the page's figures of them.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: hold the page to its figures, and these to a small sample.")
    ] = False,
    items: Annotated[int, typer.Option(min=1, help="Items of each task in the sample.")] = 4,
    model: Annotated[str | None, typer.Option(help="Sample this model alone; every one without it.")] = None,
    plain: Plain = False,
) -> None:
    """Write the page of results from committed figures, or check that it still holds."""
    from benchmarks.fidelity.results import FIGURES_FILE, check_page, collect, sample, write_page
    from emblema.cli.screen import console

    screen = console(plain)
    if runs:
        collect(runs, figures / FIGURES_FILE)
    if not check:
        screen.print(f"results: {write_page(figures, out)}", soft_wrap=True)
        return
    check_page(figures, out)
    for line in sample(figures, items, model_loader(None, screen), screen, model):
        screen.print(line, soft_wrap=True)
