"""Where a benchmark writes, what it calls its models, and its report: a page of tables and plots, figures as JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import read_figures
from benchmarks.plots import draw_table
from benchmarks.table import Bar, Table, bars_markdown, bars_of, show_bars, show_table, table_markdown
from emblema.errors import EmblemaError, PromptError
from emblema.eval.figures import environment

Pictures = Callable[[str, Table, Path], list[Path]]
"""Draws more of a model's table than its plots, into a folder."""


@dataclass(frozen=True, slots=True)
class ModelTables:
    """The tables that were measured on one model."""

    model: str
    tables: tuple[Table, ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Everything that has to hold."""
        return bars_of(self.tables)

    def kept(self) -> "ModelTables":
        """Return the tables with the digits that rows of a file keep."""
        return ModelTables(self.model, tuple(table.kept() for table in self.tables))

    def data(self) -> dict[str, Any]:
        """Return the tables and bars as plain data for JSON."""
        tables = [table.data() for table in self.tables]
        return {"model": self.model, "tables": tables, "bars": [bar.data() for bar in self.bars]}


def comma_list(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parts_of(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that a list with commas names, in the order of `known`; all of them without a list.

    Raises:
        PromptError: there is no part of that name, or the list is empty.
    """
    if text is None:
        return tuple(known)
    named = comma_list(text)
    if not named or not set(named) <= set(known):
        raise PromptError(f"--only {text!r}: choose of {', '.join(known)}, with commas")
    return tuple(name for name in known if name in named)


def models_of(text: str) -> list[str]:
    """Return the models of a list with commas.

    Raises:
        EmblemaError: it names none.
    """
    names = comma_list(text)
    if not names:
        raise EmblemaError(f"--model {text!r}: name a bundled model, a folder or a Hugging Face id")
    return names


def labels_of(models: Sequence[str]) -> list[str]:
    """Return a short name for each model, each once: the last part of a path or id, numbered where it comes again."""
    labels: list[str] = []
    for model in models:
        own = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(model).name) or "model"
        count = sum(label == own or label.startswith(f"{own}.") for label in labels)
        labels.append(own if count == 0 else f"{own}.{count + 1}")
    return labels


def writable_folder(folder: Path, option: str) -> Path:
    """Make a folder if it is not there, and return it.

    Raises:
        EmblemaError: it cannot be made, is a file, or takes no files.
    """
    trial = folder / ".emblema"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise EmblemaError(f"{option} {folder}: it cannot be written ({error.strerror}); give another place") from error
    return folder


def report_places(folder: Path, figures: Path | None, name: str) -> tuple[Path, Path]:
    """Return the report's folder, made if it is not there, and the file of its figures: `name` in it if none is given.

    Raises:
        EmblemaError: one of them cannot be written.
    """
    writable_folder(folder, "--report")
    listing = folder / name if figures is None else figures
    try:
        listing.parent.mkdir(parents=True, exist_ok=True)
        existed = listing.exists()
        with listing.open("a", encoding="utf-8"):
            pass
        if not existed:
            listing.unlink()
    except OSError as error:
        raise EmblemaError(f"--json {listing}: it cannot be written ({error.strerror}); give another file") from error
    return folder, listing


def show_tables(screen: Console, found: ModelTables) -> None:
    """Print a model's tables, without their intervals, and its bars."""
    for table in found.tables:
        show_table(screen, table, f"{found.model}: {table.title}")
    if found.bars:
        show_bars(screen, found.bars)


def drawable(found: ModelTables) -> tuple[ModelTables, str]:
    """Return tables without their plots where matplotlib is missing, and a line that says so, else empty."""
    if importable("matplotlib"):
        return found, ""
    bare = tuple(replace(table, plots=()) for table in found.tables)
    return replace(found, tables=bare), "There are no plots: matplotlib is not installed."


def importable(name: str) -> bool:
    """Return whether a package can be imported."""
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def write_page(
    path: Path,
    title: str,
    command: str,
    found: Sequence[ModelTables],
    pictures: Pictures = lambda model, table, folder: [],
    remarks: Sequence[str] = (),
) -> Path:
    """Write a page of tables in Markdown, with their plots beside it; returns its path.

    Args:
        command: how it was measured, in words.
        found: the models, each under a heading of its own.
        pictures: draws what is shown below a table and its plots.
        remarks: what the bars rest on besides, a paragraph each.
    """
    parts = [f"# {title}", f"{command}; on {measured_on()}.", *remarks]
    if any(model.bars for model in found):
        parts += ["## Bars", bars_markdown([(model.model, model.bars) for model in found])]
    for model in found:
        parts.append(f"## {model.model}")
        for table in model.tables:
            parts += [f"### {table.title}", table.note, table_markdown(table)]
            drawn = draw_table(table, model.model, path.parent)
            shown = [*([] if drawn is None else [drawn]), *pictures(model.model, table, path.parent)]
            parts += [f"![{table.title}, {model.model}]({picture.name})" for picture in shown]
    return write_parts(parts, path)


def write_parts(parts: Iterable[str], path: Path) -> Path:
    """Write parts of Markdown, those that are empty left out, with blank lines between them; returns the path."""
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    return path


def check_written(page: Path, made: str) -> None:
    """Hold a page to its figures.

    Args:
        made: what they make of it.

    Raises:
        EmblemaError: it is not that.
    """
    if not page.is_file() or page.read_text(encoding="utf-8") != made:
        raise EmblemaError(f"{page} is not what its figures make: run `python -m benchmarks results` and commit it")


def read_run(listing: Path, command: str, asked: str, lists: Sequence[str] = ("rows",)) -> dict[str, Any]:
    """Return what a run wrote.

    Args:
        command: of the run, for the error.
        asked: an option of the run; its value is never empty.
        lists: what the file holds lists of.

    Raises:
        EmblemaError: the file is not there, or is none of such a run's.
    """
    try:
        found = read_figures(listing)
        if not (all(isinstance(found[name], list) for name in lists) and found["asked"][asked]):
            raise ValueError(f"no {' and '.join(lists)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmblemaError(f"{listing}: it cannot be read ({error}); give what `{command}` wrote") from error
    return found


def measured_on(where: Mapping[str, Any] | None = None) -> str:
    """Return what figures were measured on, in words; this machine, unless another environment is given."""
    where = environment() if where is None else where
    return (
        f"{where['device']}, {where['cores']} cores, {where['threads']} threads of torch {where['torch']}, "
        f"{where['date']}"
    )


def options_text(options: Mapping[str, Any]) -> str:
    """Return a run's options in words."""

    def words(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return ", ".join(f"{name} {words(value)}" for name, value in options.items())
