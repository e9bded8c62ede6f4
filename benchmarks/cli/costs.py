"""Commands that measure what each step costs, on a CPU or a GPU."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import Parts, Quick, Seed
from emblema.cli.options import Plain


def cost(
    shape: Annotated[str, typer.Option(help="reference, or a shape of random weights; see benchmarks/cost/shapes.")] = (
        "reference"
    ),
    device: Annotated[str, typer.Option(help="cpu, or a device that torch finds.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; float32 on a CPU, else bfloat16.")
    ] = None,
    only: Parts = None,
    most: Annotated[int, typer.Option(min=64, help="Rows of the longest prompt.")] = 8192,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each comparison, at most.")] = 9,
    seconds: Annotated[float, typer.Option(min=0, help="After which a comparison has no further round.")] = 15.0,
    again: Annotated[bool, typer.Option("--again", help="Measure again what is on record.")] = False,
    quick: Quick = False,
    seed: Seed = 0,
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("cost"),
    plain: Plain = False,
) -> None:
    """Measure what each step costs over re-prefill and over copying its bytes; a killed run goes on."""
    from benchmarks.cost.run import QUICK, STAGES, CostExtent, CostOptions, CostRun
    from benchmarks.cost.shapes import check_choice
    from benchmarks.cost.timing import Pace
    from benchmarks.report import parts_of, writable_folder
    from emblema.cli.screen import console, quiet

    chosen = check_choice(shape, device, dtype)
    extent = QUICK if quick else CostExtent(most=most, pace=Pace(rounds, seconds))
    options = CostOptions(shape, device, chosen, seed, parts_of(only, STAGES), extent, again)
    screen = console(plain)
    quiet()
    page, _ = CostRun(options, writable_folder(report, "--report"), screen).run()
    screen.print(f"report: {page}", soft_wrap=True)


def gpu(
    shape: Annotated[str, typer.Option(help="A shape of `benchmarks cost`.")] = "qwen2.5-vl-7b",
    device: Annotated[str, typer.Option(help="A device that torch finds; cpu to see that it runs.")] = "cuda",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; bfloat16 on a GPU.")] = None,
    only: Parts = None,
    minutes: Annotated[float, typer.Option(min=0, help="After which no further step is begun.")] = 28.0,
    quick: Quick = False,
    seed: Seed = 0,
    report: Annotated[Path, typer.Option(help="Folder for the report and its plots.")] = Path("gpu"),
    plain: Plain = False,
) -> None:
    """Half an hour on a GPU: rates, kernel, tests, placing, linking, decoding, tiers, streams; a killed run goes on."""
    from benchmarks.cost.shapes import check_choice
    from benchmarks.gpu.run import QUICK, STEPS, GpuExtent, GpuOptions, GpuRun
    from benchmarks.report import parts_of, writable_folder
    from emblema.cli.screen import console, quiet

    chosen = check_choice(shape, device, dtype)
    extent = QUICK if quick else GpuExtent()
    options = GpuOptions(shape, device, chosen, minutes, seed, parts_of(only, STEPS), extent)
    screen = console(plain)
    quiet()
    page, found = GpuRun(options, writable_folder(report, "--report"), screen).run()
    screen.print(f"report: {page}", soft_wrap=True)
    if any(record.failure for record in found):
        raise typer.Exit(1)
