"""The command `emblema serve` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from openai import OpenAI

from tests.attached import attached


class Process:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "emblema.cli", "serve", "--port", "0", "--store", str(folder), *options]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            attached(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        try:
            self._await_answer()
        except BaseException:
            self.process.kill()
            raise

    def _await_answer(self) -> None:
        assert self.process.stdout is not None
        self.said: list[str] = []
        found = None
        while found is None and (line := self.process.stdout.readline()):
            self.said.append(line.strip())
            found = re.search(r"^ready on (http://\S+)", line)
        assert found is not None, self.process.communicate()
        self.address = found[1]
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.client = OpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=0)
        assert httpx.get(f"{self.address}/health", timeout=60).status_code == 200

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def process(folder: Path, *options: str) -> Iterator[Process]:
    made = Process(folder, *options)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait(60)
