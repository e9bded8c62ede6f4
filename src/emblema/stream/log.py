"""The frames of a stream, kept on the host: when each came, and what the encoder made of it."""

from bisect import bisect_right

import torch
from torch import Tensor

from emblema.models.frames import FrameCodes
from emblema.stream.saved import Saved

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

    def saved(self) -> Saved:
        """For a file; frames were seen."""
        codes = FrameCodes.joined(self._codes)
        layers = {f"deepstack{index}": layer for index, layer in enumerate(codes.deepstack)}
        times = torch.tensor(self.times, dtype=torch.float64)
        tensors = {"times": times, "embeds": codes.embeds, "offsets": codes.offsets, **layers}
        return Saved(tensors, {"token": codes.token_id, "deepstack": len(layers)})

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        tensors = saved.tensors
        layers = tuple(tensors[f"deepstack{index}"] for index in range(saved.facts["deepstack"]))
        codes = FrameCodes(tensors["embeds"], tensors["offsets"], layers, saved.facts["token"])
        self.add(codes, tensors["times"].tolist())

    @property
    def offsets(self) -> Tensor:
        """Positions [axes, tokens] of a frame's rows, counted from its corner; frames were seen."""
        return self._codes[0].offsets
