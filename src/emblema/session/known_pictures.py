"""The cells of one tenant's latest pictures, by which a picture is found that a new one differs little from."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy

from emblema.latest import LatestDict

KNOWN_BYTES = 4 * 2**20
"""Bytes of digests that are kept, at most: those of some 200 screenshots of 1,300 cells."""
ALIKE = 4096
"""Ids of pictures that are remembered as like an earlier one, at most."""


@dataclass(frozen=True, slots=True)
class NearPicture:
    """A picture of the same shape.

    Attributes:
        id: of its chunk.
        changed: the cells that differ, in order.
        share: of all cells, those.
    """

    id: str
    changed: tuple[int, ...]
    share: float


class KnownPictures:
    """Digests of the cells of pictures that were encoded here, the latest of them.

    Args:
        most_changed: share of a picture's cells that may differ for it to count as like another.
        most_bytes: of digests.
    """

    def __init__(self, most_changed: float, most_bytes: int = KNOWN_BYTES) -> None:
        self._most_changed, self._most_bytes = most_changed, most_bytes
        self._known: OrderedDict[tuple[bytes, str], numpy.ndarray] = OrderedDict()
        self._bytes = 0
        self._alike: LatestDict[str, None] = LatestDict(ALIKE)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the digests that are kept."""
        return self._bytes

    def note(self, id: str, shape: bytes, digests: numpy.ndarray) -> None:
        """Keep a picture's digests [cells, 2] as the latest; those that came first go where there is no room."""
        self.forget(id, shape)
        self._known[shape, id] = digests
        self._bytes += digests.nbytes
        while self._bytes > self._most_bytes:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.nbytes

    def forget(self, id: str, shape: bytes) -> None:
        """Forget a picture."""
        before = self._known.pop((shape, id), None)
        self._bytes -= 0 if before is None else before.nbytes

    def is_alike(self, id: str) -> bool:
        """Return whether a picture was like an earlier one that was not usable, when it was last asked about."""
        return id in self._alike

    def nearest(
        self, id: str, shape: bytes, digests: numpy.ndarray, usable: Callable[[str], bool]
    ) -> NearPicture | None:
        """Return the usable picture that most of a new one's cells are the same as, and the latest of several.

        Args:
            id: the new one's.
            shape: see `PictureCells.shape`; only pictures of the same are compared.
            digests: of its cells, [cells, 2] uint64.
            usable: returns whether a picture may be taken, by its id. It is asked of the nearest first.

        Returns:
            None where more than the share of the cells differ from all of them.
        """
        names = [name for known, name in self._known if known == shape and name != id]
        self._alike.pop(id, None)
        if not names or not len(digests):
            return None
        known = numpy.stack([self._known[shape, name] for name in names])
        differs = (known != digests).any(axis=2)
        shares = differs.mean(axis=1)
        for place in sorted(range(len(names)), key=lambda place: (shares[place], -place)):
            if shares[place] > self._most_changed:
                break
            if usable(names[place]):
                self._alike.pop(id, None)
                changed = tuple(int(cell) for cell in differs[place].nonzero()[0])
                return NearPicture(names[place], changed, float(shares[place]))
            self._alike[id] = None
        return None
