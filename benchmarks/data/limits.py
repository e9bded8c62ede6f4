"""How much of a data set is read, and the error that names the place where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emblema.errors import EmblemaError


class DataError(EmblemaError):
    """A data set's file is missing, broken, incomplete or outside the limits; the message names file and line."""

    def __init__(self, path: Path, message: str, place: int = 0, unit: str = "line") -> None:
        where = f"{path}, {unit} {place}" if place else f"{path}"
        super().__init__(f"{where}: {message}")
        self.path, self.place = path, place


@dataclass(frozen=True, slots=True)
class DataLimits:
    """Bounds on a data set from outside.

    Attributes:
        file_bytes: size of a file of records that is read piece by piece (jsonl, parquet).
        document_bytes: size of a JSON document, which is read whole.
        line_bytes: length of a line of jsonl.
        records: records of a file.
        media: pieces of media of one item.
        characters: text of one item.
        cell_bytes: a picture inside a parquet file.
    """

    file_bytes: int = 8 * 2**30
    document_bytes: int = 256 * 2**20
    line_bytes: int = 16 * 2**20
    records: int = 1_000_000
    media: int = 4_096
    characters: int = 4_000_000
    cell_bytes: int = 64 * 2**20
