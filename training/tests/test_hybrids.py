"""Questions that go on from a prompt's states are answered as the stock decoder answers the whole."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.tasks import generate
from emblema import slid as gone
from emblema.engine.engine import Engine
from training.families import HYBRID
from training.folder import write_folder
from training.hybrids.batches import KINDS, Branches, collate, make_batch
from training.hybrids.forward import run_prompts, run_questions
from training.hybrids.train import cells_of
from training.layout import Setting, build
from training.pictures import tile_pool


@cache
def model() -> nn.Module:
    """The model with random weights, none of them zero or one."""
    torch.manual_seed(3)
    made = HYBRID.new_model().eval()
    with torch.no_grad():
        for parameter in made.model.language_model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return made


def embeds(table: torch.Tensor) -> torch.Tensor:
    """Embeddings of words and cells."""
    words = model().model.language_model.embed_tokens.weight
    return nn.functional.embedding(table, torch.cat([words, cells_of(model(), tile_pool(np.random.default_rng(0), 2))]))


def answers(batch: Branches) -> torch.Tensor:
    """The decoder's output on questions."""
    decoder = model().model.language_model
    return run_questions(decoder, embeds(batch.asked), batch, run_prompts(decoder, embeds(batch.table), batch)[1])[0]


@pytest.mark.parametrize("slid", [False, True])
@torch.no_grad()
def test_a_question_is_answered_as_by_the_stock_decoder_over_the_rows_that_it_sees(slid: bool) -> None:
    """Slid, the rows that leave come after all that stay, so that a stock forward can do without them."""
    batch = make_batch(np.random.default_rng(3), 1, 600, 2, HYBRID.frame)
    if slid:
        batch.slid[:] = True
        batch.legend.zero_()
        batch.legend[:, -12:] = True
    else:
        batch.slid[:] = False
    found = answers(batch)
    assert len({int(each) for each in batch.real.sum(1)}) > 1, "prompts are padded"
    for number in range(0, len(batch.owner), 5):
        owner, count = int(batch.owner[number]), int(batch.row[number]) + 1
        stay = batch.real[owner] & ~(batch.legend[owner] & slid)
        table = torch.cat([batch.table[owner][stay], batch.asked[number]])[None]
        places = torch.cat([batch.positions[:, owner][:, stay], batch.asked_positions[:, number]], 1)[:, None]
        stock = model().model.language_model(inputs_embeds=embeds(table), position_ids=places, use_cache=False)
        expected = stock.last_hidden_state[0, -batch.asked.shape[1] :][:count]
        assert float((found[number, :count] - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("slid", [False, True])
def test_a_prompt_is_laid_out_and_computed_as_by_the_engine(slid: bool) -> None:
    with TemporaryDirectory() as folder:
        write_folder(HYBRID, model(), Path(folder))
        engine = Engine.load(folder, anchor=())
    episode = next(iter(generate("maps", 4, 1)))
    episode = replace(episode, questions=tuple(each for each in episode.questions if each.kind in KINDS))
    laid = build(np.random.default_rng(0), episode, Setting(slid=0.0, frame=HYBRID.frame))
    batch = collate([episode], [laid], [slid])
    with torch.no_grad():
        trained = answers(batch)[0, int(batch.row[0])] @ model().model.language_model.embed_tokens.weight.T
    chunks = [engine.add(page.image()) for page in episode.pages]
    shown = [gone(chunk) if slid and index + 1 < len(chunks) else chunk for index, chunk in enumerate(chunks)]
    engines = engine.prefill([*shown, episode.questions[0].text], "full").logits
    assert float((trained - engines).abs().max()) < 2e-2 * float(engines.std())


def test_what_a_question_is_about_is_seen_by_it() -> None:
    batch = make_batch(np.random.default_rng(8), 3, 2000, 2, HYBRID.frame)
    seen = batch.real & ~(batch.slid[:, None] & batch.legend)
    assert bool((batch.sought & seen[batch.owner]).any(1).all())
    assert not bool((batch.sought & ~batch.real[batch.owner]).any())
