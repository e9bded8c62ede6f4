"""The plugin for vLLM. See `docs/vllm.md`.

vLLM finds its parts under their names here, so that another vLLM than the tested one is refused before anything of it
is imported that may have moved. `internals` and `scheduler` alone know vLLM's private names.
"""

from importlib import import_module
from typing import Any

_PARTS = {
    "EmblemaConnector": "connector",
    "EmblemaEncoderConnector": "encodings",
    "LinkingScheduler": "scheduler",
}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emblema.vllm.version import check_version

    check_version()
    return getattr(import_module(f"{__name__}.{_PARTS[name]}"), name)
