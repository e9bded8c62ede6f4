"""Run a program so that it ends with the process that started it, whatever ends that: `attached.py PARENT COMMAND...`.

A test that is killed from outside closes nothing; the kernel does (Linux).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2). It outlasts exec, and is sent when the thread that started the program ends."""


def attached(command: Sequence[str]) -> list[str]:
    """Return the command that runs another for as long as this thread lives."""
    return [sys.executable, os.path.abspath(__file__), str(os.getpid()), *command]


def main() -> None:
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # It may have ended before it was asked for.
    if os.getppid() == int(sys.argv[1]):
        os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
