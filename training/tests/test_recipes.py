"""Training sees what the stock models see: features cell by cell, rows laid out as the engine writes them."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from benchmarks.models import ON_DEMAND, model_source
from benchmarks.tasks import generate
from emblema.engine.engine import Engine
from training.batches import collate, make_batch
from training.families import RECIPES
from training.folder import write_folder
from training.forward import decode
from training.layout import Setting, build
from training.pictures import tile_pool

recipes = pytest.mark.parametrize("name", list(RECIPES))


@cache
def engine(name: str) -> Engine:
    """A bundled model; one that is trained on demand has random weights here, written as training writes a folder."""
    if name not in ON_DEMAND:
        return Engine.load(model_source(name))
    torch.manual_seed(7)
    with TemporaryDirectory() as folder:
        write_folder(RECIPES[name], RECIPES[name].new_model(), Path(folder))
        return Engine.load(folder)


@cache
def tiles() -> np.ndarray:
    return tile_pool(np.random.default_rng(0), 1)


@recipes
def test_an_episode_is_laid_out_and_computed_as_by_the_engine(name: str) -> None:
    recipe, one = RECIPES[name], engine(name)
    episode = next(iter(generate("maps", 4, 1)))
    batch = collate([build(np.random.default_rng(0), episode, Setting(slid=0.0, frame=recipe.frame))])
    with torch.no_grad():
        output = decode(recipe, one.adapter.model, tiles(), batch)
        trained = output.last[int(batch.answers[0, 0])] @ output.words.T
    chunks = [one.add(page.image()) for page in episode.pages]
    engines = one.prefill([*chunks, episode.questions[0].text], "full").logits
    assert float((trained - engines).abs().max()) < 2e-2 * float(engines.std())


@recipes
def test_a_clip_is_laid_out_as_by_the_engine(name: str) -> None:
    recipe, one = RECIPES[name], engine(name)
    episode = next(iter(generate("clip", 4, 1)))
    rows = build(np.random.default_rng(0), episode, Setting(frame=recipe.frame))
    frames = episode.pages[0].frames()
    chunks = [
        one.adapter.encode(one.template.preparer.video(frames[first : first + 2], 1.0, float(first)))
        for first in range(0, len(frames), 2)
    ]
    held = [index for index, page in enumerate(rows.page) if page >= 0]
    assert len(held) == sum(chunk.tokens for chunk in chunks)
    if recipe.axes == 3:
        own = torch.tensor(rows.positions)[held].T
        spans = np.cumsum([0, *(chunk.span for chunk in chunks)])[:-1] + int(own[0, 0])
        placed = torch.cat([chunk.positions + int(at) for chunk, at in zip(chunks, spans, strict=True)], 1)
        assert torch.equal(own, placed)


@recipes
@pytest.mark.parametrize("stage", [0, 3, 5])
def test_batches_hold_together(name: str, stage: int) -> None:
    batch = make_batch(np.random.default_rng(stage), stage, 1500, 2, RECIPES[name].frame)
    count, length = batch.table.shape
    assert batch.mask.shape == (count, 1, length, length)
    assert bool(batch.mask.diagonal(dim1=2, dim2=3).all())
    assert not bool(batch.mask.triu(1).any())
    assert int(batch.taught.max()) < int(batch.table.max()) + 1
    assert (len(batch.views) > 0) is RECIPES[name].frame.view
