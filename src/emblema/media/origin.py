"""What a picture was before it was scaled, so that the same picture at another size is known as such."""

import struct
from dataclasses import dataclass

from blake3 import blake3
from PIL import Image

_KEY = "emblema origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """A digest of a picture's sides and pixels before it was scaled; a scaled picture has it in its `info`."""

    digest: bytes

    @classmethod
    def noted(cls, picture: Image.Image) -> "Origin | None":
        """Return the origin that a picture has; None where it was not scaled."""
        # A file may have text under this name.
        found = picture.info.get(_KEY)
        return found if isinstance(found, Origin) else None

    @classmethod
    def of(cls, picture: Image.Image) -> "Origin":
        """Return the origin of a picture: that which it has, or itself."""
        found = cls.noted(picture)
        if found is not None:
            return found
        hasher = blake3(struct.pack("<QQ", *picture.size))
        hasher.update(picture.tobytes())
        return cls(hasher.digest())

    def note(self, scaled: Image.Image) -> Image.Image:
        """Return a scaled picture, which has this origin from now on, and no other data beside its pixels."""
        scaled.info = {_KEY: self}
        return scaled
