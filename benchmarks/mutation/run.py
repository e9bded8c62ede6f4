"""A sample of mutants of every room, each judged by the tests of its room; results are kept as they come.

A mutant that the tests let pass has survived. One whose tests take five times as long as those of the unchanged file
counts as noticed. The score is the share that was noticed.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.mutation.mutants import ROOT, Mutant, room_digest, sample, tests_for
from benchmarks.recordfile import parsed
from benchmarks.report import ModelTables, show_tables, write_page
from benchmarks.rowfile import write_rows
from benchmarks.table import Bar, Table
from emblema.errors import EmblemaError
from emblema.eval.metrics import Share

LEAST = 0.85
"""Score that every room has to reach."""
PATIENCE, GRACE = 5, 20.0
"""A mutant's tests may take so many times as long as those of the unchanged file, and so many seconds more."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant, and what became of it.

    Attributes:
        mutant: the change.
        found: killed, survived, or late: its tests had to be ended.
        seconds: that its tests took.
    """

    mutant: Mutant
    found: str
    seconds: float


class MutantTests:
    """Runs tests against mutants in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.mutation.worker"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, path: str, source: str, tests: Sequence[str], seconds: float) -> tuple[str, float]:
        """Return what becomes of a file's text, and the seconds that its tests took.

        Raises:
            EmblemaError: the process ended.
        """
        module = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        asked = {"module": module, "source": source, "tests": list(tests), "seconds": seconds}
        if self._process.stdin is None or self._process.stdout is None:
            raise EmblemaError("the process that runs the tests has no pipes")
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise EmblemaError("the process that runs the tests has ended")
        answer = json.loads(line)
        return answer["found"], answer["seconds"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def run_mutation(
    rooms: Sequence[str], seed: int, most: int, minutes: float, kept: Path, notify: Callable[[Judged], None]
) -> list[Judged]:
    """Judge a sample of mutants of some rooms, as many as there is time for; those that were judged are not again.

    Args:
        most: mutants of a room.
        minutes: after which no other mutant is begun.
        kept: file of the results, a line each; may be there.
        notify: called with each result.

    Returns:
        All results of this sample, earlier ones too.

    Raises:
        EmblemaError: a room's tests fail without any mutant.
    """
    began, (known, known_usual) = time.monotonic(), _read(kept)
    judge, found = MutantTests(), list[Judged]()
    try:
        for room in rooms:
            chosen, usual = sample(room, seed, most), 0.0
            whole = f"{room} {room_digest(room)}"
            for mutant in chosen:
                if mutant.key in known:
                    found.append(known[mutant.key])
                    continue
                if time.monotonic() - began > 60 * minutes:
                    break
                tests = tests_for(room, mutant.path)
                usual = usual or known_usual.get(whole, 0.0)
                if not usual:
                    unchanged = (ROOT / mutant.path).read_text()
                    passed, usual = judge.ask(mutant.path, unchanged, tests, 600.0)
                    if passed != "survived":
                        raise EmblemaError(f"{room}: its tests fail without any mutant: mend them first")
                    _keep(kept, {"key": whole, "usual": usual})
                done = Judged(mutant, *judge.ask(mutant.path, mutant.source(), tests, PATIENCE * usual + GRACE))
                _keep(kept, {"key": mutant.key, "judged": asdict(done)})
                found.append(done)
                notify(done)
    finally:
        judge.close()
    return found


def _read(kept: Path) -> tuple[dict[str, Judged], dict[str, float]]:
    """Return the results in a file, and the seconds of rooms' tests without a mutant."""
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    judged = {line["key"]: parsed(Judged, line["judged"]) for line in lines if "judged" in line}
    return judged, {line["key"]: line["usual"] for line in lines if "usual" in line}


def _keep(kept: Path, line: Mapping[str, Any]) -> None:
    with kept.open("a") as file:
        file.write(json.dumps(line) + "\n")


def mutation_tables(found: Sequence[Judged]) -> tuple[Table, ...]:
    """Return the score of every room, and the mutants that survived."""
    rows, bars = [], []
    for room in dict.fromkeys(judged.mutant.room for judged in found):
        own = [judged.found for judged in found if judged.mutant.room == room]
        noticed = len(own) - own.count("survived")
        bars.append(Bar(f"mutants of {room} that are noticed", noticed / len(own), LEAST, count=len(own)))
        files = len({judged.mutant.path for judged in found if judged.mutant.room == room})
        rows.append(
            (room, files, len(own), own.count("killed"), own.count("late"), Share(noticed / len(own), len(own)))
        )
    note = (
        "A mutant is one change of one place by an operator of cosmic-ray, names of types and decorators aside. "
        "Places are drawn at random. Killed: a test of the room fails. Late: the tests had to be ended. Changes that "
        "no test could notice, as of a size that only costs time, count like all others."
    )
    columns = ("room", "files", "mutants", "killed", "late", "score")
    scores = Table("mutation", "Scores", note, columns, tuple(rows), (), tuple(bars))
    survived = [judged.mutant for judged in found if judged.found == "survived"]
    lines = tuple(
        (f"{m.path.removeprefix('src/emblema/')}:{m.line}", _code(m.before), _code(m.after)) for m in survived
    )
    note = "The line as it is, and as the mutant has it."
    return scores, Table("mutation-survivors", "Mutants that survived", note, ("place", "line", "mutant"), lines)


def _code(line: str) -> str:
    return "`" + line.replace("|", "\\|").replace("`", "'")[:110] + "`"


def write_mutation(found: Sequence[Judged], command: str, folder: Path, screen: Console) -> tuple[Bar, ...]:
    """Print the scores, and write `mutation.md` and `mutation.json` into a folder; return what has to hold."""
    tables = ModelTables("emblema", mutation_tables(found))
    show_tables(screen, tables)
    write_page(folder / "mutation.md", "Mutants", command, [tables])
    rows = [{**asdict(judged.mutant), "found": judged.found, "seconds": judged.seconds} for judged in found]
    write_rows({"command": command, **tables.data(), "rows": rows}, folder / "mutation.json")
    return tables.bars
