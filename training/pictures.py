"""Every tile of the world, clean and corrupted, and pictures put together from them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageFilter

from benchmarks.tasks.tiles import CELL, TILE_COUNT, bank

KINDS = ("clean", "noise", "jpeg", "blur")


def corrupt(random: np.random.Generator, kind: str) -> np.ndarray:
    """[TILE_COUNT, 28, 28, 3] uint8: every tile once, cut from a mosaic that went through noise, blur or a codec."""
    columns = 24
    order = random.permutation(TILE_COUNT)
    filled = np.concatenate([order, random.integers(TILE_COUNT, size=-TILE_COUNT % columns)])
    grid = bank()[filled].reshape(-1, columns, CELL, CELL, 3).transpose(0, 2, 1, 3, 4)
    pixels = grid.reshape(grid.shape[0] * CELL, columns * CELL, 3).astype(np.float32)
    if kind != "clean":
        pixels = pixels * random.uniform(0.93, 1.07, 3) + random.uniform(-8, 8, 3)
        pixels += random.normal(0, random.uniform(0, 8), pixels.shape)
    picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if kind == "blur":
        picture = picture.filter(ImageFilter.GaussianBlur(float(random.uniform(0.3, 0.9))))
    if kind == "jpeg":
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=int(random.integers(35, 95)))
        picture = Image.open(stream).convert("RGB")
    pixels = np.asarray(picture).reshape(-1, CELL, columns, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(-1, CELL, CELL, 3)
    restored = np.empty_like(pixels[:TILE_COUNT])
    restored[order] = pixels[:TILE_COUNT]
    return restored


def tile_pool(random: np.random.Generator, size: int) -> np.ndarray:
    """[size, TILE_COUNT, 2, 28, 28, 3] uint8, every tile as two frames: first clean, then corrupted; some differ."""
    pool = []
    for index in range(size):
        kind = KINDS[index % 4] if index else "clean"
        first = corrupt(random, kind)
        second = corrupt(random, kind) if index % 8 == 7 else first
        pool.append(np.stack([first, second], axis=1))
    return np.stack(pool)


def normalise(tiles: np.ndarray, mean: list[float], spread: list[float]) -> np.ndarray:
    """uint8 [..., 3] -> float32, channel by channel."""
    return np.asarray((tiles.astype(np.float32) / 255 - np.float32(mean)) / np.float32(spread))


def shrunk(tiles: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """[28, 28, 3] uint8: the picture of the tiles `numbers` [rows, columns], at the size of one cell."""
    rows, columns = numbers.shape
    pixels = tiles[numbers].transpose(0, 2, 1, 3, 4).reshape(rows * CELL, columns * CELL, 3)
    return np.asarray(Image.fromarray(pixels).resize((CELL, CELL), Image.Resampling.BICUBIC))
