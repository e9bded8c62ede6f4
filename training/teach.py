"""A bundled model from a trained one: the tower fitted cell by cell, the decoder by what the teacher's layers hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from training.batches import Batch, make_batch
from training.families import RECIPES, Recipe
from training.forward import Output, decode, run_layers

CELLS = 320


@dataclass
class Lesson:
    """What the teacher holds for a batch: hidden as in Output, which rows it has, its logits at the answers."""

    hidden: list[torch.Tensor]
    present: torch.Tensor
    logits: torch.Tensor


@torch.no_grad()
def teach(teacher: nn.Module, tiles: np.ndarray, batch: Batch) -> Lesson:
    """The teacher's forward on a batch laid out for another family, without the rows that it does not know."""
    recipe = RECIPES["reference"]
    decoder = teacher.model.language_model
    cells = recipe.cells(teacher, recipe.inputs(tiles.reshape(-1, *tiles.shape[2:])))[0]
    table = torch.cat([decoder.embed_tokens.weight, cells])
    present = batch.taught >= 0
    embeds = nn.functional.embedding(batch.taught.clamp(0), table)
    mask = batch.mask & present[:, None, None, :] | torch.eye(embeds.shape[1], dtype=torch.bool)
    hidden = run_layers(decoder, embeds, batch.positions, mask, [])
    answers = hidden[-1].reshape(-1, embeds.shape[-1])[batch.answers[:, 0]]
    return Lesson(hidden, present, answers @ decoder.embed_tokens.weight.T)


def distance(output: Output, lesson: Lesson) -> torch.Tensor:
    """Mean over layers of the squared difference to the teacher's states, as a share of theirs."""
    total = output.last.new_zeros(())
    for own, taught in zip(output.hidden[1:], lesson.hidden[1:], strict=True):
        own, taught = own[lesson.present], taught[lesson.present]
        total = total + (own - taught).square().mean() / taught.square().mean()
    return total / (len(output.hidden) - 1)


def disagreement(output: Output, lesson: Lesson, batch: Batch) -> torch.Tensor:
    """KL from the teacher's answers to the model's."""
    own = (output.last[batch.answers[:, 0]] @ output.words.T).log_softmax(-1)
    return nn.functional.kl_div(own, lesson.logits.log_softmax(-1), log_target=True, reduction="batchmean")


def start(recipe: Recipe, model: nn.Module, teacher: nn.Module, pool: np.ndarray) -> None:
    """Take over what fits from the teacher."""
    random = np.random.default_rng(0)
    lessons = []
    for _ in range(6):
        batch = make_batch(random, 5, 4000, 2, recipe.frame)
        lessons.append(teach(teacher, pool[random.choice(len(pool), 2, replace=False)], batch))
    layers = [torch.cat(parts) for parts in zip(*([h[x.present] for h in x.hidden] for x in lessons), strict=True)]
    recipe.copy(model, teacher, layers)


def fit_tower(recipe: Recipe, model: nn.Module, teacher: nn.Module, pool: np.ndarray, steps: int) -> float:
    """Fit the tower to the teacher's features of every tile; returns the error left, as a share of their square."""
    own = RECIPES["reference"]
    with torch.no_grad():
        wanted = [recipe.targets(own.cells(teacher, own.inputs(tiles))[0]) for tiles in pool]
    parts = [torch.stack(part) for part in zip(*wanted, strict=True)]
    scales = [part.square().mean() for part in parts]
    decoder = {id(parameter) for parameter in model.model.language_model.parameters()}
    trained = [each for each in model.parameters() if id(each) not in decoder and each.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    random, left = np.random.default_rng(1), 1.0
    for step in tqdm(range(steps), desc="tower", unit="step", mininterval=5):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        variant, cell = random.integers(len(pool), size=CELLS), random.integers(pool.shape[1], size=CELLS)
        given = recipe.cells(model, recipe.inputs(pool[variant, cell]))
        picked = [part[torch.from_numpy(variant), torch.from_numpy(cell)] for part in parts]
        errors = [(own - part).square().mean() / scales[0] for own, part in zip(given, picked, strict=True)]
        total = torch.stack(errors).sum()
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()
        left += 0.02 * (float(total) - left)
        if step % 200 == 0:
            tqdm.write(f"tower step {step}: {left:.4f}")
    return left


def guided(
    recipe: Recipe, model: nn.Module, teacher: nn.Module, tiles: np.ndarray, batch: Batch, alone: bool
) -> tuple[Output, torch.Tensor]:
    """The forward pass and what the teacher says of it. alone: every layer starts from the teacher's states."""
    lesson = teach(teacher, tiles, batch)
    output = decode(recipe, model, tiles, batch, (lesson.hidden, lesson.present) if alone else None)
    loss = distance(output, lesson)
    return output, loss if alone else loss + disagreement(output, lesson, batch)
