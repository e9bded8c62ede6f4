"""A small copy of every frame, compressed, so that what is retrieved can be shown."""

import io
import zipfile
from pathlib import Path

from PIL import Image

from emblema.errors import StoreError
from emblema.store.files import write_whole
from emblema.stream.forgotten import ForgottenFrames

SIDE = 160
"""Longest side of a copy, in pixels."""

QUALITY = 90


class Thumbnails:
    """Copies of frames by their number, a few kilobytes each."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def add(self, frame: int, picture: Image.Image) -> None:
        """Keep a copy of a frame."""
        copy = picture.copy()
        copy.thumbnail((SIDE, SIDE))
        written = io.BytesIO()
        copy.save(written, "JPEG", quality=QUALITY, subsampling=0)
        self._held[frame] = written.getvalue()

    def get(self, frame: int) -> Image.Image | None:
        """Return a frame's copy; None if there is none."""
        held = self._held.get(frame)
        return None if held is None else Image.open(io.BytesIO(held)).convert("RGB")

    def forget(self, gone: ForgottenFrames) -> None:
        """Delete the copies of some frames."""
        self._held = {frame: held for frame, held in self._held.items() if frame not in gone}

    def save(self, path: Path) -> None:
        """Write all copies to one file.

        Raises:
            StoreError: it cannot be written.
        """
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as folder:
            for frame, held in self._held.items():
                folder.writestr(f"{frame}.jpg", held)
        try:
            write_whole(path, [written.getbuffer()])
        except OSError as error:
            raise StoreError(f"{path} cannot be written ({error.strerror}): the stream itself is saved") from error

    def load(self, path: Path) -> None:
        """Add copies that were saved; a file that is missing or damaged gives none, as they are only shown."""
        try:
            with zipfile.ZipFile(path) as folder:
                self._held |= {int(Path(name).stem): folder.read(name) for name in folder.namelist()}
        except (OSError, ValueError, zipfile.BadZipFile):
            return
