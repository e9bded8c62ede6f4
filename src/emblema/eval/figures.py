"""Figures as files: results written as JSON that other programs can read."""

import json
import math
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Return the value with every NaN, which JSON does not know, as None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def environment() -> dict[str, Any]:
    """Return what figures were measured on and with."""
    import torch
    import transformers

    from emblema import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "emblema": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": device,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def write_figures(found: dict[str, Any], path: Path) -> Path:
    """Write a report as JSON, with the environment that it was made in."""
    path.write_text(json.dumps(plain({"environment": environment(), **found}), indent=1) + "\n", encoding="utf-8")
    return path
