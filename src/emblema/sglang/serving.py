"""The command line of SGLang's own server with the plugin."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.names import BUNDLED
from emblema.serve.front.command_line import FILE, name_of, names_in_file, take_file, with_defaults
from emblema.sglang.plugin import OPTIONS, TESTED

GROUP, PLUGIN = "sglang.srt.plugins", "emblema"
MODULE = "sglang.launch_server"
PORT = 30_000
"""Where SGLang listens by default, and so the service in front of it."""
OTHER_LISTENERS = (
    "--tokenizer-worker-num", "--grpc-port", "--grpc-mode", "--smg-grpc-mode", "--use-ray", "--encoder-only",
    "--sidecar",
)  # fmt: skip
"""Options with which others than SGLang's one HTTP server listen, and ask for no key."""
OTHER_VARIABLES = ("SGLANG_GRPC_PORT", "SGLANG_RUST_SERVER")
DEFAULTS: Mapping[str, str | None] = {"--enable-cache-report": None}
BUNDLED_DEFAULTS: Mapping[str, str | None] = {
    "--skip-server-warmup": None,
    "--dtype": "float32",
    "--context-length": "8192",
    "--max-total-tokens": "32768",
    "--mem-fraction-static": "0.3",
}
"""Of a bundled model. SGLang would take nearly all memory, and warm up for longer than such a model answers."""
COMPILING = "TORCH_COMPILE_DISABLE"
"""torch's variable that has everything run as it is written."""
CPU_DEFAULTS: Mapping[str, str | None] = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--mm-attention-backend": "sdpa",
    "--sampling-backend": "pytorch",
    "--disable-cuda-graph": None,
    "--sleep-on-idle": None,
}
"""Where there is no GPU: what needs no kernels that are compiled for one kind of processor. The last leaves the cores
alone while no request is there."""


def check_installed() -> None:
    """Refuse another SGLang than the tested one, and a package that does not name its plugin to SGLang.

    Raises:
        EmblemaError: that is so, or SGLang is not installed here.
    """
    try:
        found = version("sglang")
    except PackageNotFoundError as error:
        raise EmblemaError(f"SGLang is not installed here: pip install sglang=={TESTED}") from error
    if found.partition("+")[0] != TESTED:
        raise EmblemaError(
            f"This is SGLang {found}; emblema's plugin has been tested with {TESTED} alone: install sglang=={TESTED}."
        )
    if PLUGIN not in {point.name for point in entry_points(group=GROUP)}:
        raise EmblemaError("the installed emblema does not name its plugin to SGLang: install it again with pip")


def command(model: str, more: Sequence[str] = (), tokenizer: Path | None = None) -> list[str]:
    """Return the command line of a server.

    Args:
        model: a bundled name, a folder or a Hugging Face id.
        more: options for SGLang itself.
        tokenizer: folder of a bundled model's tokenizer, where it is another than the model's.
    """
    import torch

    from emblema.models.load import model_source

    source = model_source(model)
    line = [sys.executable, "-m", MODULE, "--model-path", source, "--served-model-name", model, "--enable-multimodal"]
    defaults = {
        **DEFAULTS,
        **(BUNDLED_DEFAULTS if model in BUNDLED else {}),
        **({"--tokenizer-path": str(tokenizer)} if model in BUNDLED and tokenizer is not None else {}),
        **({} if torch.cuda.is_available() else CPU_DEFAULTS),
    }
    return with_defaults(line, defaults, more)


def check_listeners(options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a server that also listens where no key would be asked for.

    Args:
        options: of SGLang.
        environment: of the server.

    Raises:
        EmblemaError: it does, or a file of options cannot be read.
    """
    found = [name for name in (*map(name_of, options), *names_in_file(options)) if name in OTHER_LISTENERS]
    found += [name for name in OTHER_VARIABLES if environment.get(name, "") not in ("", "0", "false", "False")]
    if found:
        raise EmblemaError(f"{found[0]} has others than SGLang's HTTP server listen, who ask for no key: leave it out")


def listening(options: Sequence[str], folder: Path, port: int, key: str) -> list[str]:
    """Return SGLang's options with those for a server that only this machine reaches, with a key.

    The key goes by a file of a folder: other users of the machine read command lines.

    Raises:
        EmblemaError: the file that the options name cannot be read.
    """
    config, given = take_file(options)
    place = folder / "options.yaml"
    place.touch(mode=0o600)
    place.write_text(f"{config}\napi-key: {key}\n")
    return [*given, "--host", "127.0.0.1", "--port", str(port), FILE, str(place)]


def environment(given: Mapping[str, str], store: Path, strategy: str = "auto", capture: bool = True) -> dict[str, str]:
    """Return what a server's environment says beside what is given; the arguments are those of `PluginSettings`.

    Raises:
        EmblemaError: there is no such strategy.
    """
    import torch

    from emblema.served.settings import PluginSettings

    options = {"store": str(store), "strategy": strategy, "capture": capture}
    PluginSettings.read(options, OPTIONS)
    made = {OPTIONS: json.dumps(options)}
    if not torch.cuda.is_available():
        made["SGLANG_USE_CPU_ENGINE"] = "1"
        # SGLang compiles a rotation for its towers when the first picture comes: 4 to 90 seconds on a CPU.
        made.update({} if COMPILING in given else {COMPILING: "1"})
    listed = given.get("SGLANG_PLUGINS")
    if listed and PLUGIN not in listed.split(","):
        made["SGLANG_PLUGINS"] = f"{listed},{PLUGIN}"
    return made
