"""A running vLLM server, for as long as a measurement or a test takes."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.vllm.serving import RUNNER

STARTING_SECONDS = 600.0
ENVIRONMENT = RUNNER | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Unless the caller's own environment says otherwise."""


def device_options() -> tuple[str, list[str]]:
    """Return the device that a server will run on, in words, and vLLM's options for small measurements there."""
    import torch

    shared = ["--limit-mm-per-prompt", '{"image": 10, "video": 0}', "--enable-prompt-tokens-details", "--seed", "0"]
    shared += ["--max-model-len", "4096", "--block-size", "32", "--skip-mm-profiling", "--enforce-eager"]
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(), shared
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"CPU, {threads} threads", [*shared, "--kv-cache-memory-bytes", str(512 * 2**20)]


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(line: Sequence[str], log: Path, port: int, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server for as long as the block runs, and yield its address.

    Raises:
        EmblemaError: the server ended, or did not answer in ten minutes; the message holds the end of its log.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*line, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT | os.environ | dict(environment or {}),
            start_new_session=True,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(process, address, log)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    until = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    raise EmblemaError(f"the server did not start; the end of its log:\n{tail}")
