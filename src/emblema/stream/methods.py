"""The memories that a stream can have, by name."""

from collections.abc import Mapping

from emblema.errors import StreamError
from emblema.stream.baselines.full import FullAttention
from emblema.stream.baselines.livevlm import LiveVlm
from emblema.stream.baselines.nocache import NoCache
from emblema.stream.baselines.rekv import Rekv
from emblema.stream.baselines.sliding import Sliding
from emblema.stream.baselines.streammem import StreamMem
from emblema.stream.method import Method
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.settings import StreamSettings

METHODS: Mapping[str, type[Method]] = {
    kind.name: kind for kind in (Mosaic, FullAttention, Sliding, NoCache, Rekv, LiveVlm, StreamMem)
}
"""Name to method; `mosaic` is ours."""


def method_named(name: str, settings: StreamSettings) -> type[Method]:
    """Return the method of a name.

    Raises:
        StreamError: there is none of that name, or it does not go with the settings.
    """
    kind = METHODS.get(name)
    if kind is None:
        raise StreamError(f"there is no stream method {name!r}: choose one of {', '.join(METHODS)}")
    if settings.positions == "packed" and not kind.bounded:
        raise StreamError(f"{name!r} sees everything: packed positions need an end; use native ones")
    return kind
