"""The engine as a process of this one: it listens for this process alone, and ends with it."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

ENDING_SECONDS = 20.0
"""Seconds that an engine has to end once it was asked to."""
_WATCHING_SECONDS = 0.2
_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""


class EngineProcess:
    """An engine's own server, which runs while a block does.

    It has a group of processes of its own, so that a terminal's Ctrl-C is not for it. On Linux it is told to end too
    when this process is killed.

    Args:
        name: of the engine, in what is told.
        line: its command line.
        environment: whole.
    """

    def __init__(self, name: str, line: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self._line, self._environment = name, line, environment

    def __enter__(self) -> Self:
        library, parent = ctypes.CDLL(None) if sys.platform == "linux" else None, os.getpid()

        def attach() -> None:
            if library is not None:
                library.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
                if os.getppid() != parent:
                    os._exit(1)

        self._process = subprocess.Popen(self._line, env=self._environment, process_group=0, preexec_fn=attach)
        return self

    async def ended(self) -> str:
        """Wait until it ends, and return what is to be said of that."""
        while (status := self._process.poll()) is None:
            await asyncio.sleep(_WATCHING_SECONDS)
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        return f"{self.name} has ended {how}: its own lines above say why"

    def __exit__(self, *_: object) -> None:
        """End it and what it has started: in order, and by force what takes too long."""
        try:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
