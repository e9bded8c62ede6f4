"""Training to list: what is asked of which row, and factors that change nothing before they learn."""

import numpy as np
import torch
from transformers import AutoModelForImageTextToText

from benchmarks.tasks.list_tasks import lists_episode
from training.batches import collate
from training.families import RECIPES
from training.forward import decode
from training.layout import ASKED_KINDS, Setting, build
from training.lists import FrozenTower, attach, factors_of, lists_batch, loss_of, tile_features
from training.pictures import tile_pool
from training.words import INDEX, VOCABULARY


def test_every_word_of_a_list_is_asked_of_the_row_before_it() -> None:
    episode = lists_episode(3, 0)
    rows = build(np.random.default_rng(0), episode, Setting(slid=0.0))
    for question in episode.questions:
        number = ASKED_KINDS.index(question.kind)
        asked = [(row, word) for row, word, kind, _ in rows.answers if kind == number]
        assert [VOCABULARY[word] for _, word in asked] == question.answer.split()
        assert [rows.table[row + 1] for row, _ in asked] == [word for _, word in asked]
        assert rows.table[asked[-1][0] + 2] == INDEX["<|im_end|>"]


def test_a_batch_asks_both_lists_and_the_loss_has_no_hole() -> None:
    recipe = FrozenTower()
    model = AutoModelForImageTextToText.from_pretrained(recipe.folder, dtype=torch.float32)
    tiles = tile_features(model, tile_pool(np.random.default_rng(0), 2))
    batch = lists_batch(np.random.default_rng(5), recipe, 800, 2)
    with torch.no_grad():
        loss, outcome = loss_of(decode(recipe, model, tiles, batch), batch)
    assert torch.isfinite(loss) and {ASKED_KINDS[kind] for kind in outcome[:, 0].tolist()} >= {"lands", "colours"}


def test_factors_begin_at_nothing_and_alone_learn() -> None:
    recipe = RECIPES["reference"]
    model = AutoModelForImageTextToText.from_pretrained(recipe.folder, dtype=torch.float32)
    episode = lists_episode(3, 1)
    batch = collate([build(np.random.default_rng(0), episode, Setting(frame=recipe.frame))])
    tiles = tile_pool(np.random.default_rng(0), 1)
    with torch.no_grad():
        before = decode(recipe, model, tiles, batch).last
        held = attach(model, 4)
        after = decode(recipe, model, tiles, batch).last
    assert torch.equal(before, after)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(learning) == 2 * len(held) == 2 * len(factors_of(held, 4)) == 2 * 7 * 5
