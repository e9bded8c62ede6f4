"""The options of one request, as a client gives them beside its prompt."""

from collections.abc import Mapping
from typing import Any

from emblema.errors import EmblemaError
from emblema.link.strategies.registry import parse

KNOWN = ("capture", "forget", "margin", "pieces", "strategy", "survivors")
"""`forget` and `pieces` are for the service beside an engine."""


def read_options(given: object) -> Mapping[str, Any]:
    """Return a request's options.

    Args:
        given: what the client gives; None for nothing.

    Raises:
        EmblemaError: it is no object, a name is unknown, or a value is not right.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise EmblemaError(f"emblema is {given!r}: give an object with {', '.join(KNOWN)}")
    unknown = sorted(map(str, given.keys() - set(KNOWN)))
    if unknown:
        raise EmblemaError(f"emblema has {unknown[0]!r}: the options of a request are {', '.join(KNOWN)}")
    for name in ("capture", "forget", "pieces"):
        if type(given.get(name, False)) is not bool:
            raise EmblemaError(f"{name} is {given[name]!r}: give true or false")
    margin, strategy = given.get("margin"), given.get("strategy")
    if given.get("survivors", "drop") not in ("drop", "keep"):
        raise EmblemaError(f"survivors is {given['survivors']!r}: choose drop or keep")
    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin <= 1):
        raise EmblemaError(f"margin is {margin!r}: give a number from 0 to 1")
    if strategy is not None and not isinstance(strategy, str):
        raise EmblemaError(f"strategy is {strategy!r}: give a name")
    if strategy is not None:
        parse(strategy)
    return given
