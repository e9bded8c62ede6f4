"""The commands `emblema vllm-serve` and `emblema sglang-serve`: an engine's own server, with chunks linked in it."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from emblema.cli.options import STORE, Plain, ServedModel

SharedStore = Annotated[
    Path, typer.Option(envvar="EMBLEMA_STORE", help="Folder that keeps chunks and patches; servers may share one.")
]
ServedStrategy = Annotated[
    str, typer.Option(help="Of requests that name none: auto, blind, mpic-K, patch-M, patch-P%.")
]
Capture = Annotated[bool, typer.Option(help="Keep the pictures that requests show, and form patches.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the engine's command line and leave.")]


def vllm_serve(
    context: typer.Context,
    model: ServedModel,
    store: SharedStore = STORE,
    strategy: ServedStrategy = "auto",
    capture: Capture = True,
    dry_run: DryRun = False,
    plain: Plain = False,
) -> None:
    """Serve a model with vLLM's own OpenAI server, chunks linked anywhere in a prompt.

    Files and keys are those of `emblema serve`. Options that are not these go to vLLM as they are, such as --port 8000
    --dtype float32.
    """
    from emblema.cli.screen import output_folder
    from emblema.errors import EmblemaError
    from emblema.vllm.serving import check_installed, check_start, command, environment

    gone = {"--library", "--ask-start", "--ask-end"} & {option.partition("=")[0] for option in context.args}
    if gone:
        raise EmblemaError(f"{min(gone)} is gone: `emblema serve` looks things up in collections, vLLM does not")
    check_installed()
    folder = output_folder(store, "--store")
    if not dry_run:
        check_start(store, context.args, os.environ)
    _become(command(model, folder, strategy, capture, context.args), environment(os.environ), dry_run, plain)


def sglang_serve(
    context: typer.Context,
    model: ServedModel,
    store: SharedStore = STORE,
    strategy: ServedStrategy = "auto",
    capture: Capture = True,
    dry_run: DryRun = False,
    plain: Plain = False,
) -> None:
    """Serve a model with SGLang 0.5.23's own server, chunks linked anywhere in a prompt.

    Files and keys are those of `emblema serve`. Options that are not these go to SGLang as they are, such as --port
    8000 --dtype float32.
    """
    from emblema.cli.screen import output_folder
    from emblema.models.names import BUNDLED
    from emblema.sglang.bundled_tokenizer import write_tokenizer
    from emblema.sglang.serving import check_installed, check_start, command, environment

    folder = output_folder(store, "--store")
    if not dry_run:
        check_installed()
        check_start(store, context.args)
    tokenizer = folder / "serve" / f"tokenizer-{model}"
    line = command(model, context.args, tokenizer)
    if model in BUNDLED and not dry_run:
        write_tokenizer(model, tokenizer)
    _become(line, environment(os.environ, folder, strategy, capture), dry_run, plain)


def _become(line: Sequence[str], variables: Mapping[str, str], dry_run: bool, plain: bool) -> None:
    """Have this process become another program, or print its command line."""
    from emblema.cli.screen import console

    if dry_run:
        shown = [*(f"{name}={value}" for name, value in variables.items()), *line]
        console(plain).print(shlex.join(shown), soft_wrap=True, markup=False)
        return
    os.execve(line[0], list(line), os.environ | dict(variables))
