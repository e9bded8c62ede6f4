"""The plugin for vLLM. See `docs/vllm.md`.

vLLM imports the plugin's classes by these names, so that an untested vLLM is refused before any of its modules are
imported, and one that lacks what the plugin uses before anything runs.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "EmblemaConnector": "connectors",
    "EmblemaEncoderConnector": "encoder_connector",
    "EmblemaWorker": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emblema.vllm.plugin import check_version
    from emblema.vllm.vllm_names import check_names

    check_version()
    check_names()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
