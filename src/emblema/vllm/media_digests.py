"""Digest and grid of each media item, by what the encoder is given of it."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from blake3 import blake3

from emblema.served.media_digest import add_to_digest

_SHOWN = "emblema 2026-11 vllm shown media 1"
REMEMBERED_MEDIA = 1024

Grid = tuple[int, int, int]
"""Frames, height and width, in patches."""
Known = TypeVar("Known")


class MediaPlace(NamedTuple):
    """Where a model places media: on a grid, and from one step of it to the next so many seconds, if it is told so."""

    image: Grid | None = None
    video: Grid | None = None
    seconds: float | None = None

    def grid(self, modality: str) -> Grid | None:
        """Return the grid of media of a kind."""
        return self.video if modality == "video" else self.image


class MediaMemory(Generic[Known]):
    """What is known of the data that encoders are given, each found once while vLLM keeps them. Any thread may use it.

    Args:
        find: finds it.
    """

    def __init__(self, find: Callable[[Any], Known]) -> None:
        self._find = find
        # By the object that vLLM keeps; the reference tells whether it is still that one.
        self._found: OrderedDict[int, tuple[Any, Known]] = OrderedDict()

    def of(self, data: Any) -> Known:
        """Return what is known of some data."""
        held = self._found.get(id(data))
        if held is not None and held[0]() is data:
            return held[1]
        found = self._find(data)
        self._found[id(data)] = (weakref.ref(data), found)
        if len(self._found) > REMEMBERED_MEDIA:
            self._found.popitem(last=False)
        return found


class MediaDigests:
    """Digests of what encoders are given, and its places on grids. Any thread may use it.

    A feature's `identifier` may be a client's own `uuid`, so what is stored is named by this digest.
    """

    def __init__(self) -> None:
        self._digests, self._places = MediaMemory(_digest), MediaMemory(_place)

    def digests(self, features: Sequence[Any]) -> list[str]:
        """Return the digests of features; empty for one whose data are not there."""
        return [self._digests.of(feature.data) if _is_there(feature.data) else "" for feature in features]

    def place(self, feature: Any) -> MediaPlace:
        """Return where the model places a feature."""
        if feature.data is None:
            return MediaPlace()
        # What is not there yet is looked at again.
        return self._places.of(feature.data) if _is_there(feature.data) else _place(feature.data)


def _is_there(data: Any) -> bool:
    return data is not None and all(element.data is not None for element in data.values())


def _digest(data: Any) -> str:
    hasher = blake3(derive_key_context=_SHOWN)
    for name in sorted(data):
        add_to_digest(hasher, name)
        add_to_digest(hasher, data[name].data)
    return hasher.hexdigest()


def _place(data: Any) -> MediaPlace:
    image, video, seconds = (
        None if (element := data.get(name)) is None else element.data
        for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    )
    return MediaPlace(_grid(image), _grid(video), None if seconds is None else float(seconds))


def _grid(size: Any) -> Grid | None:
    if size is None:
        return None
    frames, height, width = size.reshape(-1).tolist()
    return frames, height, width
