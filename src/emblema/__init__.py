"""Emblema: a picture's key-value cache, made once and set into any prompt."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emblema.engine.async_engine import AsyncEngine
    from emblema.engine.engine import Engine
    from emblema.engine.retrieval import Retrieval
    from emblema.errors import EmblemaError
    from emblema.link.policy.policy import Policy
    from emblema.link.strategies.registry import strategies
    from emblema.media.limits import MediaLimits
    from emblema.session.prompt_reader import slid
    from emblema.store.record import Terms
    from emblema.store.store import Store
    from emblema.stream.settings import StreamSettings
    from emblema.stream.stream import Stream
    from emblema.window.budget import WindowBudget
    from emblema.window.window import Window

__version__ = "0.1.0"
__all__ = [
    "AsyncEngine",
    "EmblemaError",
    "Engine",
    "MediaLimits",
    "Policy",
    "Retrieval",
    "Store",
    "Stream",
    "StreamSettings",
    "Terms",
    "Window",
    "WindowBudget",
    "slid",
    "strategies",
]

_HOMES = {
    "AsyncEngine": "emblema.engine.async_engine",
    "EmblemaError": "emblema.errors",
    "Engine": "emblema.engine.engine",
    "MediaLimits": "emblema.media.limits",
    "Policy": "emblema.link.policy.policy",
    "Retrieval": "emblema.engine.retrieval",
    "Store": "emblema.store.store",
    "Stream": "emblema.stream.stream",
    "StreamSettings": "emblema.stream.settings",
    "Terms": "emblema.store.record",
    "Window": "emblema.window.window",
    "WindowBudget": "emblema.window.budget",
    "slid": "emblema.session.prompt_reader",
    "strategies": "emblema.link.strategies.registry",
}


def __getattr__(name: str) -> Any:
    """Public names, imported when first used: the package itself imports nothing heavy."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'emblema' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
