"""Figures as files: results written as JSON that other programs can read."""

import json
import math
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """The value with every NaN, which JSON does not know, as null."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def write_figures(found: dict[str, Any], path: Path) -> Path:
    """Write a report as JSON."""
    path.write_text(json.dumps(plain(found), indent=2) + "\n", encoding="utf-8")
    return path
