"""Options that several commands take, and what they mean."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

Models = Annotated[str, typer.Option(help="Bundled names, folders or Hugging Face ids, with commas.")]
EpisodeTask = Annotated[str, typer.Option(help="maps, atlas or clip.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the episodes.")]
DrawnSeed = Annotated[int | None, typer.Option(min=0, help="Seed of all that is random; drawn if left out.")]
Parts = Annotated[str | None, typer.Option(help="Parts to measure, with commas; all if left out.")]
Quick = Annotated[bool, typer.Option("--quick", help="A little of everything, to see that it runs.")]
Report = Annotated[Path, typer.Option(help="Folder for the report and its plots.")]


def drawn_seed(given: int | None) -> int:
    """Return the seed that is given, or a fresh one."""
    return secrets.randbelow(2**31) if given is None else given


def model_loader(device: str | None, screen: Console) -> "Callable[[str], Engine]":
    """Return what loads a model by its bundled name, folder or id, to be measured as the papers do.

    Chunks are captured after nothing.
    """
    from benchmarks.models import model_source
    from emblema.cli.screen import load_engine

    return lambda name: load_engine(model_source(name), device, screen, measured=True, anchor=())
