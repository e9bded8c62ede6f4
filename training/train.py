"""Train a bundled model: `python -m training.train --model reference`, an hour or more on CPU cores.

`reference` is trained from nothing: the curriculum starts at pictures of 3 x 3 cells and moves on when the questions
are answered, up to 8 x 8 cells and prompts of 25 pages. The others start from it (--teacher) at the last stage: what
fits is copied, the vision tower is fitted to the teacher's, then every layer by itself to the teacher's states
(--alone steps), then the whole to states, answers and questions, less and less to the teacher. Checkpoints go to
--work every two minutes; --resume goes on from the last one. The finished folder goes to --out.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoModelForImageTextToText

from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, TILE_COUNT
from benchmarks.tasks.world import KINDS, LANDS
from training.batches import PRACTICE, STAGES, Batch, make_batch
from training.families import RECIPES, Recipe
from training.families.base import WIDTH
from training.folder import write_folder
from training.forward import Output, decode
from training.measure import describe, measure
from training.pictures import tile_pool
from training.teach import fit_tower, guided, start
from training.words import INDEX

GUIDED = 0.9
"""Share of the run in which the teacher is heard, less and less."""
GLYPH_COUNT = len(ICON_NAMES) + len(LANDS) + 2
LAND_IDS = [INDEX[name] for name in LANDS]


class Heads(nn.Module):
    """Linear heads for a visual token's glyph and colour, used while training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.glyph, self.colour = nn.Linear(width, GLYPH_COUNT), nn.Linear(width, COLOUR_COUNT + 1)

    def loss(self, hidden: torch.Tensor, glyph: torch.Tensor, colour: torch.Tensor) -> torch.Tensor:
        """Sum of both cross-entropies, hidden [n, width]."""
        losses = nn.functional.cross_entropy
        return losses(self.glyph(hidden), glyph) + losses(self.colour(hidden), colour)


@dataclass
class State:
    """What a checkpoint holds besides weights: steps done, stage, seconds spent, step at which the stage began."""

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    entered: int = 0


@dataclass
class Run:
    """What training changes, and the tiles that it sees."""

    recipe: Recipe
    model: nn.Module
    heads: nn.ModuleList
    parameters: list[nn.Parameter]
    optimiser: torch.optim.Optimizer
    pool: np.ndarray
    state: State

    @staticmethod
    def new(options: argparse.Namespace) -> Run:
        """A fresh run."""
        recipe = RECIPES[options.model]
        model, heads = recipe.new_model(), nn.ModuleList([Heads(WIDTH), Heads(WIDTH)])
        parameters = [each for each in (*model.parameters(), *heads.parameters()) if each.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
        pool = tile_pool(np.random.default_rng(options.seed), 32)
        return Run(recipe, model, heads, parameters, optimiser, pool, State())


def cell_labels(cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Glyph and colour labels of every tile, as the layout numbers them, repeated to the number of cells."""
    tile = torch.arange(TILE_COUNT)
    group, colour = (tile - 1) // COLOUR_COUNT, (tile - 1) % COLOUR_COUNT
    glyph = torch.where(group == 0, torch.tensor(len(ICON_NAMES) + len(LANDS) + 1), group - 1)
    glyph[0], colour[0] = len(ICON_NAMES) + len(LANDS), COLOUR_COUNT
    times = len(cells) // TILE_COUNT
    return glyph.repeat(times), colour.repeat(times)


def losses(output: Output, heads: nn.ModuleList, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The training loss, and for every answer (kind, slid, right)."""
    hidden, words, cells = output.last, output.words, sum(output.cells)
    entropy = nn.functional.cross_entropy
    row, target, kind, slid = batch.answers.unbind(1)
    logits = hidden[row] @ words.T
    ends = hidden[row + 1] @ words.T
    total = 3 * entropy(logits, target) + 0.3 * entropy(ends, torch.full_like(row, INDEX["<|im_end|>"]))
    row, land, glyph, colour = batch.visual.unbind(1)
    tied = land >= 0
    if bool(tied.any()):
        total = total + entropy(hidden[row[tied]] @ words[LAND_IDS].T, land[tied])
    total = total + 0.5 * heads[0].loss(hidden[row], glyph, colour) + 0.5 * heads[1].loss(cells, *cell_labels(cells))
    return total, torch.stack([kind, slid, (logits.argmax(-1) == target).long()], 1)


def rate(progress: float, step: int, peak: float) -> float:
    """Learning rate: a short warm-up, flat, then a cosine down to 3 % over the last half."""
    fall = max(0.0, (progress - 0.5) / 0.5)
    return peak * min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * fall)))


def moves_on(state: State, right: dict[str, float], progress: float) -> bool:
    """Whether the curriculum goes to the next stage: basic questions are answered, or time presses."""
    bars = (0.85, 0.88, 0.9, 0.95, 0.95)
    if state.stage + 1 >= len(STAGES) or state.step - state.entered < 40:
        return False
    good = min(right[kind] for kind in ("colour", "land", "legend")) > bars[state.stage]
    return good or (state.stage == 4 and progress > 0.6)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(RECIPES), default="reference")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so long; the learning rate falls in time"
    )
    parser.add_argument("--tokens", type=int, default=6000, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--teacher", type=Path, help="folder of a trained `reference` to start from")
    parser.add_argument("--tower", type=int, default=1500, help="steps of fitting the tower to the teacher's")
    parser.add_argument("--alone", type=int, default=200, help="steps in which each layer learns by itself")
    parser.add_argument("--guidance", type=float, default=1.0, help="weight of the teacher at first")
    parser.add_argument("--practice", type=float, default=PRACTICE, help="share of batches on one map, for aggregates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the bundled model's folder if left out")
    parser.add_argument("--work", type=Path, help="build/NAME if left out")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    options.out = options.out or RECIPES[options.model].folder
    options.work = options.work or Path("build") / options.model
    train(options)


def prepare(options: argparse.Namespace, run: Run, saved: Path) -> nn.Module | None:
    """Bring the run to where it stopped, or to where the teacher brings it; returns the teacher."""
    teacher = None
    if options.teacher:
        teacher = AutoModelForImageTextToText.from_pretrained(options.teacher, dtype=torch.float32)
    if options.resume and saved.exists():
        held = torch.load(saved, weights_only=True)
        run.model.load_state_dict(held["model"])
        run.heads.load_state_dict(held["heads"])
        run.optimiser.load_state_dict(held["optimiser"])
        run.state = State(**held["state"])
    elif teacher is not None:
        start(run.recipe, run.model, teacher, run.pool)
        left = fit_tower(run.recipe, run.model, teacher, run.pool, options.tower)
        tqdm.write(f"tower: {left:.4f} of the teacher's features are left unexplained")
        run.state.stage = len(STAGES) - 1
        save(options, saved, run)
    return teacher


def train(options: argparse.Namespace) -> None:
    """Train to the end of the steps or minutes and write the folder."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    saved = options.work / "checkpoint.pt"
    run = Run.new(options)
    teacher = prepare(options, run, saved)
    recipe, model, state = run.recipe, run.model, run.state
    random = np.random.default_rng([options.seed, state.step])
    right, apart = dict.fromkeys(KINDS, 0.0), 1.0
    bar = tqdm(total=options.steps, initial=state.step, desc="training", unit="step", mininterval=5)
    begun, earlier, written = time.monotonic(), state.seconds, time.monotonic()
    progress = 0.0
    while progress < 1:
        progress = max(state.step / options.steps, state.seconds / 60 / options.minutes)
        for group in run.optimiser.param_groups:
            group["lr"] = rate(progress, state.step, options.rate)
        batch = make_batch(random, state.stage, options.tokens, 2, recipe.frame, options.practice)
        tiles = run.pool[random.choice(len(run.pool), 2, replace=False)]
        alone = teacher is not None and state.step < options.alone
        weight = options.guidance * max(0.0, 1 - progress / GUIDED) if teacher is not None else 0.0
        if teacher is not None and weight > 0:
            output, lesson = guided(recipe, model, teacher, tiles, batch, alone)
            apart += 0.05 * (float(lesson) - apart)
        else:
            output, lesson = decode(recipe, model, tiles, batch), torch.zeros(())
        total, outcome = losses(output, run.heads, batch)
        total = 10 * lesson + 0.1 * total if alone else 3 * weight * lesson + total
        run.optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(run.parameters, 1.0)
        run.optimiser.step()
        recipe.after_step(model)
        state.step += 1
        state.seconds = earlier + time.monotonic() - begun
        for number, kind in enumerate(KINDS):
            chosen = outcome[outcome[:, 0] == number, 2]
            if len(chosen):
                right[kind] += 0.05 * (float(chosen.float().mean()) - right[kind])
        bar.update()
        shown = {kind: f"{part:.2f}" for kind, part in right.items()}
        bar.set_postfix(stage=state.stage, loss=f"{float(total):.2f}", apart=f"{apart:.3f}", **shown)
        if moves_on(state, right, progress):
            tqdm.write(f"step {state.step}: stage {state.stage} done after {state.seconds / 60:.1f} min")
            state.stage, state.entered = state.stage + 1, state.step
        if state.step % 200 == 0:
            found = describe(measure(recipe, model, run.pool[:1], "maps", 99, 16))
            tqdm.write(f"step {state.step}, {state.seconds / 60:.1f} min: {found}")
        if time.monotonic() - written > 120:
            save(options, saved, run)
            written = time.monotonic()
    save(options, saved, run)
    write_folder(recipe, model, options.out)
    tqdm.write(describe(measure(recipe, model, run.pool[:1], "maps", 7, 50)))


def save(options: argparse.Namespace, path: Path, run: Run) -> None:
    """Write a checkpoint that --resume reads, and the model as a folder beside it."""
    held = {
        "model": run.model.state_dict(),
        "heads": run.heads.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "state": vars(run.state),
    }
    torch.save(held, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    write_folder(run.recipe, run.model, options.work / "early")


if __name__ == "__main__":
    main()
