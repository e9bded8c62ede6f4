"""Which pictures vLLM's encoder cache has, as its scheduler's messages tell."""

from collections.abc import Iterable


class EncodedPictures:
    """vLLM's names of pictures whose encoder outputs its runners have; for the scheduler's thread.

    An output may be gone that counts as there, after vLLM was told to empty the cache; never one that was freed.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()

    def follow(self, encoded: Iterable[str], freed: Iterable[str]) -> None:
        """Take what a step encodes, and what is freed before it.

        Args:
            encoded: names of pictures.
            freed: names of pictures.
        """
        self._names.difference_update(freed)
        self._names.update(encoded)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all of some pictures are there."""
        return self._names.issuperset(names)
