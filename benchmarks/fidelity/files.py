"""Figures of runs, read from files."""

import json
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError

NEEDED = ("model", "task", "setting", "strategy", "n", "eta", "intervals")


def read_run(path: Path) -> dict[str, Any]:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file is not there, is no JSON, or a row lacks a field.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give a file that `bench fidelity` wrote") from error
    except json.JSONDecodeError as error:
        raise EmblemaError(f"{path}, line {error.lineno}: this is no JSON ({error.msg}); measure again") from error
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise EmblemaError(f"{path}: it has no rows; give a file that `bench fidelity` wrote")
    for place, row in enumerate(rows):
        lacking = [name for name in NEEDED if not isinstance(row, dict) or name not in row]
        if lacking:
            raise EmblemaError(f"{path}, row {place}: the field {lacking[0]!r} is missing; measure again")
    return dict(found)


def runs(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return all runs of a folder, `fidelity-*.json`, by name.

    Raises:
        EmblemaError: there is none, or one is broken.
    """
    paths = sorted(folder.glob("fidelity-*.json"))
    if not paths:
        raise EmblemaError(f"{folder}: no fidelity-*.json lies there; write one with `bench fidelity --json`")
    return [(path, read_run(path)) for path in paths]
