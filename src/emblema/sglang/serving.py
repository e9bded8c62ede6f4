"""The command line of SGLang's own server with the plugin."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.names import BUNDLED
from emblema.serve.beside import command_line
from emblema.serve.beside.command_line import value_of, with_defaults
from emblema.sglang.plugin import OPTIONS, TESTED

GROUP, PLUGIN = "sglang.srt.plugins", "emblema"
MODULE = "emblema.sglang.server"
HOST, PORT = "127.0.0.1", 30_000
"""SGLang's own defaults."""
DEFAULTS: Mapping[str, str | None] = {"--skip-server-warmup": None}
"""SGLang would warm up by requests to itself, which have no key of a tenant."""
BUNDLED_DEFAULTS: Mapping[str, str | None] = {
    "--dtype": "float32",
    "--context-length": "8192",
    "--max-total-tokens": "32768",
    "--mem-fraction-static": "0.3",
}
"""Of a bundled model. SGLang would take nearly all memory."""
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


def check_start(store: Path, options: Sequence[str]) -> None:
    """Refuse what a server would refuse once it has loaded its model.

    Args:
        store: folder of the store.
        options: of SGLang.

    Raises:
        EmblemaError: others would be let in without a key, two kinds of keys would be asked for, or the port is taken.
    """
    from emblema.sglang.engine_api import SGLANG

    own_key = bool(value_of(options, "--api-key") or value_of(options, "--admin-api-key"))
    command_line.check_start(store, options, own_key, SGLANG, (HOST, PORT), ("--config",))


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
    listed = given.get("SGLANG_PLUGINS")
    if listed and PLUGIN not in listed.split(","):
        made["SGLANG_PLUGINS"] = f"{listed},{PLUGIN}"
    return made
