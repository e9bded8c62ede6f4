"""The tests on a device, in a process of their own within a time; what fails is written to a file."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import importable
from benchmarks.table import Bar, Cell, Table
from emblema.errors import EmblemaError

ROOT = Path(__file__).resolve().parents[2]
FAILED = re.compile(
    r"^\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) (.+?) *$|^(\S+::.+?) (?:FAILED|ERROR) +\[ *\d+%\]$", re.MULTILINE
)
"""What `pytest -v` says of a test as it ends, with several processes or in one."""
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed)")
LOG, FAILING = "suite.txt", "suite-failing.txt"


def suite_table(device: str, paths: Sequence[str], seconds: float, folder: Path, workers: int = 0) -> Table:
    """Run the fast tests with `EMBLEMA_TEST_DEVICE` and return their counts; log and failing tests go to the folder.

    Tests that had failed when the time was over are listed too. Where xdist is installed so many `workers`
    share the device.

    Raises:
        EmblemaError: pytest did not run the tests.
    """
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-m", "not slow", "-p", "no:cacheprovider"]
    command += ["-W", "ignore", *paths]
    if workers and importable("xdist"):
        command += ["-n", str(workers), "--dist", "loadfile"]
    environment = {**os.environ, "EMBLEMA_TEST_DEVICE": device, "PYTHONUNBUFFERED": "1"}
    log = folder / LOG
    late = False
    with log.open("w", encoding="utf-8") as out:
        try:
            subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
    written = log.read_text(encoding="utf-8", errors="replace")
    failing = sorted({one or other for one, other in FAILED.findall(written)})
    (folder / FAILING).write_text("".join(f"{name}\n" for name in failing), encoding="utf-8")
    counts = {word.rstrip("s") if word == "errors" else word: int(number) for number, word in COUNTS.findall(written)}
    if not counts and not late:
        tail = " ".join(written.split()[-30:])
        raise EmblemaError(f"pytest did not run the tests: {tail}")
    rows: list[tuple[Cell, ...]] = [(word, number) for word, number in counts.items()]
    if late:
        rows.append((f"not done after {seconds:.0f} s", written.count("\n")))
    broken = None if late else counts.get("failed", 0) + counts.get("error", 0)
    return Table(
        "suite",
        f"The tests with EMBLEMA_TEST_DEVICE={device}",
        f"Their log is {LOG}, the failing ones are in {FAILING}: {', '.join(failing[:8]) or 'none'}"
        f"{' …' if len(failing) > 8 else ''}.",
        ("tests", "count"),
        tuple(rows),
        bars=(Bar("tests that fail on the device", broken, 0, False),),
    )
