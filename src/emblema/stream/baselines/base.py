"""What a memory does unless it says otherwise."""

from collections.abc import Mapping

from emblema.stream.method import NOTHING, Bytes, Departed, Found, Query, Scene, Sight


class Base:
    """Keeps nothing, hands out nothing, counts nothing."""

    name = "none"
    shares_local = True
    encodes = True
    bounded = True

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.adapter, self.settings, self.places = scene.adapter, scene.settings, scene.places

    def admit(self, departed: Departed) -> None:
        """Forget them."""

    def prepare(self, sight: Sight) -> None:
        """Nothing has to be made ready."""

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        """Nothing."""
        return NOTHING

    def settle(self) -> None:
        """Nothing was put off."""

    def bytes(self) -> Bytes:
        """None."""
        return Bytes({}, {})

    def counts(self) -> Mapping[str, float]:
        """None."""
        return {}

    def retrieved(self) -> Mapping[int, float]:
        """None."""
        return {}

    def close(self) -> None:
        """There is nothing to give back."""
