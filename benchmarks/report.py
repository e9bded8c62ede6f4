"""Where a benchmark writes, what it calls its models, and its report: a page of tables and plots, figures as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.table import Bar, Table, show_bars, show_table
from emblema.errors import PromptError
from emblema.eval.figures import environment


@dataclass(frozen=True, slots=True)
class ModelTables:
    """The tables that were measured on one model."""

    model: str
    tables: tuple[Table, ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Everything that has to hold."""
        return tuple(bar for table in self.tables for bar in table.bars)

    def data(self) -> dict[str, Any]:
        """Return the tables and bars as plain data for JSON."""
        tables = [table.data() for table in self.tables]
        return {"model": self.model, "tables": tables, "bars": [bar.data() for bar in self.bars]}


def comma_list(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parts_of(text: str | None, known: Sequence[str], option: str = "--only") -> tuple[str, ...]:
    """Return the parts that a list with commas names, in the order of `known`; all of them without a list.

    Raises:
        PromptError: there is no part of that name, or the list is empty.
    """
    if text is None:
        return tuple(known)
    named = comma_list(text)
    if not named or not set(named) <= set(known):
        raise PromptError(f"{option} {text!r}: choose of {', '.join(known)}, with commas")
    return tuple(name for name in known if name in named)


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas.

    Raises:
        PromptError: one of them is none, or there is none.
    """
    names = comma_list(text)
    if not names or not all(name.isdecimal() for name in names):
        raise PromptError(f"{option} {text!r}: give whole numbers with commas between them")
    return tuple(map(int, names))


def labels_of(models: Sequence[str]) -> list[str]:
    """Return a short name for each model, each once: the last part of a path or id, numbered where it comes again."""
    labels: list[str] = []
    for model in models:
        own = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(model).name) or "model"
        count = sum(label == own or label.startswith(f"{own}.") for label in labels)
        labels.append(own if count == 0 else f"{own}.{count + 1}")
    return labels


def show_tables(screen: Console, found: ModelTables) -> None:
    """Print a model's tables, without their intervals, and its bars."""
    for table in found.tables:
        show_table(screen, table, f"{found.model}: {table.title}")
    if found.bars:
        show_bars(screen, found.bars)


def measured_on(where: Mapping[str, Any] | None = None) -> str:
    """Return what figures were measured on, in words; this machine, unless another environment is given."""
    where = environment() if where is None else where
    return (
        f"{where['device']}, {where['cores']} cores, {where['threads']} threads of torch {where['torch']}, "
        f"{where['date']}"
    )
