"""A running vLLM server, for as long as a measurement or a test takes, and a random model to serve."""

import json
import os
import shutil
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
from emblema.models.load import bundled_folder

STARTING_SECONDS = 600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Unless the caller's own environment says otherwise."""
PROCESSING = (
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)
SHAPES = {
    "137m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
             "num_key_value_heads": 4},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4},
}  # fmt: skip
"""`7b` is the decoder of Qwen2.5-VL-7B; both have the bundled model's small encoder and tokenizer."""


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


def random_model(folder: Path, shape: str) -> int:
    """Write configuration and processors of a Qwen2.5-VL of a shape; serve it with `--load-format dummy`.

    Returns:
        The decoder's parameters, embeddings included.
    """
    source = bundled_folder("reference")
    config = json.loads((source / "config.json").read_text())
    text, wanted = config["text_config"], SHAPES[shape]
    width = wanted["hidden_size"] // wanted["num_attention_heads"]
    text.update(wanted, layer_types=["full_attention"] * wanted["num_hidden_layers"])
    sections = [width // 8, width // 2 - width // 8 - 3 * width // 16, 3 * width // 16]
    text["rope_parameters"]["mrope_section"] = sections
    config["vision_config"]["out_hidden_size"] = wanted["hidden_size"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in PROCESSING:
        shutil.copy(source / name, folder / name)
    hidden, inner, heads = wanted["hidden_size"], wanted["intermediate_size"], wanted["num_key_value_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * heads * width + 3 * hidden * inner
    return wanted["num_hidden_layers"] * layer + hidden * text["vocab_size"]
