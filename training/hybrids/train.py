"""Train `reference-hybrid`: `python -m training.hybrids.train`, an hour of one CPU core.

The tower is fitted to that of `reference`, then stays; the decoder is trained from nothing, on pictures of 3 x 3 cells
first and of 8 x 8 at last. Checkpoints go to --work every two minutes, with the folder as it is by then; --resume goes
on from the last one. The finished folder goes to --out.
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
from transformers import AutoModelForImageTextToText

from benchmarks.models import model_folder
from training.families import HYBRID
from training.families.base import WIDTH
from training.folder import write_folder
from training.hybrids.batches import KINDS, SIDES, Branches, make_batch
from training.hybrids.forward import run_prompts, run_questions
from training.pictures import tile_pool
from training.teach import fit_tower
from training.train import LAND_IDS, Heads
from training.words import INDEX

HINT = 0.5
BARS = (0.75, 0.8, 0.85)
"""Share of right answers, the least of all kinds, from which the curriculum goes on."""
KEPT = 0.98
"""How much of the running shares of right answers a batch leaves as it was."""


@dataclass
class State:
    """What a checkpoint holds besides weights: steps done, stage, seconds spent, step at which the stage began."""

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    entered: int = 0


@dataclass
class Run:
    """What training changes, and the cells [variants * TILE_COUNT, width] that it sees."""

    model: nn.Module
    heads: Heads
    optimiser: torch.optim.Optimizer
    cells: torch.Tensor
    state: State

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimiser changes."""
        return [each for group in self.optimiser.param_groups for each in group["params"]]


@torch.no_grad()
def cells_of(model: nn.Module, pool: np.ndarray) -> torch.Tensor:
    """Return the tower's features [variants * TILE_COUNT, width] of every tile."""
    return torch.cat([HYBRID.cells(model, HYBRID.inputs(tiles))[0] for tiles in pool])


def prepare(options: argparse.Namespace, saved: Path) -> Run:
    """Return a run where it stopped, or with a fitted tower and the words of `reference`."""
    pool = tile_pool(np.random.default_rng(options.seed), options.variants)
    model, heads = HYBRID.new_model(), Heads(WIDTH)
    trained = [*model.model.language_model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(trained, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    if options.resume and saved.exists():
        held = torch.load(saved, weights_only=True)
        model.load_state_dict(held["model"])
        heads.load_state_dict(held["heads"])
        optimiser.load_state_dict(held["optimiser"])
        return Run(model, heads, optimiser, cells_of(model, pool), State(**held["state"]))
    teacher = AutoModelForImageTextToText.from_pretrained(model_folder("reference"), dtype=torch.float32)
    HYBRID.copy(model, teacher, [])
    left = fit_tower(HYBRID, model, teacher, pool, options.tower)
    print(f"tower: {left:.4f} of the teacher's features are left unexplained", flush=True)
    return Run(model, heads, optimiser, cells_of(model, pool), State())


def answer(run: Run, batch: Branches) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the decoder's output on prompts [B * L, width] and on questions [N, M, width], and the hint."""
    decoder = run.model.model.language_model
    words = decoder.embed_tokens.weight
    embeds = nn.functional.embedding(batch.table, torch.cat([words, run.cells]))
    hidden, kept = run_prompts(decoder, embeds, batch)
    asked, hint = run_questions(decoder, nn.functional.embedding(batch.asked, words), batch, kept)
    return hidden.reshape(-1, hidden.shape[-1]), asked, hint


def losses(run: Run, batch: Branches) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training loss, and for every question whether it is answered rightly."""
    hidden, asked, hint = answer(run, batch)
    entropy, words = nn.functional.cross_entropy, run.model.model.language_model.embed_tokens.weight
    index = torch.arange(len(batch.row))
    logits, ends = asked[index, batch.row] @ words.T, asked[index, batch.row + 1] @ words.T
    total = 3 * entropy(logits, batch.target) + HINT * hint
    total = total + 0.1 * entropy(ends, torch.full_like(batch.target, INDEX["<|im_end|>"]))
    row, land, glyph, colour = batch.visual.unbind(1)
    tied = land >= 0
    total = total + 2 * entropy(hidden[row[tied]] @ words[LAND_IDS].T, land[tied])
    return total + 0.3 * run.heads.loss(hidden[row], glyph, colour), logits.argmax(-1) == batch.target


def rate(progress: float, step: int, peak: float) -> float:
    """Return the learning rate: a short warm-up, flat, then a cosine down to 3 % over the last two fifths."""
    fall = max(0.0, (progress - 0.6) / 0.4)
    return peak * min(1.0, (step + 1) / 50) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * fall)))


def save(run: Run, path: Path) -> None:
    """Write a checkpoint that --resume reads, and the model as a folder beside it."""
    held = {"model": run.model.state_dict(), "heads": run.heads.state_dict()}
    held |= {"optimiser": run.optimiser.state_dict(), "state": vars(run.state)}
    torch.save(held, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    write_folder(HYBRID, run.model, path.parent / "early")


def train(options: argparse.Namespace) -> None:
    """Train to the end of the minutes and write the folder."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    saved = options.work / "checkpoint.pt"
    run = prepare(options, saved)
    state = run.state
    random = np.random.default_rng([options.seed, state.step])
    right = {f"{kind}{where}": 0.0 for kind in KINDS for where in ("", " slid")}
    del right["legend slid"]
    begun = written = shown = time.monotonic()
    earlier, progress = state.seconds, 0.0
    while progress < 1:
        progress = state.seconds / 60 / options.minutes
        for group in run.optimiser.param_groups:
            group["lr"] = rate(progress, state.step, options.rate)
        batch = make_batch(random, state.stage, options.tokens, options.variants, HYBRID.frame)
        total, found = losses(run, batch)
        run.optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(run.parameters, 1.0)
        run.optimiser.step()
        state.step += 1
        state.seconds = earlier + time.monotonic() - begun
        for name in right:
            kind, slid = name.removesuffix(" slid"), name.endswith(" slid")
            chosen = found[(batch.kind == KINDS.index(kind)) & (batch.slid[batch.owner] == slid)]
            if len(chosen):
                right[name] = KEPT * right[name] + (1 - KEPT) * float(chosen.float().mean())
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            shares = " ".join(f"{name} {share:.2f}" for name, share in right.items())
            place = f"step {state.step}, {state.seconds / 60:.1f} min, stage {state.stage}"
            print(f"{place}: loss {float(total.detach()):.2f} {shares}", flush=True)
        ready = state.stage + 1 < len(SIDES) and state.step - state.entered > 60
        if ready and min(right.values()) > BARS[state.stage]:
            print(f"step {state.step}: stage {state.stage} done after {state.seconds / 60:.1f} min", flush=True)
            state.stage, state.entered = state.stage + 1, state.step
        if time.monotonic() - written > 120:
            save(run, saved)
            written = time.monotonic()
    save(run, saved)
    write_folder(HYBRID, run.model, options.out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="the learning rate falls in time")
    parser.add_argument("--tokens", type=int, default=1900, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--tower", type=int, default=1500, help="steps of fitting the tower to the teacher's")
    parser.add_argument("--variants", type=int, default=16, help="corrupted copies of every tile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HYBRID.folder)
    parser.add_argument("--work", type=Path, default=Path("build") / HYBRID.name)
    parser.add_argument("--resume", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
