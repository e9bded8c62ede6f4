"""Pages: English text as tokens that the bundled tower reads, and pictures of them: a grid of tiles, one token a tile.

Letters stand in cells of equal width on one line or two.
A bar at a tile's left edge joins it to the tile before: its token does not begin a word. A line break is a blank tile,
and so is the rest of a page; a space alone is an underscore.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from emblema.errors import PromptError
from emblema.models.page_tower import page_token_ids

TILE = 40
"""Pixels along a side of a tile."""
COLUMNS = 8
"""Tiles in a row of a page; a page has as many rows."""
PAGE_TOKENS = COLUMNS * COLUMNS
FONT_SIZE = 14
"""Pixels."""
LETTERS = 5
"""Letters of a line of a tile."""
LONGEST = 2 * LETTERS
"""Letters of a tile."""
CELL = (7, 20)
"""Pixels of a letter's cell: width and height."""
MARGIN = 4
"""Pixels before the first cell of a line."""
BASELINE = 15
"""Pixels from a cell's top to the line that letters stand on."""
BAR = (0, 4, 1, 35)
"""Corners of the bar, in pixels of its tile."""
PAPER = 255
BLANK = "\n"
"""The token of a blank tile."""


def tile_text(token: str) -> tuple[str, bool]:
    """Return the letters of a token's tile, and whether a bar joins it to the tile before."""
    if token == BLANK:
        return "", False
    if token == " ":
        return "_", False
    return (token[1:], False) if token.startswith(" ") else (token, True)


def can_be_drawn(token: str) -> bool:
    """Return whether a token is printable ASCII (without the underscore) that fits on a tile, or a line break."""
    letters, _ = tile_text(token)
    plain = letters.isascii() and letters.isprintable() and not set(letters) & set(" _")
    return token in (BLANK, " ") or (plain and 0 < len(letters) <= LONGEST)


def draw_page(tokens: Sequence[str], font: Path | None = None, size: int = FONT_SIZE) -> Image.Image:
    """Return a page's picture, 320 x 320 pixels.

    Args:
        tokens: at most `PAGE_TOKENS`, each with the space before it, as a tokenizer decodes it.
        font: a TrueType file; Pillow's own font if left out.
        size: of letters, in pixels.

    Raises:
        ValueError: there are too many tokens, or one that cannot be drawn.
    """
    if len(tokens) > PAGE_TOKENS:
        raise ValueError(f"{len(tokens)} tokens do not fit on a page of {PAGE_TOKENS}")
    page = Image.new("L", (COLUMNS * TILE, COLUMNS * TILE), PAPER)
    for place, token in enumerate(tokens):
        page.paste(draw_tile(token, font, size), (place % COLUMNS * TILE, place // COLUMNS * TILE))
    return page.convert("RGB")


def draw_tile(token: str, font: Path | None = None, size: int = FONT_SIZE) -> Image.Image:
    """Return a token's tile in shades of grey.

    Raises:
        ValueError: the token cannot be drawn.
    """
    if not can_be_drawn(token):
        raise ValueError(f"the token {token!r} cannot be drawn on a tile")
    letters, joined = tile_text(token)
    tile = Image.new("L", (TILE, TILE), PAPER)
    if joined:
        ImageDraw.Draw(tile).rectangle(BAR, fill=0)
    for place, letter in enumerate(letters):
        line, column = divmod(place, LETTERS)
        tile.paste(draw_letter(letter, font, size), (MARGIN + column * CELL[0], line * CELL[1]))
    return tile


@cache
def draw_letter(letter: str, font: Path | None, size: int) -> Image.Image:
    """Return a letter in the middle of its cell, made narrower where it is wider than that."""
    width, height = CELL
    drawn = Image.new("L", (4 * size, height), PAPER)
    ImageDraw.Draw(drawn).text((size, BASELINE), letter, font=_font(font, size), fill=0, anchor="ls")
    box = drawn.point(lambda shade: PAPER - shade).getbbox()
    cell = Image.new("L", CELL, PAPER)
    if box is None:
        return cell
    inked = drawn.crop((box[0], 0, box[2], height))
    if inked.width > width:
        inked = inked.resize((width, height), Image.Resampling.BOX)
    cell.paste(inked, ((width - inked.width) // 2, 0))
    return cell


@cache
def _font(path: Path | None, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size) if path is None else ImageFont.truetype(str(path), size)


class PageSplitter:
    """Splits text into pages of tokens that the bundled tower reads; tokens that it does not are spelled in pieces.

    Args:
        tokenizer: of the language model that the tower's tokens are of.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known = {tokenizer.decode([token]): token for token in page_token_ids()}
        self._longest = max(map(len, self._known))

    def tokens(self, text: str) -> list[str]:
        """Return a text's tokens, each with the space before it.

        Raises:
            PromptError: it has a character that cannot be drawn.
        """
        found: list[str] = []
        for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]:
            found += self._spelled(self._tokenizer.decode([token]))
        return found

    def pages(self, text: str) -> list[list[str]]:
        """Return a text's tokens by page, as many pages as they need.

        Raises:
            PromptError: it has a character that cannot be drawn.
        """
        tokens = self.tokens(text)
        return [tokens[start : start + PAGE_TOKENS] for start in range(0, len(tokens), PAGE_TOKENS)]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of tokens that `tokens` or `pages` gave."""
        return [self._known[token] for token in tokens]

    def _spelled(self, token: str) -> list[str]:
        """Return the longest known pieces of a token, from its beginning on."""
        pieces: list[str] = []
        while token:
            length = next(
                (end for end in range(min(len(token), self._longest), 0, -1) if token[:end] in self._known), 0
            )
            if not length:
                raise PromptError(f"{token[0]!r} cannot be drawn on a page: write plain ASCII without underscores")
            pieces.append(token[:length])
            token = token[length:]
        return pieces
