"""The memories that a stream can have, by name."""

from collections.abc import Callable

from emblema.errors import StreamError
from emblema.models.adapter import Adapter
from emblema.stream.baselines.full import Full
from emblema.stream.baselines.sliding import Sliding
from emblema.stream.memory import Mosaic
from emblema.stream.method import Method
from emblema.stream.positions import Places
from emblema.stream.settings import StreamSettings

Maker = Callable[[Adapter, StreamSettings, Places], Method]


def makers() -> dict[str, Maker]:
    """Name to maker; `mosaic` is ours."""
    return {"mosaic": Mosaic, "full": Full, "sliding": Sliding}


def method_named(name: str) -> Maker:
    """The maker of a method.

    Raises:
        StreamError: there is none of that name.
    """
    found = makers().get(name)
    if found is None:
        raise StreamError(f"there is no stream method {name!r}: choose one of {', '.join(makers())}")
    return found
