"""Train the bundled reference model from nothing: `python -m reference.train`, an hour or more on two CPU cores.

Checkpoints go to --work every two minutes; --resume goes on from the last one. The finished folder goes to --out. The
curriculum starts at pictures of 3 x 3 cells and moves on when the questions are answered, up to 8 x 8 cells and prompts
of 25 pages.
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

from emblema.bench.tasks.tiles import COLOUR_COUNT, ICON_NAMES, TILE_COUNT
from emblema.bench.tasks.world import KINDS, LANDS
from reference.batches import STAGES, Batch, make_batch, tile_pool
from reference.forward import decode
from reference.measure import describe, measure
from reference.model import new_model, write_folder
from reference.words import INDEX

OUT = Path(__file__).parents[1] / "src/emblema/assets/reference"
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


def cell_labels(cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Glyph and colour labels of every tile, as the layout numbers them, repeated to the number of cells."""
    tile = torch.arange(TILE_COUNT)
    group, colour = (tile - 1) // COLOUR_COUNT, (tile - 1) % COLOUR_COUNT
    glyph = torch.where(group == 0, torch.tensor(len(ICON_NAMES) + len(LANDS) + 1), group - 1)
    glyph[0], colour[0] = len(ICON_NAMES) + len(LANDS), COLOUR_COUNT
    times = len(cells) // TILE_COUNT
    return glyph.repeat(times), colour.repeat(times)


def losses(
    model: nn.Module, heads: nn.ModuleList, patches: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """The training loss, and for every answer (kind, slid, right)."""
    hidden, words, cells = decode(model, patches, batch)
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
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so long; the learning rate falls in time"
    )
    parser.add_argument("--tokens", type=int, default=6000, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, default=Path("build/reference"))
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    train(options)


def train(options: argparse.Namespace) -> None:
    """Train to the end of the steps or minutes and write the folder."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    saved = options.work / "checkpoint.pt"
    model, heads, state = new_model(), nn.ModuleList([Heads(192), Heads(192)]), State()
    parameters = [*model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    if options.resume and saved.exists():
        held = torch.load(saved, weights_only=True)
        model.load_state_dict(held["model"])
        heads.load_state_dict(held["heads"])
        optimiser.load_state_dict(held["optimiser"])
        state = State(**held["state"])
    random = np.random.default_rng([options.seed, state.step])
    pool = tile_pool(random, 32)
    right = dict.fromkeys(KINDS, 0.0)
    bar = tqdm(total=options.steps, initial=state.step, desc="training", unit="step", mininterval=5)
    begun, earlier, written = time.monotonic(), state.seconds, time.monotonic()
    progress = 0.0
    while progress < 1:
        progress = max(state.step / options.steps, state.seconds / 60 / options.minutes)
        for group in optimiser.param_groups:
            group["lr"] = rate(progress, state.step, options.rate)
        batch = make_batch(random, state.stage, options.tokens, 2)
        total, outcome = losses(model, heads, pool[random.choice(len(pool), 2, replace=False)], batch)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        state.step += 1
        state.seconds = earlier + time.monotonic() - begun
        for number, kind in enumerate(KINDS):
            chosen = outcome[outcome[:, 0] == number, 2]
            if len(chosen):
                right[kind] += 0.05 * (float(chosen.float().mean()) - right[kind])
        bar.update()
        bar.set_postfix(
            stage=state.stage, loss=f"{float(total):.2f}", **{kind: f"{part:.2f}" for kind, part in right.items()}
        )
        if moves_on(state, right, progress):
            tqdm.write(f"step {state.step}: stage {state.stage} done after {state.seconds / 60:.1f} min")
            state.stage, state.entered = state.stage + 1, state.step
        if state.step % 200 == 0:
            tqdm.write(
                f"step {state.step}, {state.seconds / 60:.1f} min: {describe(measure(model, pool[0], 'maps', 99, 16))}"
            )
        if time.monotonic() - written > 120:
            save(options, saved, model, heads, optimiser, state)
            written = time.monotonic()
    save(options, saved, model, heads, optimiser, state)
    write_folder(model, options.out)
    tqdm.write(describe(measure(model, pool[0], "maps", 7, 50)))


def save(
    options: argparse.Namespace,
    path: Path,
    model: nn.Module,
    heads: nn.Module,
    optimiser: torch.optim.Optimizer,
    state: State,
) -> None:
    """Write a checkpoint that --resume reads, and the model as a folder beside it."""
    held = {
        "model": model.state_dict(),
        "heads": heads.state_dict(),
        "optimiser": optimiser.state_dict(),
        "state": vars(state),
    }
    torch.save(held, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    write_folder(model, options.work / "early")


if __name__ == "__main__":
    main()
