"""Emblema: a picture's key-value cache, made once and set into any prompt."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emblema.engine.async_engine import AsyncEngine
    from emblema.engine.engine import Engine
    from emblema.errors import EmblemaError
    from emblema.link.policy.policy import Policy
    from emblema.session.prompt_reader import slid
    from emblema.store.store import Store

__version__ = "0.1.0"
__all__ = ["AsyncEngine", "EmblemaError", "Engine", "Policy", "Store", "slid"]

_MODULES = {
    "AsyncEngine": "engine.async_engine",
    "EmblemaError": "errors",
    "Engine": "engine.engine",
    "Policy": "link.policy.policy",
    "Store": "store.store",
    "slid": "session.prompt_reader",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the package itself imports nothing heavy."""
    if name not in _MODULES:
        raise AttributeError(f"module 'emblema' has no attribute {name!r}")
    return getattr(import_module(f"emblema.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
