"""The commands `emblema serve` and `emblema keys`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emblema.cli.interrupt import raise_on_interrupt
from emblema.cli.options import STORE, Json, Plain, StoreFolder

if TYPE_CHECKING:
    from emblema.serve.settings import ServeSettings

keys = typer.Typer(help="Keys of a server: whose requests are whose.", no_args_is_help=True)


def serve(
    model: Annotated[str | None, typer.Argument(help="A bundled name, a folder or a Hugging Face id.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Address of a running engine that answers OpenAI's clients; EMBLEMA_ENGINE_KEY has its key."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8000 by default, 0 takes a free one.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of chunks, files and keys.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to run: cpu, cuda, cuda:1, mps; a GPU by default.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Of requests that name none; auto by default.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; info by default.")] = None,
    replicas: Annotated[
        int, typer.Option(min=1, help="Processes, each with the model, behind a router by media; needs the extra ray.")
    ] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting, as NAME=VALUE; may be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings and leave.")] = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it."""
    from emblema.extras import import_extra

    import_extra("uvicorn", "serve")
    from emblema.errors import EmblemaError
    from emblema.serve.settings import ServeSettings
    from emblema.serve.starting import check_address, check_start, listen_at

    flags: dict[str, Any] = dict(pair.partition("=")[::2] for pair in set_ or ())
    flags |= {
        "model": model, "engine": engine, "host": host, "port": port, "store": store, "device": device, "dtype": dtype,
        "strategy": strategy, "log_level": log_level,
    }  # fmt: skip
    settings = ServeSettings.read(config, **flags)
    if print_config:
        typer.echo(settings.model_dump_json(indent=2))
        return
    if settings.engine is not None:
        if model or device or dtype or strategy or replicas > 1:
            raise EmblemaError(
                "the engine has its own model: leave MODEL, --device, --dtype, --strategy and --replicas"
            )
        _serve_in_front(settings, settings.engine)
        return
    check_start(settings)
    if replicas > 1:
        if settings.ssl_certfile is not None:
            raise EmblemaError("ssl_certfile is not for --replicas: have a proxy in front of them take https")
        check_address(settings.host, settings.port)
        from emblema.serve.ray import keep_ray_on_loopback

        keep_ray_on_loopback()
        import_extra("ray", "ray")
        from emblema.serve.ray.deployment import run as run_replicas

        raise_on_interrupt()
        run_replicas(settings, replicas)
        return
    listening = listen_at(settings.host, settings.port)
    # The first line for programs is the address, once it answers.
    typer.echo(f"loading {settings.model} …", err=True)
    from emblema.cli.screen import quiet
    from emblema.serve.running import run

    quiet()
    raise_on_interrupt()
    run(listening, settings)


def _serve_in_front(settings: "ServeSettings", engine: str) -> None:
    from emblema.serve.front.engine import EngineClient
    from emblema.serve.front.running import run

    raise_on_interrupt()
    run(settings, EngineClient(engine, os.environ.get("EMBLEMA_ENGINE_KEY") or None))


@keys.command("add")
def add(
    tenant: Annotated[str, typer.Argument(help="Whose it is; several keys may be one tenant's.")],
    store: StoreFolder = STORE,
    administrator: Annotated[bool, typer.Option(help="May write shared collections.")] = False,
    quota: Annotated[int | None, typer.Option(help="Bytes of its files.")] = None,
) -> None:
    """Make a key and print it. It is shown once."""
    from emblema.serve.keys import KeyRing

    typer.echo(KeyRing(store / "serve").add(tenant, administrator, quota))


@keys.command("list")
def list_(store: StoreFolder = STORE, json: Json = False, plain: Plain = False) -> None:
    """List the keys, without what they are."""
    from dataclasses import asdict

    from emblema.cli.screen import console
    from emblema.serve.keys import KeyRing

    entries = KeyRing(store / "serve").list()
    shown = console(plain)
    if json:
        shown.print_json(data=[asdict(entry) for entry in entries])
        return
    for entry in entries:
        role = "administrator" if entry.administrator else "user"
        shown.print(f"{entry.id}  {entry.tenant}  {role}", markup=False, soft_wrap=True)


@keys.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    store: StoreFolder = STORE,
) -> None:
    """Take a key back."""
    from emblema.errors import EmblemaError
    from emblema.serve.keys import KeyRing

    if not KeyRing(store / "serve").revoke(id):
        raise EmblemaError(f"there is no key {id!r}: see `emblema keys list`")
