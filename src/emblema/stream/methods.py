"""The memories that a stream can have, by name."""

from collections.abc import Mapping

from emblema.errors import StreamError
from emblema.stream.method import Method
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.mosaic.paper import PaperMosaic
from emblema.stream.settings import StreamSettings

METHODS: Mapping[str, type[Method]] = {kind.name: kind for kind in (FrameMemory, PaperMosaic)}
"""Name to method."""


def find_method(method: str | type[Method], settings: StreamSettings) -> type[Method]:
    """Return the method of a name, or one that is given as a class.

    Raises:
        StreamError: there is none of that name, or it does not go with the settings.
    """
    kind = method if isinstance(method, type) else METHODS.get(method)
    if kind is None or not issubclass(kind, Method):
        raise StreamError(f"there is no stream method {method!r}: choose one of {', '.join(METHODS)}")
    if settings.positions == "packed" and not kind.bounded:
        raise StreamError(f"{kind.name!r} sees everything: packed positions need an end; use native ones")
    return kind
