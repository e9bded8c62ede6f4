"""`python -m benchmarks stream`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Device, Model, Plain


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
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("stream"),
    device: Device = None,
    plain: Plain = False,
) -> None:
    """Measure streams: how well every memory answers at equal budget, and what it costs; a killed run goes on."""
    from benchmarks.models import model_source
    from benchmarks.report import labels_of, parts_of, report_places
    from benchmarks.stream import options
    from benchmarks.stream.command import PARTS, Files, run
    from benchmarks.stream.systems.wanted import SystemsWanted
    from benchmarks.stream.wanted import Wanted
    from benchmarks.tasks.streams import STREAM_KINDS
    from emblema.cli.screen import console, load_engine

    methods, ablations = options.arms_of(arms)
    wanted = Wanted(
        kinds=options.names_of(kinds, STREAM_KINDS),
        seeds=options.seeds_of(seeds),
        items=items,
        others=others,
        frames=frames,
        lengths=options.numbers_of(lengths, "--lengths"),
        budget=budget,
        budgets=options.numbers_of(budgets, "--budgets"),
        methods=methods,
        ablations=ablations,
        times=times,
        each=each,
        settings=options.settings_of(window, block, positions, changes or ()),
    )
    seed = wanted.seeds[0]
    if quick:
        wanted, systems = options.quick(wanted), SystemsWanted.quick(seed, wanted.settings)
    else:
        systems = SystemsWanted(seed, wanted.kinds, settings=wanted.settings)
    parts = parts_of(only, PARTS)
    folder, listing = report_places(report, figures, "stream.json")
    files = Files(listing, folder, tuple(Path(one) for one in options.names_of(runs or "", ())))
    screen = console(plain)
    with load_engine(model_source(model), device, screen, measured=True) as engine:
        run(engine, labels_of([model])[0], wanted, systems, parts, files, screen)
    screen.print(f"report: {folder / 'stream.md'}   figures: {listing}", soft_wrap=True)
