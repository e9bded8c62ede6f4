"""The three servers as processes, and what they use of the processor."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch

from benchmarks.cost.shapes import FOLDER
from benchmarks.load.stages import SERVE, SGLANG, STOCK, VLLM
from emblema.errors import EmblemaError
from emblema.models.names import bundled_folder
from emblema.serve.keys import KeyRing
from emblema.vllm.serving import PLUGINS, command

COMMANDS = {SERVE: "serve", VLLM: "vllm-serve", SGLANG: "sglang-serve"}
"""The command of `emblema` that starts each server with the plugin; `vllm-stock` is started without."""
STARTING_SECONDS = 600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Unless the caller's own environment says otherwise."""
STILL, STILL_SHARE, PATIENCE = 0.4, 0.05, 60.0
"""Seconds in which an idle server uses less than this share of a processor, and how long that is waited for."""
PROCESSING = (
    "chat_template.jinja", "generation_config.json", "preprocessor_config.json", "tokenizer.json",
    "tokenizer_config.json", "video_preprocessor_config.json",
)  # fmt: skip
SHAPES = ("137m", "qwen2.5-vl-3b", "qwen2.5-vl-7b")
"""Decoders of the family of the bundled model, whose small encoder and tokenizer they get."""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True, slots=True)
class LoadServer:
    """A running server with the plugin, its name of the model, and the keys of its tenants."""

    engine: str
    address: str
    model: str
    keys: KeyRing


def server_options(engine: str) -> list[str]:
    """Return an engine's options for small measurements."""
    if engine == SERVE:
        return []
    if engine == SGLANG:
        return ["--random-seed", "0", "--log-level", "warning", "--enable-cache-report"]
    shared = ["--limit-mm-per-prompt", '{"image": 10, "video": 0}', "--seed", "0", "--max-model-len", "4096"]
    shared += ["--enable-prompt-tokens-details", "--block-size", "32", "--skip-mm-profiling", "--enforce-eager"]
    return shared if torch.cuda.is_available() else [*shared, "--kv-cache-memory-bytes", str(512 * 2**20)]


def without_cache(engine: str) -> list[str]:
    """Return the option that switches an engine's own prefix cache off."""
    return {VLLM: ["--no-enable-prefix-caching"], SGLANG: ["--disable-radix-cache"]}[engine]


@contextmanager
def serving(engine: str, model: str, folder: Path, more: Sequence[str] = ()) -> Iterator[LoadServer]:
    """Run a server of an engine, with its store and log in a folder, for as long as the block runs.

    Args:
        model: a bundled one, or a folder.
        more: options of the engine.
    """
    store = folder / "store"
    # Made first: a server that has keys asks for one from the beginning.
    keys = KeyRing(store / "serve")
    keys.add("nobody")
    options, log, environment = [*server_options(engine), *more], folder / "server.log", dict[str, str]()
    if engine == STOCK:
        line, environment = command(model, None, more=options), {PLUGINS: ""}
    else:
        line = [sys.executable, "-m", "emblema.cli", COMMANDS[engine], model, "--store", str(store), *options]
    with running(line, log, free_port(), environment) as address:
        yield LoadServer(engine, address, model, keys)


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(line: Sequence[str], log: Path, port: int, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server for as long as the block runs, and yield its address; one that does not start tells its log."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*line, "--host", "127.0.0.1", "--port", str(port)], stdout=out, stderr=subprocess.STDOUT,
            env=ENVIRONMENT | os.environ | dict(environment or {}), start_new_session=True,
        )  # fmt: skip
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + STARTING_SECONDS
    try:
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > until:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
                raise EmblemaError(f"the server did not start; the end of its log:\n{tail}")
            time.sleep(0.3)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
        return True
    return False


def settle(address: str) -> None:
    """Wait until a server uses hardly any processor time, a minute at the most."""
    port = urlsplit(address).port
    last, until = processor_seconds(port), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(STILL)
        now = processor_seconds(port)
        if now - last < STILL_SHARE * STILL:
            return
        last = now


def processor_seconds(port: int | None) -> float:
    """Return the processor seconds of all processes of the server that was started with this port."""
    found, first = 0.0, leader(port)
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == first:
                # Of its own and of children that have ended, which a pool of processes has many of.
                found += sum(process.cpu_times()[:4])
    return found


def leader(port: int | None) -> int:
    """Return the process that was started with this port by `running`, the first of its session.

    Raises:
        EmblemaError: it has ended.
    """
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if {"--port", str(port)} <= {*process.cmdline()} and os.getsid(process.pid) == process.pid:
                return int(process.pid)
    raise EmblemaError(f"the server on port {port} has ended")


def random_model(folder: Path, shape: str) -> Path:
    """Write configuration and processors of the bundled Qwen2.5-VL with the decoder of a larger shape.

    Serve it with `--load-format dummy`.
    """
    if shape not in SHAPES:
        raise EmblemaError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
    source = bundled_folder("reference")
    config = json.loads((source / "config.json").read_text())
    text, wanted = config["text_config"], json.loads((FOLDER / f"{shape}.json").read_text())["text_config"]
    text.update({name: wanted[name] for name in SIZES}, layer_types=["full_attention"] * wanted["num_hidden_layers"])
    text["rope_parameters"]["mrope_section"] = wanted["rope_parameters"]["mrope_section"]
    config["vision_config"]["out_hidden_size"] = wanted["hidden_size"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in PROCESSING:
        shutil.copy(source / name, folder / name)
    return folder
