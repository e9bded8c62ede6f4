"""Servers of both engines as processes, started by the commands that users have."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
from openai import OpenAI

from benchmarks.load.servers import free_port
from tests.attached import attached
from tests.vllm.cells import Cell

COMMANDS = ["serve", "vllm-serve"] if find_spec("vllm") is not None else ["serve"]
"""The command of each engine that is installed here."""
STARTING_SECONDS = 300


class ServedEngine:
    """A server that runs.

    Attributes:
        command: that started it.
        store: its folder.
        address: where it listens.
        log: what it wrote.
    """

    def __init__(self, command: str, store: Path, address: str, log: Path) -> None:
        self.command, self.store, self.address, self.log = command, store, address, log

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0)

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.address, timeout=60, headers=headers)


@contextmanager
def served(command: str, folder: Path, *options: str, model: str = "reference") -> Iterator[ServedEngine]:
    """Run `emblema COMMAND MODEL` until the block ends; vLLM in the way that the environment names."""
    port, log, store = free_port(), folder / f"{command}.log", folder / "store"
    line = [sys.executable, "-m", "emblema.cli", command, model, "--store", str(store), "--port", str(port)]
    cell = Cell.read(os.environ)
    options = (*cell.arguments, *options) if command == "vllm-serve" else options
    environment = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            attached([*line, *options]),
            stdout=out,
            stderr=subprocess.STDOUT,
            # Servers log as users' do, however quiet this process's own engines are.
            env=environment | os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "VLLM_LOGGING_LEVEL": "INFO"},
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + STARTING_SECONDS
        while not _answers(address):
            assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3_000:]
            time.sleep(0.2)
        yield ServedEngine(command, store, address, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
