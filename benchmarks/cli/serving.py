"""Commands that measure what a server lives on: the store, requests one after another, vLLM, SGLang."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Figures, Parts, Quick, Report, Seed, drawn_seed, model_loader
from emblema.cli.options import Device, Model, Plain


def store(
    figures: Annotated[Path | None, typer.Option("--json", help="File for every figure, as JSON.")] = None,
    pages: Annotated[Path | None, typer.Option("--report", help="Folder for store.md and its pictures.")] = None,
    quick: Quick = False,
    seed: DrawnSeed = None,
    only: Parts = None,
    disk: Annotated[
        Path | None, typer.Option(help="Folder to write to, on the disk to be measured; a temporary one by default.")
    ] = None,
    model: Model = "reference",
    plain: Plain = False,
) -> None:
    """Measure the store: saving and loading, overlap, index, hit ratios, sharing, compression."""
    from benchmarks.store.report import report, show, write_report
    from benchmarks.store.run import FULL, PARTS, QUICK, run
    from emblema.cli.screen import console, output_folder, quiet
    from emblema.eval.figures import write_figures

    screen = console(plain)
    folder = None if pages is None else output_folder(pages, "--report")
    if figures is not None:
        output_folder(figures.parent, "--json")
    quiet()
    result = run(
        QUICK if quick else FULL,
        drawn_seed(seed),
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


def traffic(
    model: Model = "reference",
    only: Parts = None,
    methods: Annotated[str | None, typer.Option(help="Strategies with commas, beside full.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a stage; half as many of novelty.")] = 200,
    pages: Annotated[int, typer.Option(help="Pages that requests of rag and talks are about.")] = 30,
    shown: Annotated[int, typer.Option(help="Pages in a request of rag.")] = 8,
    zipf: Annotated[float, typer.Option(help="Exponent of the pages' popularity in rag-zipf; 0: all alike.")] = 1.0,
    side: Annotated[int, typer.Option(help="Cells along a page's side; 8 are 66 rows; -large doubles it.")] = 8,
    seed: DrawnSeed = None,
    figures: Figures = None,
    report: Report = Path("traffic"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure traffic: what methods compute, request after request; a killed run goes on with its stage."""
    from benchmarks.report import labels_of, parts_of, report_places
    from benchmarks.traffic.run import TrafficOptions, methods_of, run_traffic
    from benchmarks.traffic.stages import STAGES, stages_of
    from emblema.cli.screen import console

    chosen = drawn_seed(seed)
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
    run_traffic(options, lambda: model_loader(device, screen)(model), listing, folder, screen)
    screen.print(f"report: {folder / 'traffic.md'}   figures: {listing}", soft_wrap=True)


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
    saturation: Annotated[
        int, typer.Option(min=0, help="Rounds at saturation, beside vLLM without the plugin; 0 leaves them out.")
    ] = 5,
    readings: Annotated[
        int, typer.Option(min=0, help="Rounds of first tokens of prompts that are read; 0 leaves them out.")
    ] = 5,
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
        sent = rates_of(rates)
        wanted = VllmOptions(
            questions, rounds, shape, pictures, dtype, clients, talks, sent, saturation, readings, seed
        )
    except ValueError as error:
        raise EmblemaError(f"--rates {rates}: {error}") from error
    folder = None if out is None else output_folder(out, "--out")
    before = os.getloadavg()[0]
    device, options = device_options()
    with TemporaryDirectory(prefix="emblema-vllm-") as place:

        def serve(
            model: str, store: Path | None, strategy: str, more: Sequence[str], weigh: bool
        ) -> AbstractContextManager[str]:
            port = free_port()
            log = Path(place) / f"{'plain' if store is None else store.name}-{port}.log"
            return running(command(model, store, strategy, more=[*options, *more], weigh=weigh), log, port)

        def say(line: str) -> None:
            screen.print(line, soft_wrap=True, markup=False)

        found = VllmBench(wanted, Path(place), serve, device, say).run()
    found["load"] = [before, os.getloadavg()[0]]
    if folder is not None:
        figures = write_figures(found, folder / "vllm.json")
        # The report says how it was made, not where it was written.
        words = [word for word in sys.argv[1:] if word not in ("--out", str(out))]
        line = f"python -m benchmarks {shlex.join(words)}"
        for path in (figures, write_report(found, folder, line)):
            screen.print(str(path), soft_wrap=True)


def sglang(
    shape: Annotated[str, typer.Option(help="reference, or a random model: 137m.")] = "137m",
    pictures: Annotated[int, typer.Option(min=1, help="Known pictures in the prompt.")] = 8,
    side: Annotated[int, typer.Option(min=28, help="Pixels along a picture's side; 448 are 256 tokens.")] = 448,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of which asks every strategy once.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Folder for figures and page.", show_default=False)] = None,
    plain: Plain = False,
) -> None:
    """Measure first tokens inside SGLang with the plugin: plain, k = 0 and k = 32."""
    from benchmarks.rowfile import write_rows
    from benchmarks.sglang.first_tokens import FirstTokenOptions, measure, page
    from benchmarks.vllm.server import SHAPES, random_model
    from emblema.cli.screen import console, output_folder
    from emblema.errors import EmblemaError
    from emblema.models.load import bundled_folder

    screen = console(plain)
    folder = None if out is None else output_folder(out, "--out")
    with TemporaryDirectory(prefix="emblema-sglang-") as place:
        if shape == "reference":
            options = FirstTokenOptions(bundled_folder(shape), "`reference`", pictures, side, rounds)
        elif shape in SHAPES:
            parameters = random_model(Path(place) / "model", shape)
            label = f"a random model of {parameters / 1e6:.0f} M parameters"
            options = FirstTokenOptions(Path(place) / "model", label, pictures, side, rounds, "dummy")
        else:
            raise EmblemaError(f"unknown shape {shape!r}: choose reference or one of {', '.join(SHAPES)}")
        found = measure(options, Path(place) / "store", lambda line: screen.print(line, markup=False))
    words = [word for word in sys.argv[1:] if word not in ("--out", str(out))]
    text = page(found, f"python -m benchmarks {shlex.join(words)}")
    screen.print(text, markup=False)
    if folder is not None:
        (folder / "sglang.md").write_text(text, encoding="utf-8")
        screen.print(str(write_rows(found, folder / "sglang.json")), soft_wrap=True)
