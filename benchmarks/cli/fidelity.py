"""Commands that measure answers against re-prefill, and the page of their results."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from benchmarks.cli.options import (
    DrawnSeed,
    EpisodeTask,
    Figures,
    Models,
    Report,
    Seed,
    TaskItems,
    drawn_seed,
    model_loader,
)
from emblema.cli.options import Device, Model, Out, Plain
from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from benchmarks.table import Bar


def reference(
    count: Annotated[int, typer.Option("--episodes", min=2, help="How many fresh episodes.")] = 500,
    seed: DrawnSeed = None,
    task: EpisodeTask = "maps",
    every_kind: Annotated[
        bool, typer.Option("--every-kind", help="Ask legend, count and which questions too.")
    ] = False,
    out: Out = Path("bench"),
    model: Model = "reference",
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold the bundled model to its bars, on fresh episodes with intervals by episode."""
    from benchmarks.bars import QUESTIONS, measure, report, show
    from benchmarks.tasks import EPISODE_PLANS
    from benchmarks.tasks.world import KINDS
    from emblema.cli.screen import console, load_engine, output_folder
    from emblema.eval.figures import write_figures

    if task not in EPISODE_PLANS:
        raise EmblemaError(f"unknown task {task!r}: choose one of {', '.join(EPISODE_PLANS)}")
    folder = output_folder(out)
    screen = console(plain)
    chosen = drawn_seed(seed)
    engine = load_engine(model, device, screen, measured=True)
    result = measure(engine, task, chosen, count, kinds=KINDS if every_kind else QUESTIONS, screen=screen)
    show(screen, result)
    listing = write_figures(report(result), folder / f"reference-{task}-{chosen}.json")
    screen.print(f"figures: {listing}", soft_wrap=True)


def fidelity(
    model: Models = "reference",
    tasks: Annotated[
        str, typer.Option(help="Names with commas; trained: all that bundled models know; form:path: a data set.")
    ] = "trained",
    strategies: Annotated[
        str, typer.Option(help="Names with commas, or groups: headline, every, matched, ranks, tokens, limits.")
    ] = "headline",
    setting: Annotated[str, typer.Option(help="visible, slid or both.")] = "both",
    items: Annotated[int, typer.Option(help="How many items of each task; an item has several questions.")] = 100,
    seed: Seed = 0,
    figures: Figures = None,
    report: Report = Path("fidelity"),
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
    from benchmarks.report import comma_list
    from emblema.cli.screen import console

    screen = console(plain)
    wanted = wanted_of(strategies.split(","), setting, items, seed, style, answer_tokens, judge)
    place = report / "fidelity.json" if figures is None else figures
    run(comma_list(model), tasks.split(","), wanted, model_loader(device, screen), place, report, screen)
    screen.print(f"report: {report / 'report.md'}   figures: {place}", soft_wrap=True)


def reuse(
    model: Models = "reference,reference-mha,reference-mla,reference-deepstack",
    items: TaskItems = 20,
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas, measured beside those of the page.", show_default=False)
    ] = None,
    seed: DrawnSeed = None,
    figures: Figures = None,
    report: Report = Path("reuse"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold reuse in any combination to its bars: query beside methods of twice the rows; a killed run goes on."""
    from benchmarks.fidelity.reuse import ARMS, ReusePlan, bars, run, write_page
    from benchmarks.report import comma_list, models_of, report_places
    from emblema.cli.screen import console

    screen = console(plain)
    _, listing = report_places(report, figures, "reuse.json")
    plan = ReusePlan(drawn_seed(seed), items, strategies=(*ARMS, *comma_list(strategies or "")))
    found = run(models_of(model), plan, model_loader(device, screen), listing, screen)
    _show_bars(screen, found, lambda name, setting: bars(found["rows"], name, setting))
    screen.print(f"report: {write_page(listing)}   figures: {listing}", soft_wrap=True)


def pairs(
    model: Models = "reference,reference-mha,reference-mla,reference-deepstack",
    items: TaskItems = 20,
    many: Annotated[int, typer.Option(min=0, help="How many items of eight to thirteen pictures.")] = 4,
    compared: Annotated[int, typer.Option(min=1, help="Items of each task that other methods are asked too.")] = 3,
    libraries: Annotated[int, typer.Option(min=1, help="Libraries of 24 pages that are learnt.")] = 1,
    learning: Annotated[str, typer.Option(help="Settings in which they are.")] = "slid,visible",
    remark: Annotated[str, typer.Option(help="What the page says of the run.")] = "",
    seed: DrawnSeed = None,
    figures: Figures = None,
    report: Report = Path("reuse"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold the memory of pairs to its bars: complete, and while it learns; a killed run goes on."""
    from benchmarks.fidelity.learning import LearningPlan
    from benchmarks.fidelity.pairs import PairPlan, bars, run, write_page
    from benchmarks.report import comma_list, models_of, report_places
    from emblema.cli.screen import console

    screen = console(plain)
    _, listing = report_places(report, figures, "pairs.json")
    drawn = drawn_seed(seed)
    learnt = LearningPlan(drawn, libraries, settings=tuple(comma_list(learning)))
    plan = PairPlan(drawn, items, many, compared, learnt, remark)
    found = run(models_of(model), plan, model_loader(device, screen), listing, screen)
    _show_bars(screen, found, lambda name, setting: bars(found, name, setting))
    screen.print(f"report: {write_page(listing)}   figures: {listing}", soft_wrap=True)


def long(
    items: Annotated[int, typer.Option(min=1, help="Fresh items, in both settings.")] = 100,
    controls: Annotated[int, typer.Option(min=0, help="Of so many of them a list of colours too.")] = 20,
    seed: DrawnSeed = None,
    methods: Annotated[str | None, typer.Option(help="Methods with semicolons, beside full.")] = None,
    protocol: Annotated[bool, typer.Option("--protocol", help="Measure nothing: write the page's protocol.")] = False,
    figures: Figures = None,
    report: Report = Path("long"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure long answers token by token: lists, teacher-forced and free-running; a killed run goes on."""
    from benchmarks.long.measure import METHODS, LongOptions, LongRecord, LongRun
    from benchmarks.long.report import show, write_run
    from benchmarks.models.delta import load_lists
    from benchmarks.recordfile import RecordFile
    from benchmarks.report import report_places
    from emblema.cli.screen import console, quiet
    from emblema.engine.engine import Engine
    from emblema.link.policy.policy import Policy

    screen = console(plain)
    _, listing = report_places(report, figures, "long.json")
    named = METHODS if methods is None else tuple(name.strip() for name in methods.split(";") if name.strip())
    drawn = drawn_seed(seed)
    options = LongOptions(drawn, items, controls, tuple(dict.fromkeys(("full", *named))))
    records: list[LongRecord] = []
    if not protocol:
        quiet()
        with (
            RecordFile(listing.with_suffix(".records.jsonl"), LongRecord) as file,
            Engine(*load_lists(device), policy=Policy.quiet()) as engine,
        ):
            records = LongRun(engine, options, file).run(screen)
    screen.print(f"report: {write_run(options, records, listing)}   figures: {listing}", soft_wrap=True)
    show(screen, listing)


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
    from benchmarks.fidelity import pairs, reuse
    from benchmarks.fidelity.results import check_page, sample, write_page
    from benchmarks.long import report as long_report
    from benchmarks.traffic.report import check_report, read_result, write_report
    from emblema.cli.screen import console

    screen = console(plain)
    traffic = sorted(figures.glob("traffic*/traffic.json"))
    pages: list[tuple[Path, Callable[[Path], Path], Callable[[Path], None]]] = [
        (figures / "reuse" / "reuse.json", reuse.write_page, reuse.check_page),
        (figures / "reuse" / "pairs.json", pairs.write_page, pairs.check_page),
        (figures / "long" / "long.json", long_report.write_page, long_report.check_page),
    ]
    there = [(listing, write, hold) for listing, write, hold in pages if listing.is_file()]
    if not check:
        screen.print(f"results: {write_page(figures, out)}", soft_wrap=True)
        for listing in traffic:
            write_report(read_result(listing), listing.parent)
        for listing, write, _ in there:
            screen.print(f"results: {write(listing)}", soft_wrap=True)
        return
    check_page(figures, out)
    for listing in traffic:
        check_report(listing.parent)
    for listing, _, hold in there:
        hold(listing)
    for line in sample(figures, items, model_loader(None, screen), screen):
        screen.print(line, soft_wrap=True)


def _show_bars(screen: Console, found: Mapping[str, Any], bars: "Callable[[str, str], Iterable[Bar]]") -> None:
    """Print the bars of every model in both settings."""
    from benchmarks.table import show_bars
    from benchmarks.tasks.prompts import SETTINGS

    for name in dict.fromkeys(row["model"] for row in found["rows"]):
        for setting in SETTINGS:
            screen.print(f"{name}, {setting}")
            show_bars(screen, bars(name, setting))
