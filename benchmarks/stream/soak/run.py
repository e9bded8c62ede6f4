"""Two processes one behind the other: the first is killed, the second goes on from what the first had saved."""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stream.soak.plan import SoakPlan
from benchmarks.stream.soak.records import Event, Round, Said, read_line
from emblema.errors import EmblemaError

WORKER = "benchmarks.stream.soak.worker"


def soak(plan: SoakPlan, told: Callable[[Round], None]) -> Said:
    """Soak; the folder that the stream is saved in goes afterwards.

    Args:
        told: called with every round that counts, as it comes.

    Raises:
        EmblemaError: a process ended by itself, with what it said last.
    """
    said, began = Said(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="emblema-soak-") as folder:
        with _worker(plan, folder, 0) as lines:
            _until_killed(lines, said, told)
        said.saved_bytes = sum(path.stat().st_size for path in Path(folder).glob("streams/*/*.safetensors"))
        with _worker(plan, folder, 1) as lines:
            _to_the_end(lines, said, told)
    said.seconds = time.perf_counter() - began
    return said


def _until_killed(lines: Iterator[tuple[Event, Any]], said: Said, told: Callable[[Round], None]) -> None:
    for event, found in lines:
        if event == "saved":
            said.before = found
        elif said.before.frames:
            # It is in the middle of what comes next by now.
            said.lost = found.frames - said.before.frames
            return
        else:
            said.rounds.append(found)
            told(found)


def _to_the_end(lines: Iterator[tuple[Event, Any]], said: Said, told: Callable[[Round], None]) -> None:
    for event, found in lines:
        if event == "end":
            return
        if event == "resumed":
            said.after = found
        else:
            said.rounds.append(found)
            told(found)


@contextmanager
def _worker(plan: SoakPlan, folder: str, process: int) -> Iterator[Iterator[tuple[Event, Any]]]:
    """A process and what it says; killed when the block ends."""
    seconds = math.inf if plan.minutes is None else 30 * plan.minutes
    command = [sys.executable, "-m", WORKER, plan.written(), folder, str(seconds), str(process)]
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield _lines(worker, errors)
        finally:
            worker.kill()
            worker.communicate()


def _lines(worker: "subprocess.Popen[str]", errors: Any) -> Iterator[tuple[Event, Any]]:
    assert worker.stdout is not None
    for line in worker.stdout:
        yield read_line(line)
    code = worker.wait()
    errors.seek(0)
    last = next((line.strip() for line in reversed(errors.read().splitlines()) if line.strip()), "")
    raise EmblemaError(f"the soaking process ended by itself with {code}: {last or 'it said nothing'}")
