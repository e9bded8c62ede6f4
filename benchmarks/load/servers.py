"""The three servers as processes, with the plugin and without it, and what they use of the processor."""

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

import torch

from benchmarks.load.stages import SERVE, SGLANG, VLLM
from emblema.errors import EmblemaError
from emblema.models.load import BUNDLED, bundled_folder
from emblema.serve.keys import KeyRing

COMMANDS = {SERVE: "serve", VLLM: "vllm-serve", SGLANG: "sglang-serve"}
"""The command of `emblema` that starts each server with the plugin."""
STARTING_SECONDS = 600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Unless the caller's own environment says otherwise."""
ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1"}
"""What SGLang's own server is told where there is no GPU; `emblema sglang-serve` does so itself."""
STILL, STILL_SHARE, PATIENCE = 0.4, 0.05, 60.0
"""Seconds in which an idle server uses less than this share of a processor, and how long that is waited for."""
PROCESSING = (
    "chat_template.jinja", "generation_config.json", "preprocessor_config.json", "tokenizer.json",
    "tokenizer_config.json", "video_preprocessor_config.json",
)  # fmt: skip
SHAPES = {
    "137m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
             "num_key_value_heads": 4},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4},
}  # fmt: skip
"""`7b` is the decoder of Qwen2.5-VL-7B; both have the bundled model's small encoder and tokenizer."""


@dataclass(frozen=True, slots=True)
class LoadServer:
    """A running server, and its name of the model; `keys`: of its tenants, None without the plugin."""

    engine: str
    address: str
    model: str
    keys: KeyRing | None


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


def plain_command(engine: str, model: str, more: Sequence[str], folder: Path) -> list[str]:
    """Return the command line of vLLM's or SGLang's server without the plugin; a folder is for a tokenizer."""
    if engine == VLLM:
        from emblema.vllm.serving import command

        return command(model, None, more=more)
    from emblema.sglang.bundled_tokenizer import write_tokenizer
    from emblema.sglang.serving import MODULE
    from emblema.sglang.serving import command as sglang_command

    if model in BUNDLED:
        write_tokenizer(model, folder)
    return ["sglang.launch_server" if word == MODULE else word for word in sglang_command(model, more, folder)]


@contextmanager
def serving(
    engine: str, model: str, folder: Path, more: Sequence[str] = (), plugin: bool = True
) -> Iterator[LoadServer]:
    """Run a server of an engine, with its store and log in a folder, for as long as the block runs.

    Args:
        model: a bundled one, or a folder.
        more: options of the engine.
        plugin: whether the plugin is in it.
    """
    port = free_port()
    store, log = folder / f"store-{port}", folder / f"{port}.log"
    options = [*server_options(engine), *more]
    if not plugin:
        given = {} if torch.cuda.is_available() else ON_CPU
        with running(plain_command(engine, model, options, store), log, port, given) as address:
            yield LoadServer(engine, address, model, None)
        return
    # Made first: a server that has keys asks for one from the beginning.
    keys = KeyRing(store / "serve")
    keys.add("nobody")
    line = [sys.executable, "-m", "emblema.cli", COMMANDS[engine], model, "--store", str(store), *options]
    with running(line, log, port) as address:
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
    """Return the processor seconds of all processes of the server that was started with this port; 0 without /proc."""
    found, first = 0.0, leader(port)
    for fields in map(_stat, Path("/proc").glob("[0-9]*")):
        if fields and int(fields[3]) == first:
            # Of its own and of children that have ended, which a pool of processes has many of.
            found += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def leader(port: int | None) -> int | None:
    """Return the process that was started with this port by `running`, the first of its session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"--port" in words and str(port).encode() in words and _stat(folder)[3:4] == [folder.name]:
                return int(folder.name)
    return None


def _stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name; none once it has ended."""
    with suppress(OSError):
        return (folder / "stat").read_text().rpartition(")")[2].split()
    return []


def random_model(folder: Path, shape: str) -> Path:
    """Write configuration and processors of a Qwen2.5-VL of a shape; serve it with `--load-format dummy`."""
    if shape not in SHAPES:
        raise EmblemaError(f"unknown shape {shape!r}: choose one of {', '.join(SHAPES)}")
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
    return folder
