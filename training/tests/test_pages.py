"""The tower for pages: what is trained tile by tile is what the model computes, and tiles are as pages draw them."""

from pathlib import Path

import numpy as np
import torch

from emblema.eval.pages import COLUMNS, TILE, draw_page, draw_tile
from emblema.models.page_tower import page_weights
from tests.models.page_shell import CHANNELS, rows_of, shell_of
from training.page_reader import PageReader, loss_of
from training.page_tiles import TilePress, training_fonts
from training.page_tiles import test_fonts as held_out
from training.pages import LIFT, SHARPNESS, save_reader

TOKENS = (" the", "ing", ".", "\n", " microscope")


def ink_of(token: str) -> torch.Tensor:
    return 1 - torch.from_numpy(np.asarray(draw_tile(token), dtype=np.float32).reshape(-1).copy()) / 255


def test_the_model_computes_what_the_reader_does(tmp_path: Path) -> None:
    torch.manual_seed(3)
    reader = PageReader(TILE * TILE, 12, 20, len(TOKENS), CHANNELS)
    for values in (*reader.scales, *reader.shifts, reader.naming.bias):
        torch.nn.init.normal_(values, std=0.5)
    save_reader(reader, [2, 3, 5, 7, 11], tmp_path / "tower.safetensors")
    shell = shell_of(page_weights(tmp_path / "tower.safetensors"))
    rows = rows_of(shell, draw_page(TOKENS))[: len(TOKENS)]
    with torch.inference_mode():
        shares = torch.sigmoid(SHARPNESS * (LIFT + reader(torch.stack([ink_of(token) for token in TOKENS]))))
        expected = shares @ shell.get_input_embeddings().weight[[2, 3, 5, 7, 11]]
    assert float((rows - expected).abs().max()) < 0.01


def test_tiles_of_training_are_those_of_pages() -> None:
    press = TilePress(TOKENS, [None], seed=0)
    drawn = press.print_tiles(torch.arange(4).repeat(COLUMNS * 2))
    assert drawn.shape == (COLUMNS * COLUMNS, TILE * TILE)
    for place in range(3):
        wanted = ink_of(TOKENS[place])
        likeness = torch.cosine_similarity(drawn[place::4], wanted[None])
        assert float(likeness.max()) > 0.7


def test_the_fonts_of_the_test_are_left_out_of_training() -> None:
    names = {path.name for path in training_fonts() if path is not None}
    assert None in training_fonts() and not names & {path.name for path in held_out()}


def test_the_loss_is_least_where_only_the_right_token_is_named() -> None:
    tokens = torch.tensor([1, 3])
    right = torch.full((2, 5), -9.0)
    right[torch.arange(2), tokens] = 9.0
    assert float(loss_of(right, tokens)) < 0.01 < float(loss_of(-right, tokens))
