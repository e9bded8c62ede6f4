"""The package itself: what a person imports, and that importing it costs nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import emblema


@pytest.mark.parametrize("name", emblema.__all__)
def test_the_names_are_there(name: str) -> None:
    assert getattr(emblema, name).__name__ == name


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = emblema.nothing


@pytest.mark.parametrize("module", ["emblema", "emblema.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "transformers", "matplotlib", "emblema.engine", "benchmarks")
    script = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"
    places = {**os.environ, "PYTHONPATH": str(Path(emblema.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=places)
    assert done.stdout.strip() == "[]"
