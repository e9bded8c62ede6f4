"""What a served model may look up, found by words: a server has no model to search with."""

import base64
import mimetypes
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from emblema.errors import StoreError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
LARGEST_TEXT = 2**20
TOKEN_PIXELS = 28 * 28
"""Pixels of a picture for each token: those of Qwen-VL models."""
TOKEN_CHARACTERS = 3
"""Characters of a text for each token, about."""


@dataclass(frozen=True, slots=True)
class SearchedItem:
    """A picture or a text that may be looked up.

    Attributes:
        name: is told to the client.
        words: it is found by these.
        tokens: about how many it has.
        path: of the picture; None for a text.
        text: itself, for a text.
    """

    name: str
    words: frozenset[str]
    tokens: int
    path: Path | None
    text: str = ""

    @property
    def bytes(self) -> int:
        """Its size; StoreError where the picture is gone."""
        try:
            return len(self.text.encode()) if self.path is None else self.path.stat().st_size
        except OSError as error:
            raise StoreError(f"{self.name} cannot be read: {error}") from error

    def part(self) -> dict[str, Any]:
        """Return it as a part of a message.

        Raises:
            StoreError: the picture cannot be read any more.
        """
        if self.path is None:
            return {"type": "text", "text": self.text}
        kind = mimetypes.guess_type(self.path.name)[0] or "application/octet-stream"
        try:
            data = base64.b64encode(self.path.read_bytes()).decode()
        except OSError as error:
            raise StoreError(f"{self.name} cannot be read: {error}") from error
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


class Searched(Protocol):
    """Where a reply looks for what its model asks for."""

    def search(self, query: str, count: int) -> Sequence[SearchedItem]:
        """Return what fits a query best, the best first."""


class WordSearch:
    """Items found by their words. They stay as they are when it is made.

    Args:
        items: in the order of equals.
    """

    def __init__(self, items: Sequence[SearchedItem]) -> None:
        self._items = items
        spread = Counter(word for item in items for word in item.words)
        self._weights: Mapping[str, float] = {word: log(1 + len(items) / count) for word, count in spread.items()}

    def search(self, query: str, count: int) -> list[SearchedItem]:
        """Return the items that share the rarest words with a query, the best first; only those that share any."""
        wanted = words_of(query)
        scores = [sum(self._weights[word] for word in wanted & item.words) for item in self._items]
        found = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: -scores[index])
        return [self._items[index] for index in found[:count]]


class PictureFolder(WordSearch):
    """The pictures of a folder as they are when it is opened.

    A picture's words are those of its file's name, and of a text file of the same name beside it. Its size in pixels is
    read from the file's header.

    Raises:
        StoreError: there is no such folder, no picture in it, or a text that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"{folder} is no folder: name one with pictures")
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
        if not paths:
            raise StoreError(f"{folder} holds no picture ({', '.join(SUFFIXES)})")
        super().__init__(
            [
                SearchedItem(path.name, words_of(f"{path.stem} {_text_beside(path)}"), picture_tokens(path), path)
                for path in paths
            ]
        )


def picture_tokens(picture: Path) -> int:
    """Return about how many tokens a picture has; StoreError where it is none that can be read."""
    try:
        with Image.open(picture) as image:
            return -(-image.width * image.height // TOKEN_PIXELS)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StoreError(f"{picture} is no picture that can be read: {error}") from error


def _text_beside(picture: Path) -> str:
    path = picture.with_suffix(".txt")
    try:
        if path.is_file() and path.stat().st_size > LARGEST_TEXT:
            raise StoreError(f"{path} is larger than {LARGEST_TEXT} bytes")
        return path.read_text() if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(re.findall(r"[^\W_]+", text.lower()))
