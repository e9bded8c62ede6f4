"""`emblema bench …`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Model, Out, Plain, Seed
from emblema.errors import EmblemaError

app = typer.Typer(help="Fresh episodes, and how well strategies answer them.", no_args_is_help=True)


@app.command()
def episodes(
    out: Annotated[Path, typer.Option(help="Folder for pictures, clips and episodes.jsonl.")],
    task: Annotated[str, typer.Option(help="maps, atlas or clip.")] = "maps",
    seed: Seed = 0,
    items: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 10,
    plain: Plain = False,
) -> None:
    """Write fresh episodes: pictures and clips, questions and answers."""
    from emblema.bench.tasks import write_episodes
    from emblema.cli.screen import console, output_folder

    _known(task)
    listing = write_episodes(task, seed, items, output_folder(out))
    console(plain).print(f"{items} episodes of {task}, seed {seed}: {listing}", soft_wrap=True)


@app.command()
def reference(
    count: Annotated[int, typer.Option("--episodes", min=2, help="How many fresh episodes.")] = 500,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes; drawn if left out.")] = None,
    task: Annotated[str, typer.Option(help="maps, atlas or clip.")] = "maps",
    every_kind: Annotated[
        bool, typer.Option("--every-kind", help="Ask legend, count and which questions too.")
    ] = False,
    out: Out = Path("bench"),
    model: Model = "reference",
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold the bundled model to its bars, on fresh episodes with intervals by episode."""
    from emblema.cli.screen import console, load_engine, output_folder

    _known(task)
    folder = output_folder(out)
    screen = console(plain)
    import secrets

    from emblema.bench.bars import KINDS, measure
    from emblema.bench.bars_report import report, show
    from emblema.bench.figures import write_figures
    from emblema.bench.tasks.world import KINDS as EVERY

    chosen = secrets.randbelow(2**31) if seed is None else seed
    engine = load_engine(model, device, screen)
    result = measure(engine, task, chosen, count, kinds=EVERY if every_kind else KINDS, screen=screen)
    show(screen, result)
    listing = write_figures(report(result), folder / f"reference-{task}-{chosen}.json")
    screen.print(f"figures: {listing}", soft_wrap=True)


@app.command()
def store(
    figures: Annotated[Path | None, typer.Option("--json", help="File for every figure, as JSON.")] = None,
    pages: Annotated[Path | None, typer.Option("--report", help="Folder for store.md and its pictures.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A little of everything, to see that it runs.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random; drawn if left out.")] = None,
    only: Annotated[str | None, typer.Option(help="Parts to measure, with commas between; all if left out.")] = None,
    disk: Annotated[
        Path | None, typer.Option(help="Folder to write to, on the disk to be measured; a temporary one by default.")
    ] = None,
    model: Model = "reference",
    plain: Plain = False,
) -> None:
    """Measure the store: saving and loading, overlap, index, hit ratios, sharing, compression."""
    from emblema.cli.screen import console, output_folder, quiet

    screen = console(plain)
    import secrets

    from emblema.bench.figures import write_figures
    from emblema.bench.store.report import report, show, write_report
    from emblema.bench.store.run import PARTS, run
    from emblema.bench.store.settings import FULL, QUICK

    folder = None if pages is None else output_folder(pages, "--report")
    if figures is not None:
        output_folder(figures.parent, "--json")
    quiet()
    result = run(
        QUICK if quick else FULL,
        secrets.randbelow(2**31) if seed is None else seed,
        screen,
        model=model,
        parts=PARTS if only is None else [part.strip() for part in only.split(",")],
        folder=None if disk is None else output_folder(disk, "--disk"),
    )
    show(screen, result)
    if figures is not None:
        screen.print(f"figures: {write_figures(report(result), figures)}", soft_wrap=True)
    if folder is not None:
        screen.print(f"report: {write_report(result, folder)}", soft_wrap=True)
    screen.print(f"seed: {result.seed}")


def _known(task: str) -> None:
    from emblema.bench.tasks import TASKS

    if task not in TASKS:
        raise EmblemaError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}")
