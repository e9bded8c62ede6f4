"""Emblema: a picture's key-value cache, made once and set into any prompt."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncEngine", "EmblemaError", "Engine", "slid", "strategies"]

_HOMES = {
    "AsyncEngine": "emblema.engine.asynchronous",
    "EmblemaError": "emblema.errors",
    "Engine": "emblema.engine.engine",
    "slid": "emblema.engine.conversation",
    "strategies": "emblema.link.strategies.registry",
}


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: the package itself imports nothing heavy."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'emblema' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
