"""Where commands write: a console for people, and the libraries underneath kept quiet."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from rich.console import Console

    from emblema.engine.engine import Engine

WIDTH = 108
"""Columns where there is no terminal to ask."""


def console(plain: bool = False, *, stderr: bool = False) -> "Console":
    """A console; `plain` writes neither colours nor bars."""
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
    model: str, device: str | None, screen: "Console", store: Path | None = None, *, measured: bool = False
) -> "Engine":
    """An engine, on a folder of stored pieces if one is given, with a word on the screen while it loads.

    One that is measured does nothing behind its answers.
    """
    with waiting(screen, f"loading {model}"):
        from emblema.engine.engine import Engine
        from emblema.link.policy.policy import Policy

        quiet()
        return Engine.load(model, device=device, store=store, policy=Policy.quiet() if measured else None)


@contextmanager
def waiting(screen: "Console", what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing elsewhere."""
    if not screen.is_terminal:
        yield
        return
    with screen.status(what):
        yield


def output_folder(path: Path, option: str = "--out") -> Path:
    """A folder that can be written to, made if it is not there.

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
