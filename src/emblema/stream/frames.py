"""Frames of a stream: a queue of those that wait to be encoded, and a log of those that were."""

import math
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from PIL import Image
from torch import Tensor

from emblema.errors import MediaError, StreamError
from emblema.models.frames import FrameCodes
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.lines import FrameLines, LineField, join_fields, split_fields
from emblema.stream.settings import StreamSettings
from emblema.stream.skipping import FrameSkipper
from emblema.stream.state import StreamState


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A picture and the time at which it came, in seconds."""

    picture: Image.Image
    at: float


class FrameQueue:
    """A bounded queue. Any thread may put frames in; the stream's owner takes them out.

    Attributes:
        dropped: frames that were dropped because the queue was full.
        last: time of the last frame in seconds; None before the first.
        size: width and height of the frames; None before the first.
        skipper: leaves out frames that show nothing new.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self.settings = settings
        self.dropped = 0
        self.last: float | None = None
        self.size: tuple[int, int] | None = None
        self.skipper = FrameSkipper(settings.skip)
        self._frames: deque[TimedFrame] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._frames)

    def times(self, at: float | Sequence[float] | None, count: int) -> list[float]:
        """Return times for frames that come next, as they were given; by default each a second after the one before.

        Raises:
            StreamError: there are not as many times as frames, or one is no number.
        """
        if at is None:
            begin = -1.0 if self.last is None else self.last
            return [begin + step for step in range(1, count + 1)]
        times = list(at) if isinstance(at, Sequence) else [at]
        if len(times) != count:
            raise StreamError(f"{count} frames came with {len(times)} times: give a time for each")
        if not all(isinstance(time, int | float) and math.isfinite(time) for time in times):
            raise StreamError(f"the times {times!r} are not all numbers: give seconds")
        return [float(time) for time in times]

    def put(self, frames: list[TimedFrame], wait: bool) -> int:
        """Put frames in. All are checked before the first is taken; if one is refused, none is taken.

        Args:
            wait: at a full queue, do as the drop policy says; else the queue grows, since its owner will empty it.

        Returns:
            How many were taken.

        Raises:
            MediaError: a frame has another size than those before it.
            StreamError: a time is not finite, or before an earlier frame's; or the stream is closed.
        """
        with self._changed:
            self._check(frames)
            taken = 0
            for frame in frames:
                if self.skipper.shows_nothing_new(frame.picture):
                    self.skipper.skipped += 1
                    self.last, self.size = frame.at, frame.picture.size
                    continue
                if wait and len(self._frames) >= self.settings.queue:
                    if not self._make_room():
                        self.last, self.size = frame.at, frame.picture.size
                        continue
                    # Others may have pushed while this one waited.
                    self._check([frame])
                self._frames.append(frame)
                self.skipper.keep(frame.picture)
                self.last, self.size = frame.at, frame.picture.size
                taken += 1
            return taken

    def take(self, most: int) -> list[TimedFrame]:
        """Return the next frames, at most `most`."""
        with self._changed:
            taken = [self._frames.popleft() for _ in range(min(most, len(self._frames)))]
            self._changed.notify_all()
            return taken

    def put_back(self, frames: list[TimedFrame]) -> None:
        """Put frames that were taken in front of those that wait."""
        with self._changed:
            self._frames.extendleft(reversed(frames))

    def restore(self, last: float | None, size: tuple[int, int] | None, dropped: int) -> None:
        """Go on after the frames of a stream that was saved."""
        self.last, self.size, self.dropped = last, size, dropped

    def close(self) -> None:
        """Take no more frames; a thread that waits for room gets a StreamError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def refuse_closed(self) -> None:
        """Raise StreamError once the stream is closed."""
        if self._closed:
            raise StreamError("the stream is closed: open another one, or load it from where it was saved")

    def _check(self, frames: list[TimedFrame]) -> None:
        self.refuse_closed()
        last, size = self.last, self.size
        for frame in frames:
            if not math.isfinite(frame.at):
                raise StreamError(f"a frame's time is {frame.at}: give seconds")
            if last is not None and frame.at < last:
                raise StreamError(f"a frame of {frame.at:g} s came after one of {last:g} s: time does not go back")
            if size is not None and frame.picture.size != size:
                new, old = ("{}x{}".format(*pair) for pair in (frame.picture.size, size))
                raise MediaError(f"a frame is {new} pixels, those before it {old}: resize it, or open another stream")
            last, size = frame.at, frame.picture.size

    def _make_room(self) -> bool:
        """Do as the drop policy says; return whether there is room for a frame now."""
        if self.settings.drop == "block":
            while len(self._frames) >= self.settings.queue and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StreamError("the stream was closed while a frame waited: it was not taken")
            return True
        self.dropped += 1
        if self.settings.drop == "oldest":
            self._frames.popleft()
            return True
        return False


class FrameLog:
    """Times, and what the encoder made, of all frames that were encoded, in order, on the host.

    Args:
        step: as of `FrameLines`.

    Attributes:
        times: seconds.
        gone: frames that were forgotten.
    """

    def __init__(self, step: int | None = None) -> None:
        self.gone = ForgottenFrames()
        self.times: list[float] = []
        self._step = step
        self._lines: FrameLines | None = None
        # Codes of no frame: what those of all frames have in common.
        self._form: FrameCodes | None = None

    def __len__(self) -> int:
        return len(self.times)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return 0 if self._lines is None else self._lines.bytes

    @property
    def lines(self) -> FrameLines:
        """The codes of every frame as a line; there is a frame."""
        return self._begun()[0]

    @property
    def offsets(self) -> Tensor:
        """Positions [axes, tokens] of a frame's rows, counted from its corner; there is a frame."""
        return self._begun()[1].offsets

    def begin(self, codes: FrameCodes) -> None:
        """Take codes of any frames as the form of all; once."""
        if self._form is None:
            self._form = codes.slice(0, 0).to(torch.device("cpu"))
            self._lines = FrameLines(sum(field.bytes for field in _fields(self._form)), torch.uint8, self._step)

    def add(self, codes: FrameCodes, times: list[float]) -> None:
        """Add frames with the times at which they came."""
        self.begin(codes)
        own = codes.to(torch.device("cpu"))
        frames = range(len(self), len(self) + len(times))
        self.lines.append(frames, join_fields((own.embeds, *own.deepstack)))
        self.times += times

    def forget(self, frames: range) -> None:
        """Forget what the encoder made of frames; their times stay."""
        self.gone.add(frames)
        self.lines.drop(self.gone.first())
        self.lines.clear(numpy.array(frames, dtype=numpy.int64))

    def count_until(self, seconds: float) -> int:
        """Return how many frames had come at a time."""
        return bisect_right(self.times, seconds)

    def codes(self, frames: range | list[int]) -> FrameCodes:
        """Return codes of some frames, which rise.

        Raises:
            StoreError: they are on disk, and damaged there.
        """
        lines, form = self._begun()
        embeds, *deepstack = split_fields(lines.copy(numpy.array(frames, dtype=numpy.int64)), _fields(form))
        return FrameCodes(embeds, form.offsets, tuple(deepstack), form.token_id)

    def _begun(self) -> tuple[FrameLines, FrameCodes]:
        if self._lines is None or self._form is None:
            raise ValueError("no frame was added")
        return self._lines, self._form

    def state(self) -> StreamState:
        """Return the state for a file, without the codes; there is a frame."""
        form = self._begun()[1]
        layers = {f"deepstack{index}": layer for index, layer in enumerate(form.deepstack)}
        times = torch.tensor(self.times, dtype=torch.float64)
        tensors = {"times": times, "embeds": form.embeds, "offsets": form.offsets, **layers}
        state = StreamState(tensors, {"token": form.token_id, "deepstack": len(layers)})
        state.put("gone", self.gone.state())
        return state

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; the codes of its frames are not in memory."""
        tensors = state.tensors
        layers = tuple(tensors[f"deepstack{index}"] for index in range(state.facts["deepstack"]))
        self.begin(FrameCodes(tensors["embeds"], tensors["offsets"], layers, state.facts["token"]))
        self.times = tensors["times"].tolist()
        self.lines.begin(0, len(self))
        self.gone.restore(state.part("gone"))


def _fields(form: FrameCodes) -> list[LineField]:
    return [LineField(tuple(part.shape[1:]), part.dtype) for part in (form.embeds, *form.deepstack)]
