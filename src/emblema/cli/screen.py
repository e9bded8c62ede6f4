"""The console that commands write to, and engines loaded with a word on it."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emblema.cli.interrupt import raise_on_interrupt
from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from emblema.engine.engine import Engine

WIDTH = 108
"""Columns where there is no terminal to ask."""


def console(plain: bool = False, *, stderr: bool = False) -> "Console":
    """Return a console; `plain` writes neither colours nor bars."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False)
    width = max(WIDTH, found.width)
    if plain:
        return Console(stderr=stderr, highlight=False, force_terminal=False, no_color=True, width=width)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=width)


def quiet() -> None:
    """Keep transformers' own bars and advice off the screen; its errors still come through."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_engine(
    model: str,
    device: str | None,
    screen: "Console",
    store: Path | None = None,
    *,
    measured: bool = False,
    anchor: Sequence[int] | None = None,
) -> "Engine":
    """Load an engine, on a store's folder if given, with a word on the screen meanwhile.

    A `measured` engine does nothing after its answers: no patches are formed, no prompts compared. For `anchor` see
    `Engine`.
    """
    with waiting(screen, f"loading {model}"):
        from emblema.engine.engine import Engine
        from emblema.link.policy.policy import Policy

        quiet()
        raise_on_interrupt()
        policy = Policy.quiet() if measured else None
        return Engine.load(model, device=device, store=store, policy=policy, anchor=anchor)


@contextmanager
def waiting(screen: "Console", what: str) -> Iterator[None]:
    """Show a spinner on a terminal."""
    if not screen.is_terminal:
        yield
        return
    with screen.status(what):
        yield


def output_folder(path: Path, option: str = "--out") -> Path:
    """Return a folder that can be written to; it is made if it is not there.

    Raises:
        EmblemaError: it cannot be made, or is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmblemaError(
            f"{option} {path}: no folder can be made there ({error.strerror}); give another one"
        ) from error
    return path


def table(*names: str, right: Collection[str] = (), title: str | None = None, **options: Any) -> "Table":
    """Return a table with columns of these names, those in `right` for numbers; `options` are of every column."""
    from rich import box
    from rich.table import Table

    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        found.add_column(name, justify="right" if name in right else "left", **options)
    return found


def show_json(value: Any) -> None:
    """Print a value as JSON; it may hold dataclasses."""
    print(json.dumps(value, indent=2, default=asdict))


def show(value: Any, as_json: bool, text: str) -> None:
    """Print a value as JSON, or what it says as text."""
    if as_json:
        show_json(value)
    else:
        print(text)
