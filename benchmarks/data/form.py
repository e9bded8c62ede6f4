"""What a data set's form is made of: a reader of its files and a writer that makes files of the same fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.folder import Folder
from benchmarks.data.limits import DataError, DataLimits
from benchmarks.data.reading import document, member, records
from benchmarks.data.record import Record
from benchmarks.tasks.asking import LETTERS
from benchmarks.tasks.items import Item, ItemQuestion, Media, Part
from emblema.errors import PromptError

_NAME = re.compile(r"\w[\w.-]{0,150}")
_FILE = {"image": ".png", "video": ".mp4", "audio": ".wav"}


@dataclass(frozen=True, slots=True)
class Source:
    """A data set's file of records, its media's folder and the limits."""

    path: Path
    folder: Folder
    limits: DataLimits

    def records(self, key: str | None = None) -> Iterator[Record]:
        """The records; in a JSON document those below a key."""
        return records(self.path, self.limits, key)

    def around(self, key: str) -> Record:
        """The rest of the document whose records lie below a key."""
        return member(self.path, key)

    def beside(self, name: str) -> Record | None:
        """Another document of the same folder, if it is there."""
        path = self.path.with_name(name)
        return document(path, self.limits) if path.is_file() else None

    def picture(self, record: Record, value: Any, *places: str) -> Media:
        """A picture of a record, looked for in places of the folder."""
        return self.folder.picture(record, value, places, self.limits)


@dataclass(frozen=True, slots=True)
class Form:
    """A data set's form.

    Attributes:
        title: what people call the data set; `usual`: patterns of its file of records, for when a folder is given.
        read, write: items of a source; and files of items, of which the one with the records is returned.
    """

    name: str
    title: str
    usual: tuple[str, ...]
    read: Callable[[Source], Iterator[Item]]
    write: Callable[[Sequence[Item], Path], Path]


def interleave(record: Record, text: str, mark: str, media: Iterator[Media]) -> tuple[Part, ...]:
    """A text with a piece of media in the place of every mark.

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


def divided(parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Parts up to the last piece of media, and the text behind it: the context and the question."""
    last = max((place for place, part in enumerate(parts) if isinstance(part, Media)), default=-1)
    return parts[: last + 1], parts[last + 1 :]


def flat(parts: Iterable[Part], mark: Callable[[Media], str], *forbidden: str) -> str:
    """Parts as one text, media as marks.

    Raises:
        PromptError: a text holds a mark itself and would be read back as a picture.
    """
    pieces = []
    for part in parts:
        if isinstance(part, str) and any(re.search(each, part) for each in forbidden):
            raise PromptError(f"{part[:60]!r} holds a mark that stands for a picture: it cannot be written")
        pieces.append(part if isinstance(part, str) else mark(part))
    return "".join(pieces)


def option_index(record: Record, answer: Any, options: Sequence[Part]) -> int:
    """Index of the right option, from a number, a letter or the option's text.

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


def answer_of(question: ItemQuestion) -> str:
    """Letter of the right option."""
    if question.correct < 0:
        raise PromptError(f"question {question.id} has no option that is right: this form needs one")
    return LETTERS[question.correct]


def file_name(name: str) -> str:
    """A name that files are called by.

    Raises:
        PromptError: it could lead elsewhere, or is too long.
    """
    if _NAME.fullmatch(name) is None:
        raise PromptError(f"{name[:80]!r} cannot name a file: use letters, digits, '-', '_' and '.'")
    return name


def records_file(path: Path, usual: Sequence[str], title: str) -> Path:
    """A file of records, given itself or as a folder that has one file of the usual names.

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


class MediaWriter:
    """Writes media into a folder of a data set, each once, numbered by item."""

    def __init__(self, out: Path, place: str) -> None:
        self._out, self._place = out, place
        self._held: dict[int, tuple[Media, str]] = {}
        self._files: set[str] = set()
        (out / place).mkdir(parents=True, exist_ok=True)

    def write(self, media: Media, name: str) -> str:
        """Write a piece of media, if it is not written yet; returns its file's name below the place.

        Raises:
            PromptError: the name is no file's, or is another piece's already.
        """
        if id(media) in self._held:
            return self._held[id(media)][1]
        file = file_name(name) + _FILE[media.kind]
        if file in self._files:
            raise PromptError(f"two pieces of media would be called {file}: give items different ids")
        path = self._out / self._place / file
        if isinstance(media.content, bytes):
            path.write_bytes(media.content)
        elif isinstance(media.content, Path):
            path.write_bytes(media.content.read_bytes())
        elif not isinstance(media.content, str):
            media.content.save(path)
        self._held[id(media)] = (media, file)
        self._files.add(file)
        return file

    def all(self, parts: Iterable[Part], name: str, first: int = 0) -> list[str]:
        """Write the media among parts, numbered from `first`; returns their files' names."""
        media = (part for part in parts if isinstance(part, Media))
        return [self.write(each, f"{name}-{place:03d}") for place, each in enumerate(media, start=first)]


def write_json(path: Path, value: Any) -> Path:
    """A JSON document, indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return path


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    """A jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path
