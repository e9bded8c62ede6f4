"""Figures of earlier runs beside those of this one: real replicas and streams ask for a quiet machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rowfile import read_rows
from emblema.errors import EmblemaError

MEASURED = ("rows", "routing", "amounts", "real", "streams")
"""What a run measures, each by itself."""


def filled(found: Mapping[str, Any], earlier: Sequence[Path]) -> dict[str, Any]:
    """Return figures with what this run has not measured from the first earlier run that has it.

    Whence that is, is in `taken`: the date and what was asked, by name. Costs and seed go with the rows.

    Raises:
        EmblemaError: a file cannot be read.
    """
    made = {**found, "taken": {}}
    for path in earlier:
        try:
            other = read_rows(path)
        except (OSError, ValueError) as error:
            raise EmblemaError(f"{path} cannot be read: {error}") from error
        for name in MEASURED:
            if made[name] or not other.get(name):
                continue
            made[name] = other[name]
            asked = other["asked"]
            told = {"date": other["environment"]["date"], "seed": asked.get(f"{name}_seed", asked["seed"])}
            made["taken"][name] = other.get("taken", {}).get(name) or told
            if name == "rows":
                made["costs"] = other["costs"]
    return made
