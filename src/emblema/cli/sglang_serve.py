"""The command `emblema sglang-serve`."""

from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import Capture, Plain, ServedModel, ServedStrategy, SharedStore


def sglang_serve(
    context: typer.Context,
    model: ServedModel,
    store: SharedStore = Path("emblema-store"),
    strategy: ServedStrategy = "auto",
    capture: Capture = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print SGLang's command line and leave.")] = False,
    plain: Plain = False,
) -> None:
    """Serve a model with SGLang 0.5.23's own server, chunks linked anywhere in a prompt.

    Files and keys are those of `emblema serve`. Options that are not these go to SGLang as they are, such as --port
    8000 --dtype float32.
    """
    import os
    import shlex

    from emblema.cli.screen import console, output_folder
    from emblema.models.load import BUNDLED
    from emblema.sglang.bundled_tokenizer import write_tokenizer
    from emblema.sglang.serving import check_installed, check_start, command, environment

    folder = output_folder(store, "--store")
    tokenizer = folder / "serve" / f"tokenizer-{model}"
    line = command(model, context.args, tokenizer)
    variables = environment(os.environ, folder, strategy, capture)
    if dry_run:
        shown = [*(f"{name}={value}" for name, value in variables.items()), *line]
        console(plain).print(shlex.join(shown), soft_wrap=True, markup=False)
        return
    check_installed()
    check_start(store, line)
    if model in BUNDLED:
        write_tokenizer(model, tokenizer)
    os.execve(line[0], line, os.environ | variables)
