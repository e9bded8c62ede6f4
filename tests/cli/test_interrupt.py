"""Ctrl-C while a command starts: one line, and the exit code that shells know."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from emblema.cli.interrupt import ending_on_interrupt, raise_on_interrupt

INTERRUPTED = """
import os, signal, sys

module = sys.argv[1]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from emblema.cli import main
sys.argv = ["emblema", "ask", "what ?"]
main()
"""
"""A command line that gets a Ctrl-C while it imports a module."""


@pytest.fixture(autouse=True)
def at_a_terminal() -> Iterator[None]:
    """Have Ctrl-C interrupt, as at a terminal: what runs behind a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("module", ["typer", "numpy._core._multiarray_umath", "torch._C"])
def test_a_command_that_starts_ends_with_one_line(module: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "emblema: interrupted\n")


def test_what_has_begun_is_ended_in_order() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ending_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
        raise_on_interrupt()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_who_handles_it_otherwise_keeps_that() -> None:
    def theirs(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGINT, theirs)
    try:
        with ending_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is theirs
            raise_on_interrupt()
            assert signal.getsignal(signal.SIGINT) is theirs
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_may_run_a_command() -> None:
    entered: list[bool] = []

    def run() -> None:
        with ending_on_interrupt():
            entered.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert entered == [True]
