"""Programs that tests start do not outlive them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attached import attached

STARTER = """
import subprocess, sys, time
from tests.attached import attached
print(subprocess.Popen(attached(["sleep", "600"])).pid, flush=True)
time.sleep(600)
"""


def _runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_ends_with_what_started_it(number: int) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout is not None
        started = int(starter.stdout.readline())
        assert _runs(started)
        starter.send_signal(number)
    for _ in range(1000):
        if not _runs(started):
            return
        time.sleep(0.01)
    os.kill(started, signal.SIGKILL)
    pytest.fail("it lives on")


def test_it_is_the_program_itself() -> None:
    done = subprocess.run(attached([sys.executable, "-c", "print(6 * 7)"]), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert subprocess.run(attached([sys.executable, "-c", "raise SystemExit(3)"])).returncode == 3
