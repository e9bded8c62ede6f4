"""Real replicas on this machine: `emblema serve --replicas` in processes of its own, and what clients send it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from tests.serve.sent import png_of, settled

QUESTION = "on which land does the moon stand ?"
START_SECONDS = 300.0
"""Until replicas answer, on a machine that may be busy."""
_LINE = re.compile(r"replica (\w+) of cluster \S+ answers, process (\d+)")


class RunningReplicas:
    """The command, and what it wrote so far."""

    def __init__(self, folder: Path, port: int, replicas: int, *options: str) -> None:
        self.address, self.lines = f"http://127.0.0.1:{port}", list[str]()
        command = [sys.executable, "-m", "emblema.cli", "serve", "--port", str(port), "--store", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--replicas", str(replicas), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"},
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + START_SECONDS
        while not self._answers(replicas):
            if time.monotonic() > end or self.process.poll() is not None:
                self.close()
                raise AssertionError("the replicas did not start: " + "".join(self.lines[-20:]))
            time.sleep(0.2)

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def _answers(self, replicas: int) -> bool:
        if len(self.processes) >= replicas:
            with suppress(httpx.HTTPError):
                return httpx.get(f"{self.address}/v1/models", timeout=10).status_code == 200
        return False

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by replica, those that have ended too, the latest last."""
        found = (_LINE.search(line) for line in list(self.lines))
        return {match[1]: int(match[2]) for match in found if match is not None}

    def close(self) -> None:
        """End all of them."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def running(folder: Path, port: int, replicas: int, *options: str) -> Iterator[RunningReplicas]:
    """Run replicas until the block ends."""
    started = RunningReplicas(folder, port, replicas, *options)
    try:
        yield started
    finally:
        started.close()


def upload(client: httpx.Client, number: int, side: int) -> str:
    """Upload a picture of coarse noise and wait until it is prefilled; return its id."""
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    data = png_of(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST))
    answer = client.post("/v1/files", files={"file": (f"{number}.png", data)})
    answer.raise_for_status()
    id = str(answer.json()["id"])
    found = settled(client, f"/v1/files/{id}")
    assert found["status"] == "processed", found["status_details"]
    return id


def body_of(ids: Sequence[str], strategy: str = "blind", tokens: int = 1) -> dict[str, Any]:
    """Return a chat about files."""
    parts = [{"type": "file", "file": {"file_id": id}} for id in ids]
    content = [*parts, {"type": "text", "text": QUESTION}]
    return {"model": "reference", "max_tokens": tokens, "strategy": strategy,
            "messages": [{"role": "user", "content": content}]}  # fmt: skip
