"""The command `emblema vllm-serve`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Capture, Plain, ServedModel, ServedStrategy, SharedStore


def vllm_serve(
    context: typer.Context,
    model: ServedModel,
    store: SharedStore = Path("emblema-store"),
    strategy: ServedStrategy = "auto",
    capture: Capture = True,
    library: Annotated[
        Path | None,
        typer.Option(help="Folder of pictures that the model may ask for while it answers.", show_default=False),
    ] = None,
    ask_start: Annotated[str, typer.Option(help="Text that begins such a request; empty: none.")] = "<search>",
    ask_end: Annotated[str, typer.Option(help="Text that ends it.")] = "</search>",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print vLLM's command line and leave.")] = False,
    plain: Plain = False,
) -> None:
    """Serve a model with vLLM 0.32's own OpenAI server, chunks linked anywhere in a prompt.

    Files and keys are those of `emblema serve`. Options that are not these go to vLLM as they are, such as --port 8000
    --dtype float32.
    """
    import os
    import shlex

    from emblema.cli.screen import console, output_folder
    from emblema.vllm.retrieving import RETRIEVAL_VARIABLE, PictureRetrieval
    from emblema.vllm.serving import check_start, command, environment
    from emblema.vllm.word_search import PictureFolder

    line = command(model, output_folder(store, "--store"), strategy, capture, context.args, library is not None)
    variables = environment(os.environ)
    retrieval: dict[str, str] = {}
    if library is not None:
        PictureFolder(library)
        rules = PictureRetrieval(library=str(library.resolve()), end=ask_end, start=ask_start or None)
        retrieval[RETRIEVAL_VARIABLE] = rules.to_json()
    if dry_run:
        shown = [*(f"{name}={value}" for name, value in (variables | retrieval).items()), *line]
        console(plain).print(shlex.join(shown), soft_wrap=True, markup=False)
        return
    check_start(store, line, os.environ)
    os.execve(line[0], line, os.environ | variables | retrieval)
