"""The commands `emblema vllm-serve` and `emblema sglang-serve`: an engine with the plugin, the service in front."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emblema.cli.options import STORE, Plain, ServedModel

if TYPE_CHECKING:
    from emblema.serve.front.engine import EngineClient

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
    least_rows: Annotated[
        int | None, typer.Option(min=0, help="Rows that each run of taken rows has to save; measured if left out.")
    ] = None,
    dry_run: DryRun = False,
    plain: Plain = False,
) -> None:
    """Serve a model with vLLM's own OpenAI server, chunks linked anywhere in a prompt.

    Files and keys are those of `emblema serve`. Options for listening are the
    service's, such as --port 8000; others go to vLLM as they are, such as --dtype float32.
    """
    from emblema.cli.screen import output_folder
    from emblema.errors import EmblemaError
    from emblema.serve.front.command_line import split_options
    from emblema.serve.front.engine import EngineClient
    from emblema.serve.front.engine_api import VLLM
    from emblema.vllm.serving import KEY, check_installed, check_torchvision, command, environment

    gone = {"--library", "--ask-start", "--ask-end"} & {option.partition("=")[0] for option in context.args}
    if gone:
        raise EmblemaError(f"{min(gone)} is gone: `emblema serve` looks things up in collections, vLLM does not")
    check_installed()
    folder = output_folder(store, "--store")
    own, options = split_options(context.args)
    own["api_key"] = own.get("api_key") or list(filter(None, [os.environ.get(KEY)]))
    with TemporaryDirectory(prefix="emblema-") as place:
        socket = Path(place) / "engine"
        line = command(model, folder, strategy, capture, [*options, "--uds", str(socket)], least_rows)
        variables = environment(os.environ)
        if dry_run:
            _show(line, variables, plain)
            return
        check_torchvision()
        _serve(own, folder, EngineClient("http://localhost", socket=socket, api=VLLM), line, variables)


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

    Files and keys are those of `emblema serve`. Options for listening are the
    service's, such as --port 8000; others go to SGLang as they are, such as --dtype float32.
    """
    from emblema.cli.screen import output_folder
    from emblema.models.names import BUNDLED
    from emblema.serve.front.command_line import split_options
    from emblema.serve.front.engine import EngineClient
    from emblema.serve.front.engine_api import SGLANG
    from emblema.serve.starting import listen_at
    from emblema.sglang.bundled_tokenizer import write_tokenizer
    from emblema.sglang.serving import PORT, check_installed, check_listeners, command, environment, listening

    folder = output_folder(store, "--store")
    own, options = split_options(context.args)
    check_listeners(options, os.environ)
    with TemporaryDirectory(prefix="emblema-") as place, listen_at("127.0.0.1", 0) as free:
        port, key = free.getsockname()[1], token_urlsafe(32)
        free.close()
        tokenizer = folder / "serve" / f"tokenizer-{model}"
        line = command(model, listening(options, Path(place), port, key), tokenizer)
        variables = os.environ | environment(os.environ, folder, strategy, capture)
        if dry_run:
            _show(line, variables, plain)
            return
        check_installed()
        if model in BUNDLED:
            write_tokenizer(model, tokenizer)
        own.setdefault("port", [str(PORT)])
        _serve(own, folder, EngineClient(f"http://127.0.0.1:{port}", key, api=SGLANG), line, variables)


def _show(line: Sequence[str], variables: Mapping[str, str], plain: bool) -> None:
    """Print the command line of an engine, and what its environment has beside this process's."""
    from emblema.cli.screen import console

    more = [f"{name}={value}" for name, value in variables.items() if os.environ.get(name) != value]
    console(plain).print(shlex.join([*more, *line]), soft_wrap=True, markup=False)


def _serve(
    own: Mapping[str, Sequence[str]],
    store: Path,
    engine: "EngineClient",
    line: Sequence[str],
    variables: Mapping[str, str],
) -> None:
    """Start an engine, and serve in front of it until either ends."""
    from emblema.cli.interrupt import raise_on_interrupt
    from emblema.serve.front.process import EngineProcess
    from emblema.serve.front.running import run
    from emblema.serve.settings import ServeSettings

    given: dict[str, Any] = {name: values[0] for name, values in own.items() if name != "api_key"}
    settings = ServeSettings.read(store=store, **given)
    raise_on_interrupt()
    run(settings, engine, own.get("api_key", ()), EngineProcess(engine.known.name, line, variables))
