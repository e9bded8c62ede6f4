"""`python -m benchmarks …`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli import soak, stream, videos, vllm, window
from emblema.cli.options import Device, Model, Out, Plain, Seed
from emblema.errors import EmblemaError

app = typer.Typer(
    name="python -m benchmarks",
    help="Fresh episodes, and how well strategies answer them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(stream.stream)
app.command()(videos.videos)
app.command()(soak.soak)
app.command()(window.window)
app.command()(vllm.vllm)


@app.command()
def episodes(
    out: Annotated[Path, typer.Option(help="Folder for pictures, clips and episodes.jsonl.")],
    task: Annotated[str, typer.Option(help="maps, atlas or clip.")] = "maps",
    seed: Seed = 0,
    items: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 10,
    plain: Plain = False,
) -> None:
    """Write fresh episodes: pictures and clips, questions and answers."""
    from benchmarks.tasks import write_episodes
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

    from benchmarks.bars import KINDS, measure
    from benchmarks.bars_report import report, show
    from benchmarks.tasks.world import KINDS as EVERY
    from emblema.eval.figures import write_figures

    chosen = secrets.randbelow(2**31) if seed is None else seed
    engine = load_engine(model, device, screen, measured=True)
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

    from benchmarks.store.report import report, show, write_report
    from benchmarks.store.run import PARTS, run
    from benchmarks.store.settings import FULL, QUICK
    from emblema.eval.figures import write_figures

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


@app.command()
def fidelity(
    model: Annotated[str, typer.Option(help="Bundled names, folders or Hugging Face ids, with commas.")] = "reference",
    tasks: Annotated[
        str, typer.Option(help="Names with commas; trained: all that bundled models know; form:path: a data set.")
    ] = "trained",
    strategies: Annotated[
        str, typer.Option(help="Names with commas, or groups: headline, every, matched, ranks, tokens, limits.")
    ] = "headline",
    setting: Annotated[str, typer.Option(help="visible, slid or both.")] = "both",
    items: Annotated[int, typer.Option(help="How many items of each task; an item has several questions.")] = 100,
    seed: Seed = 0,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; fidelity.json in the report's folder if left out.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("fidelity"),
    style: Annotated[
        str, typer.Option(help="words: bare questions; letters: options and a letter asked for.")
    ] = "words",
    answer_tokens: Annotated[
        int | None, typer.Option(min=1, help="The longest answer; as long as the right one if left out.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="An OpenAI-compatible address that scores dialogues.")] = None,
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure how far strategies are from re-prefill, on the same items; a killed run goes on where it was."""
    from benchmarks.fidelity.report import run, wanted_of
    from benchmarks.models import model_source
    from emblema.cli.screen import console, load_engine

    screen = console(plain)
    wanted = wanted_of(strategies.split(","), setting, items, seed, style, answer_tokens, judge)
    place = report / "fidelity.json" if json_path is None else json_path
    models = [name.strip() for name in model.split(",") if name.strip()]
    run(
        models,
        tasks.split(","),
        wanted,
        lambda name: load_engine(model_source(name), device, screen, measured=True),
        place,
        report,
        screen,
    )
    screen.print(f"report: {report / 'report.md'}   figures: {place}", soft_wrap=True)


@app.command()
def results(
    figures: Annotated[Path, typer.Option(help="Folder of the JSON files that `bench fidelity` wrote.")] = Path(
        "docs/results"
    ),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: hold the page to the files, and these to a small sample.")
    ] = False,
    items: Annotated[int, typer.Option(min=1, help="Items of each task in the sample.")] = 4,
    plain: Plain = False,
) -> None:
    """Write the page of results from committed figures, or check that it still holds."""
    from benchmarks.fidelity.results import check_page, sample, write_page
    from benchmarks.models import model_source
    from emblema.cli.screen import console, load_engine

    screen = console(plain)
    if not check:
        screen.print(f"results: {write_page(figures, out)}", soft_wrap=True)
        return
    check_page(figures, out)
    for line in sample(
        figures, items, lambda name: load_engine(model_source(name), None, screen, measured=True), screen
    ):
        screen.print(line, soft_wrap=True)


@app.command()
def deficit(
    model: Annotated[str, typer.Option(help="Bundled names, folders or Hugging Face ids, with commas.")] = "reference",
    items: Annotated[int, typer.Option(help="How many fresh items; half of them teach, half are held out.")] = 40,
    seed: Seed = 0,
    task: Annotated[str, typer.Option(help="A task whose items hold a chunk behind another one.")] = "maps",
    carried: Annotated[str, typer.Option(help="The task whose directions are carried to it.")] = "clip",
    json: Annotated[Path | None, typer.Option(help="File for every figure as JSON.", show_default=False)] = None,
    report: Annotated[Path, typer.Option(help="Folder for the Markdown report and the plots.")] = Path("deficit"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Take apart what blind reuse loses: the deficit's size, rank, depth, tokens and heads, with plots."""
    from benchmarks.report import labels_of, models_of, report_places
    from emblema.cli.screen import console, load_engine

    folder, figures = report_places(report, json, "deficit.json")
    screen = console(plain)
    from benchmarks.deficit.measure import DeficitOptions, measure, measure_untrained
    from benchmarks.deficit.report import data, write
    from benchmarks.models import model_source
    from emblema.eval.figures import write_figures

    wanted = DeficitOptions(task, carried, seed, items)
    models = models_of(model)
    results = []
    for name, label in zip(models, labels_of(models), strict=True):
        engine = load_engine(model_source(name), device, screen, measured=True)
        results.append(measure(engine, label, wanted, screen=screen))
        if len(results) == 1:
            untrained = measure_untrained(engine, label, wanted, screen=screen)
    results.append(untrained)
    listing = write_figures(data(results), figures)
    screen.print(f"report: {write(results, folder)}   figures: {listing}", soft_wrap=True)


def _known(task: str) -> None:
    from benchmarks.tasks import EPISODE_PLANS

    if task not in EPISODE_PLANS:
        raise EmblemaError(f"unknown task {task!r}: choose one of {', '.join(EPISODE_PLANS)}")
