"""`python -m benchmarks …`: options, where results go, and what each command calls."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from emblema.cli.options import Device, Model, Out, Plain
from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

Models = Annotated[str, typer.Option(help="Bundled names, folders or Hugging Face ids, with commas.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the episodes.")]
Report = Annotated[Path, typer.Option(help="Folder for the report and its plots.")]

app = typer.Typer(
    name="python -m benchmarks",
    help="Fresh episodes, and how well strategies answer them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

    listing = write_episodes(task, seed, items, output_folder(out))
    console(plain).print(f"{items} episodes of {task}, seed {seed}: {listing}", soft_wrap=True)


@app.command()
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

    from benchmarks.bars import QUESTIONS, measure, report, show
    from benchmarks.tasks.world import KINDS
    from emblema.eval.figures import write_figures

    chosen = secrets.randbelow(2**31) if seed is None else seed
    engine = load_engine(model, device, screen, measured=True)
    result = measure(engine, task, chosen, count, kinds=KINDS if every_kind else QUESTIONS, screen=screen)
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
    from benchmarks.store.run import FULL, PARTS, QUICK, run
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
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; fidelity.json in the report's folder if left out.")
    ] = None,
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
    place = report / "fidelity.json" if json_path is None else json_path
    run(comma_list(model), tasks.split(","), wanted, _loader(device, screen), place, report, screen)
    screen.print(f"report: {report / 'report.md'}   figures: {place}", soft_wrap=True)


@app.command()
def reuse(
    model: Models = "reference,reference-mha,reference-mla,reference-deepstack",
    items: Annotated[int, typer.Option(min=1, help="How many items of each task, at most six questions each.")] = 20,
    strategies: Annotated[
        str | None, typer.Option(help="Names with commas, measured beside those of the page.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the items; drawn if left out.")] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; reuse.json in the report's folder if left out.")
    ] = None,
    report: Report = Path("reuse"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Hold reuse in any combination to its bars: query and pair, slid and visible; a killed run goes on."""
    import secrets

    from benchmarks.fidelity.reuse import ARMS, ReusePlan, bars, run, write_page
    from benchmarks.report import comma_list, models_of, report_places
    from benchmarks.table import show_bars
    from benchmarks.tasks.prompts import SETTINGS
    from emblema.cli.screen import console

    screen = console(plain)
    _, listing = report_places(report, json_path, "reuse.json")
    plan = ReusePlan(
        secrets.randbelow(2**31) if seed is None else seed, items, strategies=(*ARMS, *comma_list(strategies or ""))
    )
    found = run(models_of(model), plan, _loader(device, screen), listing, screen)
    for name in dict.fromkeys(row["model"] for row in found["rows"]):
        for setting in SETTINGS:
            screen.print(f"{name}, {setting}")
            show_bars(screen, bars(found["rows"], name, setting))
    screen.print(f"report: {write_page(listing)}   figures: {listing}", soft_wrap=True)


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
    from benchmarks.fidelity import reuse
    from benchmarks.fidelity.results import check_page, sample, write_page
    from benchmarks.traffic.report import check_report, read_result, write_report
    from emblema.cli.screen import console

    screen = console(plain)
    traffic_folder, reused = figures / "traffic", figures / "reuse" / "reuse.json"
    if not check:
        screen.print(f"results: {write_page(figures, out)}", soft_wrap=True)
        if (traffic_folder / "traffic.json").exists():
            write_report(read_result(traffic_folder / "traffic.json"), traffic_folder)
        if reused.is_file():
            screen.print(f"results: {reuse.write_page(reused)}", soft_wrap=True)
        return
    check_page(figures, out)
    if (traffic_folder / "traffic.json").exists():
        check_report(traffic_folder)
    if reused.is_file():
        reuse.check_page(reused)
    for line in sample(figures, items, _loader(None, screen), screen):
        screen.print(line, soft_wrap=True)


@app.command()
def deficit(
    model: Models = "reference",
    items: Annotated[int, typer.Option(help="How many fresh items; half of them teach, half are held out.")] = 40,
    seed: Seed = 0,
    task: Annotated[str, typer.Option(help="A task whose items hold a chunk after another one.")] = "maps",
    carried: Annotated[str, typer.Option(help="The task whose directions are carried to it.")] = "clip",
    json: Annotated[Path | None, typer.Option(help="File for every figure as JSON.", show_default=False)] = None,
    report: Report = Path("deficit"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Take apart what blind reuse loses: the deficit's size, rank, depth, tokens and heads, with plots."""
    from benchmarks.report import labels_of, models_of, report_places
    from emblema.cli.screen import console

    folder, figures = report_places(report, json, "deficit.json")
    screen = console(plain)
    from benchmarks.deficit.measure import DeficitOptions, measure, measure_untrained
    from benchmarks.deficit.report import data, write
    from emblema.eval.figures import write_figures

    wanted = DeficitOptions(task, carried, seed, items)
    models, load = models_of(model), _loader(device, screen)
    results = []
    for name, label in zip(models, labels_of(models), strict=True):
        engine = load(name)
        results.append(measure(engine, label, wanted, screen=screen))
        if len(results) == 1:
            untrained = measure_untrained(engine, label, wanted, screen=screen)
    results.append(untrained)
    listing = write_figures(data(results), figures)
    screen.print(f"report: {write(results, folder)}   figures: {listing}", soft_wrap=True)


@app.command()
def window(
    model: Models = "reference",
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
    report: Report = Path("window"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure the window: reorder, slide, recall and drift, and an agent's trace; a killed run goes on where it was."""
    from benchmarks.report import models_of, parts_of, report_places
    from benchmarks.table import SampleSize
    from benchmarks.window.run import PARTS, WindowOptions, run_window
    from benchmarks.window.trace import TraceSettings
    from emblema.cli.screen import console

    settings = TraceSettings(steps=steps, window=pictures, changing=changing)
    options = WindowOptions(tuple(models_of(model)), SampleSize(items, seed), settings, parts_of(only, PARTS))
    folder, listing = report_places(report, figures, "window.json")
    screen = console(plain)
    run_window(options, _loader(device, screen), listing, folder, screen)
    screen.print(f"report: {folder / 'window.md'}   figures: {listing}", soft_wrap=True)


@app.command()
def stream(
    model: Model = "reference-stream",
    only: Annotated[str | None, typer.Option(help="Parts with commas; all if left out.")] = None,
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
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="name=value of a setting of all streams; may come again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A little of everything, to see that it runs.")] = False,
    figures: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; stream.json in the report's folder if left out.")
    ] = None,
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
    with _loader(device, screen)(model) as engine:
        run.run_streams(engine, options, screen)
    screen.print(f"report: {folder / 'stream.md'}   figures: {listing}", soft_wrap=True)


@app.command()
def traffic(
    model: Model = "reference",
    only: Annotated[str | None, typer.Option(help="Stages with commas; all if left out.")] = None,
    methods: Annotated[str | None, typer.Option(help="Strategies with commas, beside full.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a stage; half as many of novelty.")] = 200,
    pages: Annotated[int, typer.Option(help="Pages that requests of rag and talks are about.")] = 30,
    shown: Annotated[int, typer.Option(help="Pages in a request of rag.")] = 8,
    zipf: Annotated[float, typer.Option(help="Exponent of the pages' popularity in rag-zipf; 0: all alike.")] = 1.0,
    side: Annotated[int, typer.Option(help="Cells along a page's side; 8 are 66 rows; -large doubles it.")] = 8,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all traffic; drawn if left out.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--json", help="Where figures go; traffic.json in the report's folder if left out.")
    ] = None,
    report: Report = Path("traffic"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure traffic: what methods compute, request after request; a killed run goes on with its stage."""
    import secrets

    from benchmarks.report import labels_of, parts_of, report_places
    from benchmarks.traffic.run import TrafficOptions, methods_of, run_traffic
    from benchmarks.traffic.stages import STAGES, stages_of
    from emblema.cli.screen import console

    chosen = secrets.randbelow(2**31) if seed is None else seed
    given = {
        "model": (model, "reference"), "only": (only, None), "methods": (methods, None), "requests": (requests, 200),
        "pages": (pages, 30), "shown": (shown, 8), "zipf": (zipf, 1.0), "side": (side, 8),
    }  # fmt: skip
    words = [f"--{name} {value}" for name, (value, usual) in given.items() if value != usual]
    command = " ".join(["python -m benchmarks traffic", f"--seed {chosen}", *words])
    stages = stages_of(parts_of(only, tuple(STAGES)), requests, pages=pages, shown=shown, zipf=zipf, side=side)
    options = TrafficOptions(labels_of([model])[0], command, chosen, stages, methods_of(methods))
    folder, listing = report_places(report, figures, "traffic.json")
    screen = console(plain)
    run_traffic(options, lambda: _loader(device, screen)(model), listing, folder, screen)
    screen.print(f"report: {folder / 'traffic.md'}   figures: {listing}", soft_wrap=True)


@app.command()
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
    report: Report = Path("soak"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Soak one stream for hours of video, kill it half way, and hold memory, times and answers to what they were."""
    from benchmarks.models import model_source
    from benchmarks.report import labels_of, report_places
    from benchmarks.stream.run import settings_of
    from benchmarks.stream.soak.plan import SETTINGS, SoakPlan
    from benchmarks.stream.soak.report import write_soak
    from benchmarks.stream.soak.run import soak as run
    from emblema.cli.screen import console
    from emblema.eval.progress import steps

    settings = settings_of(None, None, None, changes or (), SETTINGS)
    plan = SoakPlan(model_source(model), device, frames, every, stretch, seed, minutes, settings)
    folder, _ = report_places(report, None, "soak.json")
    screen = console(plain)
    with steps(screen, f"soak of {frames:,} frames", frames // every) as advance:
        log = run(plan, lambda found: advance())
    bars = write_soak(log, plan.reported(labels_of([model])[0]), folder, screen)
    screen.print(f"report: {folder / 'soak.md'}   figures: {folder / 'soak.json'}", soft_wrap=True)
    if not all(bar.holds for bar in bars):
        raise typer.Exit(1)


@app.command()
def vllm(
    questions: Annotated[int, typer.Option(min=0, help="Two-page questions for agreement; 0 leaves it out.")] = 200,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of first tokens; 0 leaves them out.")] = 5,
    shape: Annotated[str, typer.Option(help="The random model that is timed: 137m, or 7b for a GPU.")] = "137m",
    pictures: Annotated[int, typer.Option(min=1, help="Pictures in the timed prompt, of 256 tokens each.")] = 4,
    dtype: Annotated[str, typer.Option(help="Of the timed model: bfloat16, float16 or float32.")] = "bfloat16",
    clients: Annotated[int, typer.Option(min=0, help="Clients at once; 0 leaves them out.")] = 32,
    talks: Annotated[
        int, typer.Option("--conversations", min=0, help="Conversations over ten pictures; 0 leaves them out.")
    ] = 4,
    rates: Annotated[str, typer.Option(help="Turns a second of those; inf for all at once.")] = "0.5,inf",
    out: Annotated[Path | None, typer.Option(help="Folder for figures, page and picture.", show_default=False)] = None,
    seed: Seed = 0,
    plain: Plain = False,
) -> None:
    """Measure vLLM with the plugin against vLLM alone; conversations are sent by `vllm bench serve`."""
    import os

    from benchmarks.vllm.report import write_report
    from benchmarks.vllm.run import VllmBench, VllmOptions, rates_of
    from benchmarks.vllm.server import SHAPES, device_options, free_port, running
    from emblema.cli.screen import console, output_folder
    from emblema.errors import EmblemaError
    from emblema.eval.figures import write_figures
    from emblema.vllm.serving import command

    screen = console(plain)
    if shape not in SHAPES:
        raise EmblemaError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
    try:
        wanted = VllmOptions(questions, rounds, shape, pictures, dtype, clients, talks, rates_of(rates), seed)
    except ValueError as error:
        raise EmblemaError(f"--rates {rates}: {error}") from error
    folder = None if out is None else output_folder(out, "--out")
    before = os.getloadavg()[0]
    device, options = device_options()
    with TemporaryDirectory(prefix="emblema-vllm-") as place:

        def serve(model: str, store: Path, strategy: str, more: Sequence[str]) -> AbstractContextManager[str]:
            port = free_port()
            return running(command(model, store, strategy, more=[*options, *more]), store.with_suffix(".log"), port)

        def say(line: str) -> None:
            screen.print(line, soft_wrap=True, markup=False)

        found = VllmBench(wanted, Path(place), serve, device, say).run()
    found["load"] = [before, os.getloadavg()[0]]
    if folder is not None:
        figures = write_figures(found, folder / "vllm.json")
        # The report says how it was made, not where it was written.
        line = shlex.join(["python -m benchmarks", *(word for word in sys.argv[1:] if word not in ("--out", str(out)))])
        for path in (figures, write_report(found, folder, line)):
            screen.print(str(path), soft_wrap=True)


def _loader(device: str | None, screen: Console) -> "Callable[[str], Engine]":
    """Return what loads a model by its bundled name, folder or id, to be measured."""
    from benchmarks.models import model_source
    from emblema.cli.screen import load_engine

    return lambda name: load_engine(model_source(name), device, screen, measured=True)


def _known(task: str) -> None:
    from benchmarks.tasks import EPISODE_PLANS

    if task not in EPISODE_PLANS:
        raise EmblemaError(f"unknown task {task!r}: choose one of {', '.join(EPISODE_PLANS)}")
