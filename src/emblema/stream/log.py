"""The frames of a stream, kept on the host: when each came, and what the encoder made of it."""

from bisect import bisect_right

import torch

from emblema.models.frames import FrameCodes

HOST = torch.device("cpu")


class FrameLog:
    """Times and codes of all frames that were encoded, in order."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._starts: list[int] = []
        self._codes: list[FrameCodes] = []

    def __len__(self) -> int:
        return len(self.times)

    @property
    def bytes(self) -> int:
        return sum(codes.bytes for codes in self._codes)

    def add(self, codes: FrameCodes, times: list[float]) -> None:
        """Take in frames with the times at which they came."""
        self._starts.append(len(self.times))
        self._codes.append(codes.to(HOST))
        self.times += times

    def until(self, seconds: float) -> int:
        """How many frames had come at a time."""
        return bisect_right(self.times, seconds)

    def codes(self, frames: range | list[int]) -> FrameCodes:
        """Codes of some frames, in the order given; there is at least one."""
        parts = []
        for frame in frames:
            index = bisect_right(self._starts, frame) - 1
            parts.append(self._codes[index].slice(frame - self._starts[index], frame - self._starts[index] + 1))
        return FrameCodes.joined(parts)
