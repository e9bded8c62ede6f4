"""Commands run in this process, with the output and the exit code that a process of their own would have."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import pytest

from emblema.cli import main


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


class Command(Protocol):
    """Runs `emblema`."""

    def __call__(self, *arguments: str, where: Path | None = None) -> Any: ...


def finish(main: Callable[[], object], arguments: Sequence[str], where: Path | None = None) -> Finished:
    """Run a command line's main function with arguments, in a folder if one is given."""
    out, notes, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patching, redirect_stdout(out), redirect_stderr(notes):
        patching.setattr(sys, "argv", ["command", *arguments])
        patching.setattr(sys, "stdin", StringIO())
        if where is not None:
            patching.chdir(where)
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return Finished(code, out.getvalue(), notes.getvalue())


def refusal(finished: Finished) -> str:
    """Return the one line that a refusal prints; fails unless it is one line with exit code 2."""
    assert finished.returncode == 2, finished.stdout + finished.stderr
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    return lines[0]


def emblema(*arguments: str, where: Path | None = None) -> Finished:
    """Run `emblema`."""
    return finish(main, arguments, where)


def refused(*arguments: str) -> str:
    """Return the one line with which `emblema` refuses."""
    return refusal(emblema(*arguments))
