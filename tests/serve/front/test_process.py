"""The service and its engine as two processes: they end together, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.load.servers import free_port
from tests.attached import attached

ENGINE = """
import subprocess, sys, uvicorn
from tests.serve.front.engine_double import EngineDouble
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("engine begins", flush=True)
uvicorn.run(EngineDouble().app, uds=sys.argv[1], log_level="critical")
"""
SERVICE = """
import os, signal, sys
from pathlib import Path
# Whoever runs the tests in the background has Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from emblema.cli import run
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.engine_api import VLLM
from emblema.cli.engine_serve import _serve
port, store, socket = sys.argv[1:4]
engine = EngineClient("http://localhost", socket=Path(socket), api=VLLM)
line = [sys.executable, "-c", sys.argv[4], socket]
run(lambda: _serve({"port": [port]}, Path(store), engine, line, dict(os.environ)), "emblema")
"""


class TwoProcesses:
    """The service and an engine, which has a child of its own."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        line = [sys.executable, "-c", SERVICE, str(port), str(folder), str(folder / "socket"), ENGINE]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.front = subprocess.Popen(
            attached(line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.front.stdout is not None
        # The engine writes beside it.
        self.written = list(iter_until(self.front.stdout, "ready on"))
        assert self.written[-1].startswith("ready on"), self.front.communicate()
        self.others = psutil.Process(self.front.pid).children(recursive=True)
        assert len(self.others) == 2
        [self.engine] = [each for each in self.others if each.ppid() == self.front.pid]

    def ended(self) -> tuple[int, str, str]:
        """Return the exit status and what was written, once nothing is left."""
        out, error = self.front.communicate(timeout=60)
        _, alive = psutil.wait_procs(self.others, timeout=30)
        for each in alive:
            each.kill()
        assert not alive, alive
        return self.front.returncode, "".join([*self.written, out]), error


def iter_until(lines: Iterable[str], beginning: str) -> Iterator[str]:
    """Yield lines up to one that begins so."""
    for line in lines:
        yield line
        if line.startswith(beginning):
            return


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_both_end_when_the_service_is_told_to(tmp_path: Path, number: int, status: int) -> None:
    both = TwoProcesses(tmp_path)
    assert httpx.get(f"{both.address}/v1/models").status_code == 200
    both.front.send_signal(number)
    code, out, error = both.ended()
    assert code == status and f"ready on {both.address}" in out and "Traceback" not in error, error


def test_both_end_when_the_engine_does(tmp_path: Path) -> None:
    both = TwoProcesses(tmp_path)
    both.engine.kill()
    code, _, error = both.ended()
    assert code == 2 and "emblema: vLLM has ended by signal 9" in error and "Traceback" not in error, error


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells a process of its parent's end")
def test_an_engine_ends_when_the_service_is_killed(tmp_path: Path) -> None:
    both = TwoProcesses(tmp_path)
    both.front.kill()
    both.front.wait(60)
    both.engine.wait(30)
    for each in both.others:
        if each.is_running():
            each.kill()
