"""Cells: encoding what changed alone gives what encoding the whole picture gives, and runs the encoder for no more."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from emblema import Engine
from emblema.models.cells import PictureCells, windows
from emblema.models.encode_parts import encode_changed
from emblema.models.families.base import Prepared
from tests.families.cases import CASES
from tests.families.parts import picture
from tests.families.running import loaded

TILED = ("internvl", "idefics3", "smolvlm", "aya_vision")
WHOLE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def differing(before: PictureCells, after: PictureCells) -> list[int]:
    assert before.shape == after.shape
    return [int(cell) for cell in (before.digests != after.digests).any(axis=1).nonzero()[0]]


def noted_pixels(monkeypatch: pytest.MonkeyPatch, adapter: Any) -> list[int]:
    """Have every run of the encoder note how many numbers of pixels it was given."""
    ran: list[int] = []
    encode = adapter.kind.encode

    def noted(model: Any, prepared: Prepared) -> Any:
        ran.append(prepared.features["pixel_values"].numel())
        return encode(model, prepared)

    monkeypatch.setattr(adapter.kind, "encode", noted)
    return ran


@pytest.mark.parametrize("name", TILED)
def test_a_tile_that_changed_is_encoded_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = loaded(name)
    before = picture(140, 84, 1)
    after = before.copy()
    after.paste(Image.new("RGB", (20, 20), (250, 3, 7)), (3, 3))
    first, second = (item.preparer.image(each) for each in (before, after))
    old, new = item.adapter.cells(first), item.adapter.cells(second)
    assert old is not None and new is not None
    # The tile that the paste is in, and the whole picture, which is a tile too.
    changed = differing(old, new)
    assert len(changed) == 2 < new.count
    base, whole = item.adapter.encode(first), item.adapter.encode(second)
    ran = noted_pixels(monkeypatch, item.adapter)
    made = encode_changed(item.adapter, new, changed, base)
    torch.testing.assert_close(made.embeds, whole.embeds, rtol=1e-5, atol=1e-5)
    assert ran == [second.features["pixel_values"].numel() * 2 // new.count]
    assert torch.equal(made.token_ids, whole.token_ids) and torch.equal(made.positions, whole.positions)


@pytest.mark.parametrize("size", [(5, 3), (4, 4), (1, 7), (2, 9)])
@pytest.mark.parametrize("side", [1, 2, 3])
def test_windows_of_any_size_cover_every_patch_once(size: tuple[int, int], side: int) -> None:
    height, width = size
    pixels = torch.arange(height * width * 4 * 6, dtype=torch.float32).reshape(-1, 6)
    grid = torch.tensor([[1, height * 2, width * 2]])
    ids = torch.full((height * width,), 9, dtype=torch.int64)
    cells = windows(Prepared("image", ids, {"pixel_values": pixels, "image_grid_thw": grid}), 9, side, 2)
    assert cells is not None and cells.count == -(-height // side) * -(-width // side)
    everything = list(range(cells.count))
    part = cells.cut(everything)
    order = cells.order(everything)
    assert sorted(order.tolist()) == list(range(height * width))
    assert torch.equal(part.features["pixel_values"], pixels.reshape(height * width, -1)[order].reshape(-1, 6))
    assert int(part.features["image_grid_thw"].prod(1).sum()) == len(pixels)
    assert len(np.unique(cells.digests, axis=0)) == cells.count


def test_a_window_that_changed_is_encoded_alone(reference: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, preparer = reference.adapter, reference.session.chunk_builder.preparer
    before = np.random.default_rng(3).integers(0, 255, (5 * 28, 7 * 28, 3), dtype=np.uint8)
    after = before.copy()
    after[28:56, 84:90] //= 2
    first, second = (preparer.image(Image.fromarray(each)) for each in (before, after))
    old, new = adapter.cells(first), adapter.cells(second)
    assert old is not None and new is not None
    assert differing(old, new) == [10]
    base, whole = adapter.encode(first), adapter.encode(second)
    ran = noted_pixels(monkeypatch, adapter)
    torch.testing.assert_close(encode_changed(adapter, new, [10], base).embeds, whole.embeds, rtol=1e-5, atol=1e-5)
    assert ran == [second.features["pixel_values"].numel() // 35]


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_family_says_what_its_encoder_reads_alone_or_nothing(name: str) -> None:
    item = loaded(name)
    prepared = item.preparer.image(picture(140, 84, 2))
    cells = item.adapter.cells(prepared)
    assert (cells is not None) == (name in (*TILED, *WHOLE, "cohere2_vision"))
    if cells is not None:
        assert int(cells.tokens.max()) + 1 == cells.count
