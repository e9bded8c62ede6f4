"""`emblema demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.interrupt import raise_on_interrupt
from emblema.cli.options import Device, Model, Out, Plain
from emblema.extras import import_extra


def demo(
    out: Out = Path("demo"),
    model: Model = "reference",
    device: Device = None,
    rounds: Annotated[int, typer.Option(min=1, max=20, help="Repeats of every request; fewer if time runs short.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch, for every strategy alike.")] = 1,
    plain: Plain = False,
) -> None:
    """Ask about the same pictures in several arrangements, by four strategies, and show what each one costs.

    The bundled model is asked about pictures and a clip; `--model smollm2-135m` about pages of plain English.
    """
    began = time.perf_counter()
    from emblema.cli.screen import console, output_folder, quiet

    for package, extra in (("av", "video"), ("matplotlib", "plots")):
        import_extra(package, extra)
    screen = console(plain)
    folder = output_folder(out)
    from functools import partial

    from emblema.eval.demo import report, run_demo
    from emblema.eval.demo_media import SITUATIONS
    from emblema.eval.demo_picture import draw
    from emblema.eval.demo_report import show
    from emblema.eval.figures import write_figures
    from emblema.eval.page_demo import ORDERS, draw_pages
    from emblema.models.pretrained import PRETRAINED

    quiet()
    raise_on_interrupt()
    if model in PRETRAINED and PRETRAINED[model].reads_pages:
        screen.print("[bold]Emblema[/bold]: pages of English, prefilled once, set into prompts in five arrangements")
        result = run_demo(screen, model, rounds, device, threads, began, partial(draw_pages, folder=folder), ORDERS)
    else:
        screen.print("[bold]Emblema[/bold]: pictures and a clip, prefilled once, set into prompts in six arrangements")
        result = run_demo(screen, model, rounds, device, threads, began, None, SITUATIONS)
    picture = draw(result, folder / "demo.png")
    listing = write_figures(report(result), folder / "demo.json")
    show(screen, result)
    seconds = time.perf_counter() - began
    screen.print(f"\npicture: {picture}   figures: {listing}   ({seconds:.0f} s in all)", soft_wrap=True)
    if result.broken:
        raise typer.Exit(1)
