"""Tiles of pages by the batch: letters from a bank of cells, moved and inked at random, through JPEG."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image

from emblema.eval.pages import BAR, CELL, LETTERS, LONGEST, MARGIN, TILE, draw_letter, tile_text

SIZES = (13, 14, 15)
HELD_OUT = ("STIXGeneral.ttf", "DejaVuSansCondensed.ttf")
"""Fonts of the test: a family that training never sees, and a cut of one that it does."""
FAMILIES = ("DejaVu*.ttf", "cmr10.ttf", "cmb10.ttf", "cmss10.ttf", "cmtt10.ttf")
LEFT_OUT = ("Display", "Math", "ExtraLight")
_PLACES = (
    "/usr/share/fonts/truetype/dejavu",
    "/usr/share/fonts/truetype/noto",
    str(Path(matplotlib.get_data_path()) / "fonts" / "ttf"),
)


def training_fonts() -> list[Path | None]:
    """Return the fonts of this machine that tiles are drawn in, one file a name; None is Pillow's own."""
    patterns = (*FAMILIES, "NotoS*-Regular.ttf", "NotoS*-Bold.ttf")
    found = {path.name: path for place in _PLACES for pattern in patterns for path in Path(place).glob(pattern)}
    kept = [name for name in sorted(found) if name not in HELD_OUT and not any(word in name for word in LEFT_OUT)]
    return [None, *(found[name] for name in kept)]


def test_fonts() -> list[Path]:
    """Return the fonts that training leaves out."""
    found = {path.name: path for place in _PLACES for path in Path(place).glob("*.ttf")}
    return [found[name] for name in HELD_OUT if name in found]


class TilePress:
    """Sets tokens in letters of many fonts.

    Attributes:
        bank: [fonts and sizes, letters, height, width], ink from 0 to 1; letter 0 is blank.
        letters: [tokens, LONGEST], indices of letters.
        joined: [tokens], which have a bar.
    """

    def __init__(self, tokens: Sequence[str], fonts: Sequence[Path | None], seed: int) -> None:
        texts = [tile_text(token) for token in tokens]
        alphabet = " " + "".join(sorted({letter for text, _ in texts for letter in text}))
        self.bank = torch.from_numpy(
            np.stack([
                [_ink(draw_letter(letter, font, size)) for letter in alphabet] for font in fonts for size in SIZES
            ])
        )  # fmt: skip
        self.letters = torch.tensor([[alphabet.index(letter) for letter in text.ljust(LONGEST)] for text, _ in texts])
        self.joined = torch.tensor([joined for _, joined in texts])
        self.generator = torch.Generator().manual_seed(seed)

    def print_tiles(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return ink [tokens, TILE * TILE] of tokens, given by index; as many as fill a square of tiles."""
        count = len(tokens)
        fonts = self._whole(len(self.bank), count)
        width, height = CELL
        cells = self.bank[fonts[:, None], self.letters[tokens]].view(count, 2, LETTERS, height, width)
        tiles = torch.zeros(count, TILE, TILE)
        lines = cells.permute(0, 1, 3, 2, 4).reshape(count, 2 * height, LETTERS * width)
        tiles[:, : 2 * height, MARGIN : MARGIN + LETTERS * width] = lines
        left, top, right, bottom = BAR
        tiles[:, top : bottom + 1, left : right + 1] += self.joined[tokens].float()[:, None, None]
        return self._worn(self._moved(tiles)).reshape(count, TILE * TILE)

    def _moved(self, tiles: torch.Tensor) -> torch.Tensor:
        """Move every tile by at most a pixel each way."""
        padded = torch.nn.functional.pad(tiles, (1, 1, 1, 1))
        down, right = self._whole(3, len(tiles)), self._whole(3, len(tiles))
        span = torch.arange(TILE)
        rows, columns = (down[:, None] + span)[:, :, None], (right[:, None] + span)[:, None, :]
        return padded[torch.arange(len(tiles))[:, None, None], rows, columns]

    def _worn(self, tiles: torch.Tensor) -> torch.Tensor:
        """Change ink and paper, add noise, and store all tiles as one picture, most often as JPEG 80 to 95."""
        count, side = len(tiles), int(len(tiles) ** 0.5)
        ink = 0.75 + 0.25 * self._fraction(count, 1, 1)
        paper = 0.06 * self._fraction(count, 1, 1)
        noise = 0.05 * self._fraction(count, 1, 1) * torch.randn(tiles.shape, generator=self.generator)
        worn = (tiles * ink + paper * (1 - tiles) + noise).clamp(0, 1)
        page = worn.view(side, side, TILE, TILE).transpose(1, 2).reshape(side * TILE, side * TILE)
        pixels = ((1 - page) * 255).round().byte().numpy()
        if float(self._fraction(1)) < 0.7:
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "JPEG", quality=80 + int(self._whole(16, 1)))
            pixels = np.asarray(Image.open(stream))
        read = 1 - torch.from_numpy(pixels.astype(np.float32)) / 255
        return read.view(side, TILE, side, TILE).transpose(1, 2).reshape(count, TILE, TILE)

    def _whole(self, bound: int, count: int) -> torch.Tensor:
        return torch.randint(bound, (count,), generator=self.generator)

    def _fraction(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator)


def _ink(cell: Image.Image) -> np.ndarray:
    return 1 - np.asarray(cell, dtype=np.float32) / 255
