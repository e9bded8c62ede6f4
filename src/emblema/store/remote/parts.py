"""A value in parts: cut for writing, read back on demand."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from emblema.errors import LoadError

Buffer = bytes | memoryview


def split(buffers: Iterable[Buffer], part_bytes: int) -> Iterator[Buffer]:
    """Yield the same bytes in parts of `part_bytes`, the last one shorter; only what spans two buffers is copied."""
    held: list[memoryview] = []
    room = part_bytes
    for buffer in buffers:
        rest = memoryview(buffer).cast("B")
        while len(rest) >= room:
            held.append(rest[:room])
            yield _joined(held)
            rest, held, room = rest[room:], [], part_bytes
        if len(rest):
            held.append(rest)
            room -= len(rest)
    if held:
        yield _joined(held)


def _joined(pieces: Sequence[memoryview]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class PartedSource:
    """The bytes of a value that lies elsewhere in parts, fetched as they are wanted.

    Reading forward fetches every part once; parts are asked for in groups, and one group is held. Any number of threads
    may read.

    Args:
        id: of the record, for errors.
        bytes: of the whole value.
        part_bytes: of every part but the last.
        fetch: the parts from a first one on, so many of them; raises LoadError where one is gone.
        first: part 0, where it is here already.
        group: how many parts are asked for at once.
    """

    def __init__(
        self,
        id: str,
        bytes: int,
        part_bytes: int,
        fetch: Callable[[int, int], Sequence[Buffer]],
        first: Buffer | None = None,
        group: int = 4,
    ) -> None:
        self.id = id
        self.bytes = bytes
        self.part_bytes = part_bytes
        self.parts = -(-bytes // part_bytes)
        self._fetch = fetch
        self._group = group
        # Guards the held group, and is kept over a fetch: two readers of one group fetch it once.
        self._lock = threading.Lock()
        self._held: dict[int, memoryview] = {}
        if first is not None:
            self._keep(0, first)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill a writable buffer with the bytes from an offset on.

        Raises:
            LoadError: the range is outside the value, a part is gone or has another length, or the server is.
        """
        target = target.cast("B")
        if offset < 0 or offset + len(target) > self.bytes:
            raise LoadError(self.id, f"it is {self.bytes} bytes long and was read up to {offset + len(target)}")
        done = 0
        while done < len(target):
            number, start = divmod(offset + done, self.part_bytes)
            last = (offset + len(target) - 1) // self.part_bytes
            with self._lock:
                piece = self._part(number, last)[start : start + len(target) - done]
            target[done : done + len(piece)] = piece
            done += len(piece)

    def _part(self, number: int, last: int) -> memoryview:
        found = self._held.get(number)
        if found is not None:
            return found
        count = min(self._group, self.parts - number)
        # A part read before its turn (a tensor out of order) does not pull its neighbours along.
        if self._held and number not in range(min(self._held), max(self._held) + 2):
            count = min(count, last - number + 1)
        fetched = self._fetch(number, count)
        if len(fetched) != count:
            raise LoadError(self.id, f"{len(fetched)} parts came where {count} were asked for")
        self._held = {}
        for index, piece in enumerate(fetched):
            self._keep(number + index, piece)
        return self._held[number]

    def _keep(self, number: int, piece: Buffer) -> None:
        view = memoryview(piece).cast("B")
        expected = min(self.part_bytes, self.bytes - number * self.part_bytes)
        if len(view) != expected:
            raise LoadError(self.id, f"part {number} is {len(view)} bytes long where {expected} were written")
        self._held[number] = view

    def close(self) -> None:
        """Let go of the parts that are held."""
        with self._lock:
            self._held = {}
