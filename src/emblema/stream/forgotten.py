"""Frames that were forgotten: their numbers stay taken, and nothing else of them is kept."""

from bisect import bisect_left, bisect_right

import numpy
import torch

from emblema.stream.lines import FrameNumbers
from emblema.stream.state import StreamState


class ForgottenFrames:
    """Runs of forgotten frames, rising and apart."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __contains__(self, frame: int) -> bool:
        place = bisect_right(self._starts, frame) - 1
        return place >= 0 and frame < self._stops[place]

    def add(self, frames: range) -> None:
        """Add frames; some may be forgotten already."""
        if not frames:
            return
        low, high = bisect_left(self._stops, frames.start), bisect_right(self._starts, frames.stop)
        joined = low < high
        start = min(frames.start, self._starts[low]) if joined else frames.start
        stop = max(frames.stop, self._stops[high - 1]) if joined else frames.stop
        self._starts[low:high], self._stops[low:high] = [start], [stop]

    def live_runs(self, frames: range) -> list[range]:
        """Return the runs of frames that are not forgotten."""
        runs, start = [], frames.start
        for place in range(bisect_right(self._stops, frames.start), bisect_left(self._starts, frames.stop)):
            runs.append(range(start, self._starts[place]))
            start = self._stops[place]
        runs.append(range(start, frames.stop))
        return [run for run in runs if run]

    def runs(self) -> list[range]:
        """Return the runs of frames that are forgotten."""
        return list(map(range, self._starts, self._stops))

    def live(self, low: int, high: int) -> FrameNumbers:
        """Return the frames from `low` and before `high` that are not forgotten, rising."""
        runs = [numpy.arange(run.start, run.stop) for run in self.live_runs(range(low, high))]
        return numpy.concatenate(runs) if runs else numpy.zeros(0, dtype=numpy.int64)

    def count_live(self, low: int, high: int) -> int:
        """Return how many frames `live` returns."""
        return sum(map(len, self.live_runs(range(low, high))))

    def first(self) -> int:
        """Return the first frame that is not forgotten."""
        return self._stops[0] if self._starts and self._starts[0] == 0 else 0

    def state(self) -> StreamState:
        """Return the state for a file."""
        return StreamState({"runs": torch.tensor([self._starts, self._stops], dtype=torch.int64)})

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state."""
        self._starts, self._stops = state.tensors["runs"].tolist()
