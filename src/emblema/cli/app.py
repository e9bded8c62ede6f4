"""The application: commands by name, each in a file of its own that imports the rooms it needs when it runs."""

from typing import Annotated

import typer

from emblema.cli import ask, check, demo, engine_serve, listing, policy, serve, store, stream, why

app = typer.Typer(
    name="emblema",
    help="A picture's key-value cache, made once and set into any prompt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(ask.ask)
app.command()(stream.stream)
app.command()(check.check)
app.command()(listing.models)
app.command()(listing.strategies)
app.command()(policy.policy)
app.command()(why.why)
app.command()(serve.serve)
app.add_typer(serve.keys, name="keys")
for engine_command in (engine_serve.vllm_serve, engine_serve.sglang_serve):
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(engine_command)
app.add_typer(store.app, name="store")


def _version(wanted: bool) -> None:
    if wanted:
        from emblema import __version__

        typer.echo(f"emblema {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """A picture's key-value cache, made once and set into any prompt."""
