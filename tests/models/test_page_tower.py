"""The bundled tower: a page's rows are the embeddings of the tokens on it, in fonts that training did not see too."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from emblema.eval.pages import PAGE_TOKENS, draw_page
from emblema.models.page_tower import page_token_ids, page_tower_file, page_weights, vision_settings
from emblema.models.pretrained import PRETRAINED, checkpoint_folder
from tests.models.page_shell import CHANNELS, bundled_shell, rows_of

WORDS = {
    28: ",", 30: ".", 260: " the", 281: " in", 282: " of", 284: " and", 327: " for", 436: " was",
}  # fmt: skip
"""Tokens of SmolLM2 by id."""


def mixed(count: int) -> list[int]:
    """Return tokens of `WORDS`, over and over."""
    return [list(WORDS)[place % len(WORDS)] for place in range(count)]


def test_the_bundled_weights_are_small_and_name_known_tokens() -> None:
    weights, ids = page_weights(), page_token_ids()
    assert page_tower_file().stat().st_size <= 4_000_000
    assert list(ids) == sorted(set(ids)) and len(ids) == len(weights["naming.bias"])
    assert set(WORDS) <= set(ids)
    assert vision_settings(CHANNELS, weights)["intermediate_size"] >= len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("font", [None, "STIXGeneral.ttf"])
@pytest.mark.parametrize("quality", [None, 80])
def test_rows_are_the_embeddings_of_the_tokens(font: str | None, quality: int | None) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    path = None if font is None else Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    ids = mixed(PAGE_TOKENS)
    page = draw_page([WORDS[token] for token in ids], path)
    if quality is not None:
        stream = io.BytesIO()
        page.save(stream, "JPEG", quality=quality)
        page = Image.open(stream).convert("RGB")
    shell = bundled_shell()
    embeddings = shell.get_input_embeddings().weight.detach()
    rows = rows_of(shell, page)
    read = torch.cdist(rows, embeddings).argmin(-1)
    assert float((read == torch.tensor(ids)).float().mean()) >= 0.9
    right = read == torch.tensor(ids)
    assert float((rows - embeddings[ids])[right].abs().mean()) < 0.05


def test_only_models_that_read_pages_are_built_anew() -> None:
    assert [name for name, found in PRETRAINED.items() if found.reads_pages] == ["smollm2-135m"]
    assert checkpoint_folder("smollm2-135m").name == "smollm2-135m-2"
    assert checkpoint_folder("gemma3-270m").name == "gemma3-270m-1"
