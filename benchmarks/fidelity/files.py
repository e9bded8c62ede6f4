"""Figures of a run as a JSON file, a row a line, so that a change of one shows as one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError

NEEDED = ("model", "task", "setting", "strategy", "n", "eta", "intervals")
DIGITS = 6
"""Significant digits kept."""


def write_rows(found: Mapping[str, Any], path: Path) -> Path:
    """Write what a run found; its `rows` come last."""
    head = {name: value for name, value in found.items() if name != "rows"}
    rows = ",\n".join(f"  {json.dumps(_rounded(row))}" for row in found["rows"])
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")
    return path


def read_rows(path: Path) -> dict[str, Any]:
    """What `write_rows` wrote.

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
    """All runs of a folder, `fidelity-*.json`, by name.

    Raises:
        EmblemaError: there is none, or one is broken.
    """
    paths = sorted(folder.glob("fidelity-*.json"))
    if not paths:
        raise EmblemaError(f"{folder}: no fidelity-*.json lies there; write one with `bench fidelity --json`")
    return [(path, read_rows(path)) for path in paths]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
