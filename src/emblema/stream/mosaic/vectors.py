"""What frames are clustered by, one vector a frame, on the host: kept so that a cut needs no rows."""

import torch
from torch import Tensor

from emblema.stream.saved import Saved

HOST = torch.device("cpu")


class Vectors:
    """Vectors [width] float32 of frames that come in order.

    Attributes:
        first: the number of the first frame.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self._held = torch.zeros(0, 0)

    @property
    def bytes(self) -> int:
        return self._held.nbytes

    def add(self, frame: int, vector: Tensor) -> None:
        """The vector of the next frame."""
        if self.count == 0:
            self.first, self._held = frame, torch.zeros(16, vector.shape[0])
        if self.count == self._held.shape[0]:
            more = max(16, len(self._held) // 2)
            self._held = torch.cat((self._held, self._held.new_zeros(more, self._held.shape[1])))
        self._held[self.count] = vector.to(HOST)
        self.count += 1

    def of(self, frames: list[int]) -> Tensor:
        """[frames, width]."""
        return self._held[torch.tensor(frames) - self.first]

    def saved(self) -> Saved:
        """For a file."""
        return Saved({"held": self._held[: self.count]}, {"first": self.first})

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        self._held, self.first = saved.tensors["held"], saved.facts["first"]
        self.count = len(self._held)
