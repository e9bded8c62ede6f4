"""Names of a serving engine that a plugin uses and the engine does not promise to keep, and which of them it lacks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import isfunction
from typing import Any

from emblema.errors import EmblemaError


@dataclass(frozen=True, slots=True)
class NamesOf:
    """Names of an engine's class: methods, properties, fields, or what its constructor sets; or what a function sets.

    Attributes:
        module: where the class or function is.
        owner: its name.
        names: what is used of it.
        private: whether they are the engine's own alone, and not of an interface that it offers to others.
    """

    module: str
    owner: str
    names: tuple[str, ...]
    private: bool = True


def names_of(module: str, owner: str, names: str, private: bool = True) -> NamesOf:
    """Return some names, which `names` has with spaces between."""
    return NamesOf(module, owner, tuple(names.split()), private)


def missing_names(table: Iterable[NamesOf]) -> Iterator[str]:
    """Yield what the installed engine lacks of a table, each as `module.Class` or `module.Class.name`."""
    for part in table:
        try:
            owner = getattr(import_module(part.module), part.owner)
        except (ImportError, AttributeError):
            yield f"{part.module}.{part.owner}"
            continue
        known = _known(owner)
        yield from (f"{part.module}.{part.owner}.{name}" for name in part.names if name not in known)


def check_table(table: Iterable[NamesOf], engine: str, more: str = "") -> None:
    """Refuse an engine that lacks a name which the plugin uses.

    Args:
        table: the names.
        engine: what the engine is called.
        more: what else may be done than installing another.

    Raises:
        EmblemaError: it lacks some; the first three are told.
    """
    missing = list(missing_names(table))
    if missing:
        told = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise EmblemaError(
            f"This {engine} lacks {told}, which emblema's plugin uses: install the release that it has been tested "
            f"with{more}."
        )


def _known(owner: Any) -> set[str]:
    """Return the names of a class with its bases', its fields, and what constructors set; or those in a function.

    Words that a function gives as names are among its constants.
    """
    if isfunction(owner):
        return {*owner.__code__.co_names, *(word for word in owner.__code__.co_consts if isinstance(word, str))}
    known: set[str] = set(dir(owner))
    for base in owner.__mro__:
        known |= base.__dict__.get("__annotations__", {}).keys()
        made: Any = base.__dict__.get("__init__")
        if isfunction(made):
            known |= _known(made)
    return known
