"""`python -m benchmarks vllm`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Plain, Seed


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
    import shlex
    import sys
    from tempfile import TemporaryDirectory

    from benchmarks.vllm.model import SHAPES
    from benchmarks.vllm.report import write
    from benchmarks.vllm.run import Bench, Settings, read, written
    from benchmarks.vllm.server import device_options, free_port, running
    from emblema.cli.screen import console, output_folder
    from emblema.errors import EmblemaError
    from emblema.eval.figures import write_figures
    from emblema.vllm.serving import command

    screen = console(plain)
    if shape not in SHAPES:
        raise EmblemaError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
    try:
        settings = Settings(questions, rounds, shape, pictures, dtype, clients, talks, written(rates), seed)
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

        found = Bench(settings, Path(place), serve, device, say).run()
    found["load"] = [before, os.getloadavg()[0]]
    if folder is not None:
        figures = write_figures(found, folder / "vllm.json")
        # The report says how it was made, not where it was written.
        line = shlex.join(["emblema", *(word for word in sys.argv[1:] if word not in ("--out", str(out)))])
        for path in (figures, *write(read(figures), folder, line)):
            screen.print(str(path), soft_wrap=True)
