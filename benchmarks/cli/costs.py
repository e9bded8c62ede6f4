"""Commands that measure what each step costs, on a CPU or a GPU, and the store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import DrawnSeed, Parts, Quick, Report, Seed, drawn_seed
from emblema.cli.options import Model, Plain

if TYPE_CHECKING:
    from benchmarks.cost.stages import StageRun, StageSizes

Shape = Annotated[str, typer.Option(help="reference, or a shape of random weights; see benchmarks/cost/shapes.")]
Device = Annotated[str, typer.Option(help="cpu, or a device that torch finds.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; float32 on a CPU, else bfloat16.")]


def cost(
    shape: Shape = "reference",
    device: Device = "cpu",
    dtype: Dtype = None,
    only: Parts = None,
    most: Annotated[int, typer.Option(min=64, help="Rows of the longest prompt.")] = 8192,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each comparison, at most.")] = 9,
    seconds: Annotated[float, typer.Option(min=0, help="After which a comparison has no further round.")] = 15.0,
    quick: Quick = False,
    seed: Seed = 0,
    report: Report = Path("build/cost"),
    plain: Plain = False,
) -> None:
    """Measure what each step costs over re-prefill and over copying its bytes; a killed run goes on."""
    from benchmarks.cost.run import CostRun
    from benchmarks.cost.stages import QUICK, StageSizes
    from benchmarks.cost.timing import Pace

    extent = QUICK if quick else StageSizes(most=most, pace=Pace(rounds, seconds))
    _run(CostRun, shape, device, dtype, only, extent, seed, report, plain)


def gpu(
    shape: Shape = "qwen2.5-vl-7b",
    device: Device = "cuda",
    dtype: Dtype = None,
    only: Parts = None,
    minutes: Annotated[float, typer.Option(min=0, help="After which no further step is begun.")] = 28.0,
    seed: Seed = 0,
    report: Report = Path("build/gpu"),
    plain: Plain = False,
) -> None:
    """Half an hour on a GPU: rates, kernel, placing, linking, decoding, tiers, jitter; a killed run goes on."""
    from benchmarks.gpu.run import USUAL, GpuRun

    _run(GpuRun, shape, device, dtype, only, USUAL, seed, report, plain, minutes)


def store(
    only: Annotated[str | None, typer.Option(help="throughput, overlap; both if left out.")] = None,
    quick: Quick = False,
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write the page of the figures.")] = False,
    disk: Annotated[
        Path | None, typer.Option(help="Folder to write to, on the disk to be measured; a temporary one by default.")
    ] = None,
    seed: DrawnSeed = None,
    report: Report = Path("build/store"),
    model: Model = "reference",
    plain: Plain = False,
) -> None:
    """Measure the store: verified loads over plain reads, and first tokens by where the KV is."""
    from benchmarks.figures import read_figures, write_figures
    from benchmarks.report import parts_of
    from benchmarks.store.run import FULL, PARTS, QUICK, measure_store, write_store_page
    from benchmarks.table import show_bars
    from emblema.cli.screen import console, output_folder, quiet

    screen = console(plain)
    folder = output_folder(report, "--report")
    listing = folder / "store.json"
    quiet()
    if not page:
        place = None if disk is None else output_folder(disk, "--disk")
        parts, extent = parts_of(only, PARTS), QUICK if quick else FULL
        write_figures(measure_store(extent, drawn_seed(seed), model, parts, place), listing)
    written, bars = write_store_page(read_figures(listing), folder)
    show_bars(screen, bars)
    screen.print(f"report: {written}   figures: {listing}", soft_wrap=True)


def _run(
    kind: "type[StageRun]", shape: str, device: str, dtype: str | None, only: str | None, extent: "StageSizes",
    seed: int, report: Path, plain: bool, minutes: float = 1e6,
) -> None:  # fmt: skip
    """Measure what is asked, and leave with 1 where a stage could not be measured."""
    import torch

    from benchmarks.cost.shapes import check_choice
    from benchmarks.cost.stages import RunOptions
    from benchmarks.report import parts_of
    from emblema.cli.screen import console, output_folder, quiet

    stages = parts_of(only, tuple(kind.stages))
    options = RunOptions(shape, device, check_choice(shape, device, dtype), seed, stages, extent, minutes)
    if device == "cpu":
        torch.set_num_threads(1)
    screen = console(plain)
    quiet()
    page, found = kind(options, output_folder(report, "--report"), screen).run()
    screen.print(f"report: {page}", soft_wrap=True)
    if any(record.failure for record in found):
        raise typer.Exit(1)
