"""The memories that a stream can have, by name."""

from typing import Protocol

from emblema.errors import StreamError
from emblema.stream.baselines.full import Full
from emblema.stream.baselines.livevlm import LiveVlm
from emblema.stream.baselines.nocache import NoCache
from emblema.stream.baselines.rekv import Rekv
from emblema.stream.baselines.sliding import Sliding
from emblema.stream.baselines.streammem import StreamMem
from emblema.stream.method import Method, Scene
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.settings import StreamSettings


class Maker(Protocol):
    """Makes a memory."""

    name: str
    bounded: bool

    def __call__(self, scene: Scene) -> Method: ...


def makers() -> dict[str, Maker]:
    """Name to maker; `mosaic` is ours."""
    kinds = (Mosaic, Full, Sliding, NoCache, Rekv, LiveVlm, StreamMem)
    return {kind.name: kind for kind in kinds}


def method_named(name: str, settings: StreamSettings) -> Maker:
    """The maker of a method.

    Raises:
        StreamError: there is none of that name, or it does not go with the settings.
    """
    found = makers().get(name)
    if found is None:
        raise StreamError(f"there is no stream method {name!r}: choose one of {', '.join(makers())}")
    if settings.positions == "packed" and not found.bounded:
        raise StreamError(f"{name!r} sees everything: packed positions need an end; use native ones")
    return found
