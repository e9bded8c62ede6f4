"""Run the tests of the plugin in several ways of running vLLM: `python -m tests.vllm.matrix [--whole] [--at-once 2]`.

Without `--whole` a test runs once: those that are marked `cells` in a way that differs from the default in runner,
scheduling and chunk, the others that need vLLM, slow and nightly ones aside, in the default way.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.attached import attached
from tests.vllm.cells import NEED_VLLM, Cell

ROOT = Path(__file__).parents[2]
BESIDE = ("tests/serve/test_clients.py", "tests/serve/test_timing.py")
"""Tests beside this folder that start a server of the plugin, an hour of comparisons among them: with `--whole` alone,
in the first way. A commit runs the clients against `emblema serve`.
"""
SECOND = Cell("v2", "async", 64)
"""With `Cell()` both runners, both schedulings, and prompts in one step or in chunks."""
EVERY = (Cell(), SECOND, Cell("v1", "async", 96), Cell("v2", "sync"))
"""Each runner with each scheduling."""
ENDINGS = {0: "passed", 5: "had no tests"}


def halves() -> tuple[list[str], list[str]]:
    """Return the files that need vLLM in two lists, of about as many lines each."""
    paths = {path for pattern in NEED_VLLM for path in Path(__file__).parent.glob(pattern)}
    lists: tuple[list[str], list[str]] = ([], [])
    lines = [0, 0]
    for length, path in sorted(((len(path.read_text().splitlines()), str(path)) for path in paths), reverse=True):
        fewer = lines.index(min(lines))
        lines[fewer] += length
        lists[fewer].append(path)
    return lists


def run(cell: Cell, arguments: Sequence[str]) -> bool:
    """Run pytest in a way of running vLLM, print what it says once it has ended, and return whether all passed."""
    began = time.monotonic()
    line = attached([sys.executable, "-m", "pytest", "-q", *arguments])
    done = subprocess.run(line, cwd=ROOT, env=os.environ | cell.environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)  # fmt: skip
    ending = ENDINGS.get(done.returncode, "failed")
    print(f"{done.stdout}\n== {cell}: {ending} in {time.monotonic() - began:.0f} s", flush=True)
    return ending != "failed"


def failed(runs: Iterable[tuple[Cell, Sequence[str]]], at_once: int) -> list[Cell]:
    """Run several, some at once, and return those that failed."""
    with ThreadPoolExecutor(at_once) as pool:
        begun = [(cell, pool.submit(run, cell, arguments)) for cell, arguments in runs]
        return [cell for cell, future in begun if not future.result()]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="all tests in all ways")
    parser.add_argument("--at-once", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--marked", default="cells", help="expression that chooses the tests of the second way")
    options, more = parser.parse_known_args(given)
    if options.whole:
        runs = [(Cell(), [path, *more]) for path in BESIDE] + [(cell, ["tests/vllm", *more]) for cell in EVERY]
    else:
        second = (SECOND, ["tests/vllm", "-m", f"({options.marked}) and not nightly", *more])
        first = f"not slow and not nightly and not ({options.marked})"
        runs = [second, *((Cell(), [*part, "-m", first, *more]) for part in halves())]
    found = failed(runs, options.at_once)
    print("== all passed" if not found else f"== failed: {', '.join(map(str, found))}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
