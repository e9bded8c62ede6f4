"""What the papers' text states, and where the same is looked up here; `papers.toml` has the words."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAPERS = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of ours: the first of `strategies` that was measured on the first of `tasks` that was."""

    label: str
    tasks: tuple[str, ...]
    strategies: tuple[str, ...]
    figure: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A claim of a paper: where it is, its words, our cells beside it, and why they may differ."""

    paper: str
    where: str
    words: str
    cells: tuple[Cell, ...]
    note: str = ""


@cache
def statements() -> tuple[Statement, ...]:
    """Return every statement, in the order of the page."""
    held = tomllib.loads(PAPERS.read_text(encoding="utf-8"))

    def named(kind: str, name: str) -> tuple[str, ...]:
        return tuple(held[kind].get(name, [name]))

    return tuple(
        Statement(
            **{name: text for name, text in stated.items() if name != "cells"},
            cells=tuple(
                Cell(label, named("tasks", task), named("strategies", strategy), figure)
                for label, task, strategy, figure in stated["cells"]
            ),
        )
        for stated in held["statements"]
    )
