"""Train `reference-stream`: `python -m training.streams.train --minutes 80`.

It starts from the weights of `reference`, tower frozen. Streams grow from 8 to 1,024 frames as the questions are
answered or as time goes. Checkpoints go to --work every two minutes; --resume goes on from the last one, with the
minutes that are left; so does a run that was asked to terminate. The finished folder goes to --out.
"""

from __future__ import annotations

import argparse
import math
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoModelForImageTextToText

from training.families import RECIPES
from training.folder import write_folder
from training.pictures import tile_pool
from training.streams.curriculum import STAGES, make_batch
from training.streams.forward import cell_features, forward
from training.streams.losses import Heads, losses
from training.streams.rows import FORMS

SHORT = ("here", "now", "where", "under", "both", "first", "last", "after", "times")
BAR = 0.88
"""Share of right answers, over all wordings, from which the curriculum goes on."""
LATEST = (0.25, 0.38, 0.5, 0.62, 0.75)
"""Share of the run after which each stage ends at the latest."""


@dataclass
class State:
    """What a checkpoint holds besides weights: steps, stage, seconds spent, the step at which the stage began.

    right: share of right answers of late, by wording.
    """

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    entered: int = 0
    right: list[float] = field(default_factory=lambda: [0.0] * len(FORMS))

    def answered(self, outcome: torch.Tensor) -> None:
        """Take in what a step answered. outcome: [n, 2] (form, right)."""
        for form in range(len(FORMS)):
            chosen = outcome[outcome[:, 0] == form, 1]
            if len(chosen):
                self.right[form] += 0.06 * (float(chosen.float().mean()) - self.right[form])

    def moves_on(self, progress: float) -> bool:
        """Whether the curriculum goes to the next stage: questions are answered, or time presses."""
        if self.stage + 1 >= len(STAGES) or self.step - self.entered < 40:
            return False
        return sum(self.right) / len(self.right) > BAR or progress > LATEST[self.stage]


@dataclass
class Run:
    """What training changes, and the features of the tiles that it sees."""

    model: nn.Module
    heads: Heads
    parameters: list[nn.Parameter]
    optimiser: torch.optim.Optimizer
    state: State
    features: torch.Tensor
    variants: int
    half: bool

    @staticmethod
    def new(options: argparse.Namespace) -> Run:
        """A fresh run, or, to be resumed, one as its last checkpoint left it."""
        recipe, state = RECIPES["reference"], State()
        model = AutoModelForImageTextToText.from_pretrained(options.start, dtype=torch.float32)
        model.model.visual.requires_grad_(False)
        heads = Heads()
        parameters = [each for each in (*model.parameters(), *heads.parameters()) if each.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
        saved = options.work / "checkpoint.pt"
        if options.resume and saved.exists():
            held = torch.load(saved, weights_only=True)
            model.load_state_dict(held["model"])
            heads.load_state_dict(held["heads"])
            optimiser.load_state_dict(held["optimiser"])
            state = State(**held["state"])
        pool = tile_pool(np.random.default_rng(options.seed), 8)
        return Run(
            model, heads, parameters, optimiser, state, cell_features(recipe, model, pool), len(pool), options.half
        )

    def step(self, random: np.random.Generator, tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
        """One step of training; the loss and its parts."""
        batch = make_batch(random, self.state.stage, tokens, self.variants, self.state.right)
        total, outcome, parts = losses(forward(self.model, self.features, batch, half=self.half), self.heads, batch)
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.state.step += 1
        self.state.answered(outcome)
        return float(total.detach()), parts

    def save(self, work: Path) -> None:
        """Write a checkpoint that --resume reads."""
        held = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "state": vars(self.state),
        }
        torch.save(held, work / "checkpoint.new")
        (work / "checkpoint.new").replace(work / "checkpoint.pt")


def rate(progress: float, step: int, peak: float) -> float:
    """Learning rate: a short warm-up, flat, then a cosine down to 3 % over the last third."""
    fall = min(1.0, max(0.0, (progress - 0.67) / 0.33))
    return peak * min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * fall)))


@torch.no_grad()
def blend(model: nn.Module, start: Path, share: float) -> None:
    """Leave `share` of the model's weights and take the rest from the folder `start`.

    The mean of weights before and after a short further training answers better than either.
    """
    if share == 1.0:
        return
    earlier = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float32).state_dict()
    for name, weight in model.named_parameters():
        weight.lerp_(earlier[name], 1.0 - share)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--start", type=Path, default=RECIPES["reference"].folder, help="folder of weights to start from"
    )
    parser.add_argument(
        "--minutes", type=float, default=80, help="how long the whole run takes, earlier parts included"
    )
    parser.add_argument("--steps", type=int, help="end after so many steps, whatever the time")
    parser.add_argument(
        "--blend", type=float, default=1.0, help="share of what was trained in what is written; the rest is --start's"
    )
    parser.add_argument("--tokens", type=int, default=2400, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--stage", type=int, default=-1, help="begin at, or go on from, this stage of the curriculum")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", action="store_true", help="products in bfloat16, for a processor that has them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RECIPES["reference"].folder.with_name("reference-stream"))
    parser.add_argument("--work", type=Path, default=Path("build/reference-stream"))
    parser.add_argument("--resume", action="store_true")
    train(parser.parse_args())


def train(options: argparse.Namespace) -> None:
    """Train to the end of the minutes and write the folder."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run.new(options)
    state = run.state
    state.stage = options.stage if options.stage >= 0 else state.stage
    random = np.random.default_rng([options.seed, state.step])
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    begun, earlier, written, progress = time.monotonic(), state.seconds, time.monotonic(), 0.0
    bar = tqdm(desc="training", unit="step", initial=state.step, mininterval=10)
    while progress < 1 and not ended:
        progress = state.step / options.steps if options.steps else state.seconds / 60 / options.minutes
        for group in run.optimiser.param_groups:
            group["lr"] = rate(progress, state.step, options.rate)
        total, parts = run.step(random, options.tokens)
        state.seconds = earlier + time.monotonic() - begun
        bar.update()
        if state.step % 20 == 0:
            shown = " ".join(f"{name} {part:.2f}" for name, part in zip(SHORT, state.right, strict=True))
            marks = " ".join(f"{name} {float(part.detach()):.3f}" for name, part in parts.items())
            when = f"step {state.step}, {state.seconds / 60:.1f} min, stage {state.stage}"
            tqdm.write(f"{when}, loss {total:.2f} | {shown} | {marks}")
        if state.moves_on(progress):
            state.stage, state.entered = state.stage + 1, state.step
        if time.monotonic() - written > 120:
            run.save(options.work)
            written = time.monotonic()
    run.save(options.work)
    if not ended:
        blend(run.model, options.start, options.blend)
        write_folder(RECIPES["reference"], run.model, options.out)


if __name__ == "__main__":
    main()
