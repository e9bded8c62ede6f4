"""The plugin for vLLM. See `docs/vllm.md`.

vLLM imports the plugin's classes by these names, so that an untested vLLM is refused before any of its modules are
imported. `internals` alone knows vLLM's private names.
"""

from importlib import import_module
from typing import Any

_MODULES = {"EmblemaConnector": "connectors", "EmblemaEncoderConnector": "connectors", "EmblemaWorker": "worker"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emblema.vllm.plugin import check_version

    check_version()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
