"""Commands run as a person runs them, each in a process of its own."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

SOURCE = str(Path(str(files("emblema"))).parent)
ROOT = str(Path(__file__).parents[2])


def run(
    module: str, *arguments: str, where: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a module with arguments."""
    path = os.pathsep.join([SOURCE, ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "110"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=where,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def emblema(*arguments: str, where: Path | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `emblema`."""
    return run("emblema.cli", *arguments, where=where, timeout=timeout)


def benchmarks(*arguments: str, where: Path | None = None, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks`."""
    return run("benchmarks", *arguments, where=where, timeout=timeout)


def refused(*arguments: str) -> str:
    """Return the one line that a refusal prints; fails unless it is one line with exit code 2 and no traceback."""
    done = emblema(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
