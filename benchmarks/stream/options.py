"""What a command line says, as what to measure."""

from ast import literal_eval
from collections.abc import Iterable
from typing import Any

from benchmarks.stream.arms import ABLATIONS, METHODS, arms_named
from benchmarks.stream.wanted import SEEDS, Wanted
from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings, change_settings


def names_of(text: str | None, known: Iterable[str]) -> tuple[str, ...]:
    """Names with commas between them; all that are known without a text."""
    return tuple(known) if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, rising.

    Raises:
        PromptError: one of them is none, or there is none.
    """
    try:
        found = {int(one) for one in text.split(",") if one.strip()}
    except ValueError as error:
        raise PromptError(f"{option} {text!r}: give whole numbers with commas between them") from error
    if not found:
        raise PromptError(f"{option} {text!r}: give one number or more")
    return tuple(sorted(found))


def seeds_of(text: str) -> tuple[int, ...]:
    """So many seeds, or the seeds of a list.

    Raises:
        PromptError: it is neither.
    """
    found = numbers_of(text, "--seeds")
    if "," in text:
        return found
    return tuple(range(SEEDS[0], SEEDS[0] + found[0]))


def settings_of(
    window: int | None,
    block: int | None,
    positions: str | None,
    changes: Iterable[str] = (),
    base: StreamSettings | None = None,
) -> StreamSettings:
    """Settings of all streams.

    Args:
        changes: `name=value` each.
        base: what they change; the defaults if left out.

    Raises:
        PromptError: one of them is no such pair.
        StreamError: there is no such setting, or a value is not right.
    """
    given = {"window": window, "block": block, "positions": positions}
    named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise PromptError(f"--set {change!r}: write name=value")
        named[name.strip()] = _value(value.strip())
    return change_settings(base or StreamSettings(), named)


def arms_of(text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Methods and ablations of a list with commas; all of both without any.

    Raises:
        PromptError: there is no arm of a name.
    """
    ablations = tuple(arm.name for arm in ABLATIONS)
    chosen = [arm.name for arm in arms_named(names_of(text, (*METHODS, *ablations)))]
    return tuple(name for name in METHODS if name in chosen), tuple(name for name in ablations if name in chosen)


def quick(wanted: Wanted) -> Wanted:
    """A little of everything, of the same kinds, arms and settings."""
    return Wanted(
        kinds=wanted.kinds,
        seeds=wanted.seeds[:1],
        items=1,
        others=1,
        frames=64,
        lengths=(32, 64),
        budget=8,
        budgets=(4, 8),
        methods=wanted.methods,
        ablations=wanted.ablations,
        times=2,
        each=1,
        settings=wanted.settings,
    )


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text
