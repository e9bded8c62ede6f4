"""A run's figures in a file: plain JSON, in which a list of rows has a row a line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emblema.eval.figures import environment, plain

DIGITS = 5
"""Significant digits of figures in rows."""


def write_figures(found: Mapping[str, Any], path: Path) -> Path:
    """Write figures with the environment that they were made in; returns the path. A NaN is written as null.

    The `rows` of the run keep `DIGITS` digits.
    """
    made = plain({"environment": environment(), **found})
    path.write_text(_text({k: rounded(v) if k == "rows" else v for k, v in made.items()}) + "\n", encoding="utf-8")
    return path


def read_figures(path: Path) -> dict[str, Any]:
    """Return figures as they were written.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else than an object.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found


def rounded(value: Any) -> Any:
    """Return plain data with figures of `DIGITS` digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _text(value: Any) -> str:
    """Return JSON in which an object of objects, and a list of them, has a line for each part."""
    if isinstance(value, dict) and any(isinstance(part, dict | list) for part in value.values()):
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {_text(part)}" for name, part in value.items()) + "\n}"
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return "[\n" + ",\n".join(json.dumps(part) for part in value) + "\n]"
    return json.dumps(value)
