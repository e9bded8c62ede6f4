"""Which process holds something, and whether it still runs."""

import os
from pathlib import Path


def this_process() -> str:
    """A text that names this process and no later one with the same number."""
    return f"{os.getpid()} {_started(os.getpid())}"


def is_running(process: str) -> bool:
    """Whether the process of such a text still runs on this machine."""
    number, _, started = process.partition(" ")
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return _started(int(number)) == started


def _started(number: int) -> str:
    """Clock ticks from the machine's start to the process's, where the system tells; else an empty text."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
