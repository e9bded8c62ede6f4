"""Frames that show nothing new: told by their difference from the last frame that was kept."""

import numpy as np
import torch
from PIL import Image

from emblema.stream.state import StreamState

CELLS = 16
"""Cells along each side of the grid that frames are compared on."""


class FrameSkipper:
    """Says which frames differ from the last one kept.

    Two frames differ by their most different cell: the mean over its pixels and the three colours, as a share of the
    range of brightness. So noise counts for little, a small thing counts, and a slow change adds up until it counts.

    Args:
        least: difference from which a frame is kept; None keeps all.

    Attributes:
        skipped: frames that were not kept.
    """

    def __init__(self, least: float | None) -> None:
        self.skipped = 0
        self._least = least
        self._kept: np.ndarray | None = None

    def shows_nothing_new(self, picture: Image.Image) -> bool:
        """Return whether a frame is to be left out."""
        if self._least is None or self._kept is None:
            return False
        return float(np.abs(_cells(picture) - self._kept).mean(2).max()) < 255 * self._least

    def keep(self, picture: Image.Image) -> None:
        """Take a frame as the one that others are compared with."""
        if self._least is not None:
            self._kept = _cells(picture)

    def forget(self) -> None:
        """Forget the last frame that was kept: the next one is kept, whatever it shows."""
        self._kept = None

    def state(self) -> StreamState:
        """Return the state for a file."""
        tensors = {} if self._kept is None else {"kept": torch.from_numpy(self._kept)}
        return StreamState(tensors, {"skipped": self.skipped})

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state."""
        self.skipped = state.facts["skipped"]
        self._kept = state.tensors["kept"].numpy() if "kept" in state.tensors else None


def _cells(picture: Image.Image) -> np.ndarray:
    """Return mean colours [cells, cells, 3] float32, 0 to 255."""
    small = picture.convert("RGB").resize((CELLS, CELLS), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32)
