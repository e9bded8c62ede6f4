"""Tiles: what training feeds the tower is what the stock processor makes of a whole picture."""

import numpy as np

from benchmarks.tasks import generate
from benchmarks.tasks.tiles import CELL
from training.families.qwen2_5_vl import qwen_patches
from training.pictures import tile_pool


def test_tiles_are_what_the_stock_processor_sees() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, temporal_patch_size=2)
    patches = qwen_patches(tile_pool(np.random.default_rng(0), 1)[0])
    for _, scene in next(generate("maps", 1, 1)).scenes():
        seen = processor(images=[scene.image()], return_tensors="pt")
        assert seen["image_grid_thw"].tolist() == [[1, 16, 16]]
        assert scene.image().size == (8 * CELL, 8 * CELL)
        tiles = patches[scene.tile_numbers().ravel()].reshape(256, -1)
        assert float((seen["pixel_values"] - tiles).abs().max()) < 1e-5
