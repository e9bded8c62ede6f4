"""A data set on this machine: its records, the media in its folder, and how text and media become items.

Names of media come from outside, so a file has to lie inside the data set's folder. No data set says which media slide:
all pictures but the last one do, and the first half of a video.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from benchmarks.data.records import DataError, DataLimits, DataRecord
from benchmarks.tasks.items import Media, Part, TaskItem, sliding
from benchmarks.tasks.prompts import LETTERS

ASIDE = ("annotations", "videomme")
"""Folders in which data sets keep their records beside the media's folder."""
VIDEO_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set's file of records, and the limits."""

    path: Path
    limits: DataLimits

    @property
    def root(self) -> Path:
        """The folder that media have to lie in."""
        parent = self.path.absolute().parent
        return parent.parent if parent.name in ASIDE else parent

    def find(self, record: DataRecord, name: str, places: tuple[str, ...], suffixes: tuple[str, ...] = ("",)) -> Path:
        """Return the file of a name in one of the places below the root.

        Raises:
            DataError: the name leads out of the folder, or there is no such file.
        """
        if not name or "\0" in name or _absolute(name) or ".." in (*PurePosixPath(name).parts, *name.split("\\")):
            raise record.wrong(f"{name[:120]!r} does not name a file inside {self.root}")
        for path in (self.root / place / f"{name}{suffix}" for place in places for suffix in suffixes):
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

    def _homes(self) -> tuple[Path, ...]:
        """Return the root; and in a hub's cache, where files are links, the whole copy of the data set's repository."""
        root = self.root.resolve()
        above = (folder.parent for folder in (root, *root.parents) if folder.name == "snapshots")
        return (root, *(home for home in above if home.name.startswith("datasets--")))

    def picture(self, record: DataRecord, value: Any, *places: str) -> Media:
        """Return a picture, given as a name to look for in places, or as a cell of parquet with its bytes.

        Raises:
            DataError: it is neither, larger than the limit, or names no file of the folder.
        """
        if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
            if len(value["bytes"]) > self.limits.cell_bytes:
                raise record.wrong(f"a picture of {len(value['bytes'])} bytes is beyond the limit")
            return Media("image", value["bytes"])
        if not isinstance(value, str):
            raise record.wrong(f"a picture is {repr(value)[:60]}, not the name of a file")
        return Media("image", self.find(record, value, places))


def _absolute(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).anchor)


def records_file(path: Path, usual: Sequence[str], title: str) -> Path:
    """Return a file of records, given itself or as a folder that has one file of the usual names.

    Raises:
        DataError: the folder has none, or several.
    """
    if not path.is_dir():
        return path
    found = [file for pattern in usual for file in sorted(path.glob(pattern))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:8]) or f"none like {' or '.join(usual)}"
        raise DataError(path, f"a folder with one file of records is needed for {title}; it has {names}")
    return found[0]


def interleave(record: DataRecord, text: str, mark: str, media: Iterator[Media]) -> tuple[Part, ...]:
    """Return a text with a piece of media in the place of every mark.

    Raises:
        DataError: there are more marks than media.
    """
    parts: list[Part] = []
    for place, piece in enumerate(text.split(mark)):
        if place:
            found = next(media, None)
            if found is None:
                raise record.wrong(f"more places {mark!r} than pictures")
            parts.append(found)
        if piece:
            parts.append(piece)
    return tuple(parts)


def none_left(record: DataRecord, media: Iterator[Media], mark: str) -> None:
    """Refuse pictures that the text has no place for.

    Raises:
        DataError: there are some.
    """
    if rest := len(list(media)):
        raise record.wrong(f"{rest} more pictures than places {mark!r}")


def divided(parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return parts up to the last piece of media, and the text after it: the context and the question."""
    last = max((place for place, part in enumerate(parts) if isinstance(part, Media)), default=-1)
    return parts[: last + 1], parts[last + 1 :]


def option_index(record: DataRecord, answer: Any, options: Sequence[Part]) -> int:
    """Return index of the right option, from a number, a letter or the option's text.

    Raises:
        DataError: it is none of the options.
    """
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        return answer
    if isinstance(answer, str):
        bare = answer.strip()
        if bare in options:
            return options.index(bare)
        letter = bare.strip("().: ").upper()
        if len(letter) == 1 and letter in LETTERS[: len(options)]:
            return LETTERS.index(letter)
    raise record.wrong(f"the answer {repr(answer)[:60]} is none of the {len(options)} options")


def marked(items: Iterable[TaskItem]) -> Iterator[TaskItem]:
    """Yield items in which all before the last piece of media slides; options never do."""
    for item in items:
        options = {id(part) for question in item.questions for part in question.options}
        shown = [media for media in item.media if id(media) not in options]
        shares = {id(media): VIDEO_SHARE if media.kind == "video" else 1.0 for media in shown}
        if shown and shown[-1].kind != "video":
            shares[id(shown[-1])] = 0.0
        yield sliding(item, [shares.get(id(media), 0.0) for media in item.media])


def merged(items: Iterable[TaskItem]) -> Iterator[TaskItem]:
    """Yield neighbours that show the same media become one item with all their questions."""
    held: TaskItem | None = None
    for item in items:
        if held is not None and _same(held, item):
            held = replace(held, questions=(*held.questions, *item.questions))
            continue
        if held is not None:
            yield held
        held = item
    if held is not None:
        yield held


def _same(held: TaskItem, item: TaskItem) -> bool:
    if not any(isinstance(part, Media) for part in item.parts):
        return False
    return (held.task, held.instruction, held.parts) == (item.task, item.instruction, item.parts)
