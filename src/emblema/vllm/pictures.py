"""A folder of pictures that a query finds by words: what a server without a second model can search."""

import base64
import mimetypes
import re
from collections import Counter
from dataclasses import dataclass
from math import log
from pathlib import Path

from emblema.errors import StoreError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
LARGEST_TEXT = 2**20


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture and the words that it is found by: its file's name, and a text file of the same name beside it."""

    path: Path
    words: Counter[str]

    @property
    def name(self) -> str:
        return self.path.name

    def address(self) -> str:
        """The picture as a data address.

        Raises:
            StoreError: it cannot be read any more.
        """
        kind = mimetypes.guess_type(self.path.name)[0] or "application/octet-stream"
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from error
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"


class Pictures:
    """The pictures of a folder as they are when it is opened.

    Raises:
        StoreError: there is no such folder, no picture in it, or a text that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"{folder} is no folder: name one with pictures")
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        if not paths:
            raise StoreError(f"{folder} holds no picture ({', '.join(SUFFIXES)})")
        self.pictures = tuple(Picture(path, _described(path)) for path in paths)
        spread = Counter(word for one in self.pictures for word in one.words)
        self._weights = {word: log(1 + len(paths) / count) for word, count in spread.items()}

    def search(self, query: str, count: int) -> list[Picture]:
        """The pictures that share the most telling words with a query, the best first; none that shares no word."""
        asked = set(_words(query))
        scored = [(sum(self._weights[word] for word in asked if word in one.words), one) for one in self.pictures]
        scored = [pair for pair in scored if pair[0] > 0]
        scored.sort(key=lambda pair: (-pair[0], pair[1].name))
        return [one for _, one in scored[:count]]


def _described(path: Path) -> Counter[str]:
    beside = path.with_suffix(".txt")
    try:
        if beside.is_file() and beside.stat().st_size > LARGEST_TEXT:
            raise StoreError(f"{beside} is larger than {LARGEST_TEXT} bytes")
        text = beside.read_text() if beside.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{beside} cannot be read: {error}") from error
    return Counter(_words(f"{path.stem} {text}"))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
