"""Media of a data set: names come from outside, so a file has to lie inside the data set's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from benchmarks.data.limits import DataLimits
from benchmarks.data.record import Record
from benchmarks.tasks.items import Media, MediaKind

ASIDE = ("annotations", "videomme")
"""Folders in which data sets keep their records beside the media's folder."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder that holds a data set's media."""

    root: Path

    @classmethod
    def of(cls, records: Path) -> Folder:
        """The folder of a file of records."""
        parent = records.absolute().parent
        return cls(parent.parent if parent.name in ASIDE else parent)

    def find(self, record: Record, name: str, places: tuple[str, ...], suffixes: tuple[str, ...] = ("",)) -> Path:
        """The file of a name in one of the places below the root.

        Raises:
            DataError: the name leads out of the folder, or there is no such file.
        """
        if not name or "\0" in name or _absolute(name) or ".." in (*PurePosixPath(name).parts, *name.split("\\")):
            raise record.wrong(f"{name[:120]!r} does not name a file inside {self.root}")
        for place in places:
            for suffix in suffixes:
                path = self.root / place / f"{name}{suffix}"
                try:
                    if not path.is_file():
                        continue
                    inside = any(path.resolve().is_relative_to(home) for home in self._homes())
                except OSError as error:
                    raise record.wrong(f"{name[:120]!r} cannot be opened ({error.strerror})") from error
                if not inside:
                    raise record.wrong(f"{name[:120]!r} is a link out of {self.root}")
                return path
        raise record.wrong(f"there is no file {(name + suffixes[0])[:120]!r} in {self.root}")

    def picture(self, record: Record, value: Any, places: tuple[str, ...], limits: DataLimits) -> Media:
        """A picture given as a name, or as a table's cell with `bytes` or `path`."""
        if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
            if len(value["bytes"]) > limits.cell_bytes:
                raise record.wrong(f"a picture of {len(value['bytes'])} bytes is beyond the limit")
            return Media("image", value["bytes"])
        name = value.get("path") if isinstance(value, dict) else value
        if not isinstance(name, str):
            raise record.wrong(f"a picture is {repr(value)[:60]}, not the name of a file")
        return self.file(record, "image", name, places)

    def file(
        self, record: Record, kind: MediaKind, name: str, places: tuple[str, ...], suffixes: tuple[str, ...] = ("",)
    ) -> Media:
        """A piece of media in a file."""
        return Media(kind, self.find(record, name, places, suffixes))

    def _homes(self) -> tuple[Path, ...]:
        """The root; and in a hub's cache, where files are links, the whole copy of the data set's repository."""
        root = self.root.resolve()
        above = (folder.parent for folder in (root, *root.parents) if folder.name == "snapshots")
        return (root, *(home for home in above if home.name.startswith("datasets--")))


def _absolute(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).anchor)
