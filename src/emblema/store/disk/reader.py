"""A piece of the disk tier, open."""

from collections.abc import Callable

from emblema.errors import LoadError
from emblema.store.disk.entry import without_terms
from emblema.store.record import Array, RecordReader


class DiskReader:
    """Reads a file's tensors; a file that does not verify is reported before the error goes on.

    It stays readable when its piece is evicted, deleted or written again meanwhile.

    Args:
        reader: of the file.
        damaged: told of every LoadError.
    """

    def __init__(self, reader: RecordReader, damaged: Callable[[LoadError], None]) -> None:
        self.header = without_terms(reader.header)
        self._reader = reader
        self._damaged = damaged

    def read(self, name: str) -> Array:
        """One tensor, verified.

        Raises:
            LoadError: it is cut short or its checksum differs; the file is in quarantine then.
        """
        try:
            return self._reader.read(name)
        except LoadError as error:
            self._damaged(error)
            raise

    def close(self) -> None:
        self._reader.close()
