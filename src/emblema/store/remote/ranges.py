"""Any range of a value that lies elsewhere, read ahead while reading goes forward."""

import threading
from collections.abc import Callable

from emblema.errors import LoadError


class RangeReader:
    """The bytes of a value that lies elsewhere, fetched as they are wanted; any number of threads may read.

    Reading forward fetches every byte once, at most four parts at a time; a range out of its order is fetched alone.

    Args:
        id: of the record, for errors.
        bytes: of the whole value.
        fetch: returns the bytes from a first one to a last one, which is not included; raises LoadError.
        first: the value's beginning, which is here already.
        part_bytes: of a part.
    """

    def __init__(
        self, id: str, bytes: int, fetch: Callable[[int, int], memoryview], first: memoryview, part_bytes: int
    ) -> None:
        self._id, self._bytes, self._fetch, self._part_bytes = id, bytes, fetch, part_bytes
        # Guards what follows, and is kept over a fetch: two readers of one range fetch it once.
        self._lock = threading.Lock()
        self._start, self._held, self._ahead = 0, first, part_bytes

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill a writable buffer with the bytes from an offset on.

        Raises:
            LoadError: the range is outside the value, or cannot be fetched.
        """
        target = target.cast("B")
        if offset < 0 or offset + len(target) > self._bytes:
            raise LoadError(self._id, f"it is {self._bytes} bytes long and was read up to {offset + len(target)}")
        while len(target):
            with self._lock:
                if not self._start <= offset < self._start + len(self._held):
                    self._hold(offset, len(target))
                at = offset - self._start
                piece = self._held[at : at + len(target)]
            target[: len(piece)] = piece
            offset, target = offset + len(piece), target[len(piece) :]

    def _hold(self, offset: int, wanted: int) -> None:
        forward = offset == self._start + len(self._held)
        self._ahead = min(2 * max(self._ahead, self._part_bytes), 4 * self._part_bytes) if forward else 0
        self._held = memoryview(b"")
        count = min(max(wanted, self._ahead), 4 * self._part_bytes)
        self._held = self._fetch(offset, min(offset + count, self._bytes))
        self._start = offset

    def close(self) -> None:
        """Let go of the bytes that are held."""
        with self._lock:
            self._held = memoryview(b"")
