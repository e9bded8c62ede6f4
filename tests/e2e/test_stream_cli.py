"""`emblema stream` as a person runs it, with questions typed on a terminal."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.videos import write_walk
from tests.e2e.commands import SOURCE

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
FEW = ("--budget", "4", "--model", MODEL)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walk(tmp_path_factory.mktemp("walk"))


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_questions_typed_on_a_terminal(walk: Path, tmp_path: Path) -> None:
    import termios

    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 120))
    before = termios.tcgetattr(slave)
    environment = os.environ | {"PYTHONPATH": SOURCE, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "emblema.cli", "stream", str(walk), *FEW]
    # A job in the background ignores the interrupt, and so would its child.
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        screen = _Screen(master, running)
        screen.until("an empty line ends")
        os.write(master, b"in which land are wee\x7f now ?\n")
        screen.until("first token after")
        assert "in which land are we now ?" in screen.text
        os.write(master, b"how many times was the moon seen ?\n")
        screen.until("first token after")
        assert "how many times was the moon seen ?" in screen.text
        running.send_signal(signal.SIGINT)
        screen.until("device:", "host:")
        assert running.wait(600) == 0, screen.text
    finally:
        running.kill()
        running.wait()
    assert termios.tcgetattr(slave) == before


class _Screen:
    """What a process writes to a terminal."""

    def __init__(self, master: int, running: subprocess.Popen[bytes]) -> None:
        self.text = ""
        self._master, self._running, self._mark = master, running, 0

    def until(self, *wanted: str, seconds: float = 900) -> None:
        """Read until all of it has come since the last time."""
        last = time.monotonic() + seconds
        while any(one not in self.text[self._mark :] for one in wanted):
            assert time.monotonic() < last, self.text
            if select.select([self._master], [], [], 0.2)[0]:
                self.text += os.read(self._master, 1 << 16).decode(errors="replace")
            else:
                assert self._running.poll() is None, self.text
        self._mark = len(self.text)
