"""Lines of one column that were read from the log, and stay in memory as long as there is room for them."""

import numpy
import torch
from numpy.typing import NDArray

from emblema.stream.buffers import host_buffer
from emblema.stream.lines import FrameNumbers

BUFFER_BYTES = 2**22
"""Of a buffer, or one line; what is not written of it takes no memory."""
GIVEN_UP = 64
"""Where there is no room, one line for so many is given up at least: to find those not used for longest takes time."""
Lines = NDArray[numpy.uint8]
Places = NDArray[numpy.int64]


class RecalledLines:
    """Lines [bytes] uint8 of frames that lie in the log. Each was verified when it was read.

    They lie close together in the order in which they came, whatever frames they are of. What is given up leaves room
    for the next one.

    Args:
        width: bytes of a line.

    Attributes:
        count: lines that are here.
    """

    def __init__(self, width: int) -> None:
        self.width, self.count = width, 0
        self._each = max(1, BUFFER_BYTES // width)
        self._buffers: list[Lines] = []
        # By frame, the place of its line; -1 for none.
        self._places: NDArray[numpy.int32] = numpy.full(0, -1, dtype=numpy.int32)
        # By place, the frame whose line was written there last, and when the line was used last.
        self._frames, self._used = numpy.zeros(0, dtype=numpy.int64), numpy.zeros(0, dtype=numpy.int64)
        self._free: list[int] = []
        self._begun = self._uses = 0

    @property
    def bytes(self) -> int:
        """Bytes in memory, those that are free for other lines included."""
        return self._begun * self.width

    @property
    def free(self) -> int:
        """Lines that are kept without more memory or giving up any."""
        return len(self._free)

    def copy(self, frames: FrameNumbers, out: Lines) -> Places:
        """Write the lines of frames, which rise, that are here; return which of `frames` are not."""
        more = int(frames[-1]) + 1 - len(self._places)
        if more > 0:
            self._places = numpy.concatenate(
                (self._places, numpy.full(more + len(self._places) // 2, -1, dtype=numpy.int32))
            )
        self._uses += 1
        places = self._places[frames]
        missing = numpy.flatnonzero(places < 0)
        self._used[places if not len(missing) else places[places >= 0]] = self._uses
        for own, place in zip(out, places.tolist(), strict=True):
            if place >= 0:
                own[:] = self._line(place)
        return missing

    def keep(self, frames: FrameNumbers, lines: Lines, more: int) -> int:
        """Keep lines of frames that are not here, in the place of those that were not used for longest.

        Lines of the last `copy` stay.

        Args:
            more: lines that may take memory of their own.

        Returns:
            How many were kept, those of the first frames.
        """
        new = min(more, max(0, len(frames) - self.free))
        self._begin(new)
        if len(frames) > self.free:
            self._give_up(len(frames) - self.free)
        kept = frames[: self.free]
        places = [self._free.pop() for _ in kept]
        for place, line in zip(places, lines, strict=False):
            self._line(place)[:] = line
        self._places[kept], self._frames[places], self._used[places] = places, kept, self._uses
        self.count += len(kept)
        return len(kept)

    def drop_unused(self) -> None:
        """Give back a buffer, and as many lines, those that were not used for longest; there is a buffer."""
        begin = (len(self._buffers) - 1) * self._each
        self._uses += 1
        self._give_up(self.count - begin)
        self._free = sorted(place for place in self._free if place < begin)
        for place in numpy.flatnonzero(self._here(slice(begin, self._begun))).tolist():
            source, target = begin + place, self._free.pop()
            self._line(target)[:] = self._line(source)
            self._frames[target], self._used[target] = self._frames[source], self._used[source]
            self._places[self._frames[source]] = target
        self._buffers.pop()
        self._begun = begin

    def clear(self, frames: range) -> None:
        """Overwrite lines of frames with zeros, also where they were given up; they are not here any more."""
        own = self._frames[: self._begun]
        cleared = numpy.flatnonzero((own >= frames.start) & (own < frames.stop))
        for place in cleared.tolist():
            self._line(place)[:] = 0
        self._leave(cleared[self._here(cleared)])
        self._frames[cleared] = -1
        while self._buffers and self.count <= (len(self._buffers) - 1) * self._each:
            self.drop_unused()

    def _line(self, place: int) -> Lines:
        line: Lines = self._buffers[place // self._each][place % self._each]
        return line

    def _here(self, places: Places | slice) -> NDArray[numpy.bool]:
        """Return which places have a line that is here."""
        frames = self._frames[places]
        numbers = numpy.arange(self._begun)[places]
        here: NDArray[numpy.bool] = (frames >= 0) & (self._places[frames] == numbers)
        return here

    def _begin(self, more: int) -> None:
        """Make so many places, free ones."""
        stop = self._begun + more
        while stop > len(self._buffers) * self._each:
            # Torch writes a tensor that was made in inference mode in no other mode.
            self._buffers.append(host_buffer((self._each, self.width), torch.uint8).numpy())
            self._frames, self._used = (
                numpy.concatenate((own[: (len(self._buffers) - 1) * self._each], numpy.full(self._each, -1)))
                for own in (self._frames, self._used)
            )
        self._free += range(stop - 1, self._begun - 1, -1)
        self._begun = stop

    def _give_up(self, least: int) -> None:
        """Give up so many lines that were not used for longest, or more; fewer where the last `copy` used the rest."""
        if least <= 0:
            return
        places = numpy.flatnonzero(self._here(slice(0, self._begun)) & (self._used[: self._begun] < self._uses))
        count = min(len(places), max(least, self.count // GIVEN_UP))
        if count:
            self._leave(places[numpy.argpartition(self._used[places], count - 1)[:count]])

    def _leave(self, places: Places) -> None:
        """Let places with lines be free."""
        self._places[self._frames[places]] = -1
        self._free += places.tolist()
        self.count -= len(places)
