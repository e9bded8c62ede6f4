"""Train `reference-stream`: `python -m reference.streams.train --minutes 80`.

It starts from the weights of `reference`, tower frozen. Streams grow from 8 to 256 frames as the questions are
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

from emblema.bench.tasks.tiles import COLOUR_COUNT
from emblema.bench.tasks.world import LANDS
from reference.families import RECIPES
from reference.families.base import WIDTH
from reference.folder import write_folder
from reference.pictures import tile_pool
from reference.streams.curriculum import STAGES, make_batch
from reference.streams.forward import Output, cell_features, forward
from reference.streams.hints import ROLES
from reference.streams.labels import MOST, NOTHING, UNSAID
from reference.streams.rows import FORMS, Batch
from reference.train import LAND_IDS
from reference.words import INDEX

SHORT = ("here", "now", "where", "under", "both", "first", "last", "after", "times")
LAYERS = {"land": 1, "glyph": 1, "colour": 1, "begins": 1, "before": 1, "order": 2}
"""Number of the layer behind which a head reads what a cell means: later layers, and questions, build on it."""
WEIGHTS = {"land": 0.5, "glyph": 0.3, "colour": 0.3, "begins": 2.0, "before": 0.7, "order": 0.5}
WEIGHTS |= {"spoken": 0.7, "says": 2.0}
LOOKS = 0.7
"""Weight of each of the losses on where heads look."""
BAR = 0.9
LATEST = (0.4, 0.58, 0.7, 0.82)
"""Share of the run after which each stage ends at the latest."""


class Heads(nn.Module):
    """Linear heads for what a cell means, used while training only."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {
            "land": len(LANDS),
            "glyph": NOTHING + 1,
            "colour": COLOUR_COUNT,
            "begins": 2,
            "before": len(LANDS),
            "order": MOST + 1,
        }
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in sizes.items()})

    def losses(self, hidden: list[torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
        """Cross-entropy of each label; hidden: [B, C, width] behind every layer. Through a window nothing can count."""
        found = {}
        for name, head in self.heads.items():
            labels = batch.cells[name].flatten()
            if (name == "order" and batch.encoding is not None) or not bool((labels != UNSAID).any()):
                continue
            state = nn.functional.rms_norm(hidden[LAYERS[name]][:, batch.opening :], (WIDTH,))
            found[name] = nn.functional.cross_entropy(head(state).flatten(0, 1), labels, ignore_index=UNSAID)
        return found


@dataclass
class State:
    """What a checkpoint holds besides weights: steps, stage, seconds spent, the step at which the stage began."""

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    entered: int = 0
    right: list[float] = field(default_factory=lambda: [0.0] * len(FORMS))


def losses(output: Output, heads: Heads, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The training loss; for every answer (form, right); and the losses on cells."""
    row, target, form, _ = batch.answers.unbind(1)
    entropy = nn.functional.cross_entropy
    logits = output.asked[row] @ output.words.T
    total = 3 * entropy(logits, target)
    if batch.ends:
        total = total + 0.3 * entropy(output.asked[row + 1] @ output.words.T, torch.full_like(row, INDEX["<|im_end|>"]))
    parts = heads.losses(output.hidden, batch)
    row, word, chance = batch.says.unbind(1)
    likely = torch.log_softmax(output.hinted[row.long()] @ output.words.T, -1).gather(1, word.long()[:, None])[:, 0]
    parts["says"] = -(chance * likely).sum().float() / len(batch.says)
    parts |= look_losses(output, batch)
    spoken = output.spoken[:, batch.opening :] @ output.words[LAND_IDS].T
    parts["spoken"] = entropy(spoken.flatten(0, 1), batch.cells["land"].flatten())
    total = total + sum(WEIGHTS.get(name, LOOKS) * part for name, part in parts.items())
    return total, torch.stack([form, (logits.argmax(-1) == target).long()], 1), parts


def rate(progress: float, step: int, peak: float) -> float:
    """Learning rate: a short warm-up, flat, then a cosine down to 3 % over the last third."""
    fall = max(0.0, (progress - 0.67) / 0.33)
    return peak * min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, fall))))


def look_losses(output: Output, batch: Batch) -> dict[str, torch.Tensor]:
    """For every role, how far its head is from looking where it may: cross-entropy over the rows that it sees."""
    which, row, part = batch.looks.unbind(1)
    place = torch.zeros(len(batch.looked), dtype=torch.long)
    found = {}
    for role, name in enumerate(ROLES):
        mine = batch.looked[:, 2] == role
        if name in output.looks:
            place[mine] = torch.arange(int(mine.sum()))
            chosen = mine[which.long()]
            given = output.looks[name][place[which[chosen].long()], row[chosen].long()]
            found[f"look {name}"] = -(part[chosen].float() * given).sum() / mine.sum()
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--start", type=Path, default=RECIPES["reference"].folder, help="folder of weights to start from"
    )
    parser.add_argument(
        "--minutes", type=float, default=80, help="how long the whole run takes, earlier parts included"
    )
    parser.add_argument("--tokens", type=int, default=2400, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--stage", type=int, default=-1, help="begin at, or go on from, this stage of the curriculum")
    parser.add_argument("--seed", type=int, default=0)
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
    saved, recipe, state = options.work / "checkpoint.pt", RECIPES["reference"], State()
    model = AutoModelForImageTextToText.from_pretrained(options.start, dtype=torch.float32)
    model.model.visual.requires_grad_(False)
    heads = Heads()
    parameters = [each for each in (*model.parameters(), *heads.parameters()) if each.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    if options.resume and saved.exists():
        held = torch.load(saved, weights_only=True)
        model.load_state_dict(held["model"])
        heads.load_state_dict(held["heads"])
        optimiser.load_state_dict(held["optimiser"])
        state = State(**held["state"])
    if options.stage >= 0:
        state.stage = options.stage
    pool = tile_pool(np.random.default_rng(options.seed), 8)
    features = cell_features(recipe, model, pool)
    random = np.random.default_rng([options.seed, state.step])
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    begun, earlier, written, progress = time.monotonic(), state.seconds, time.monotonic(), 0.0
    bar = tqdm(desc="training", unit="step", initial=state.step, mininterval=10)
    while progress < 1 and not ended:
        progress = state.seconds / 60 / options.minutes
        for group in optimiser.param_groups:
            group["lr"] = rate(progress, state.step, options.rate)
        batch = make_batch(random, state.stage, options.tokens, len(pool), state.right)
        total, outcome, parts = losses(forward(model, features, batch, half=True), heads, batch)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        state.step += 1
        state.seconds = earlier + time.monotonic() - begun
        for form in range(len(FORMS)):
            chosen = outcome[outcome[:, 0] == form, 1]
            if len(chosen):
                state.right[form] += 0.06 * (float(chosen.float().mean()) - state.right[form])
        bar.update()
        if state.step % 20 == 0:
            shown = " ".join(f"{name} {part:.2f}" for name, part in zip(SHORT, state.right, strict=True))
            marks = " ".join(f"{name} {float(part):.3f}" for name, part in parts.items())
            tqdm.write(
                f"step {state.step}, {state.seconds / 60:.1f} min, stage {state.stage}, rows {batch.table.numel()}, "
                f"loss {float(total):.2f} | {shown} | {marks}"
            )
        if state.stage + 1 < len(STAGES) and state.step - state.entered >= 40:
            good = min(state.right) > BAR or sum(state.right) / len(state.right) > BAR + 0.03
            if good or progress > LATEST[state.stage]:
                state.stage, state.entered = state.stage + 1, state.step
        if time.monotonic() - written > 120:
            save(options.work, model, heads, optimiser, state)
            written = time.monotonic()
    save(options.work, model, heads, optimiser, state)
    if ended:
        return
    write_folder(recipe, model, options.out)


def save(work: Path, model: nn.Module, heads: Heads, optimiser: torch.optim.Optimizer, state: State) -> None:
    """Write a checkpoint that --resume reads."""
    held = {
        "model": model.state_dict(),
        "heads": heads.state_dict(),
        "optimiser": optimiser.state_dict(),
        "state": vars(state),
    }
    torch.save(held, work / "checkpoint.new")
    (work / "checkpoint.new").replace(work / "checkpoint.pt")


if __name__ == "__main__":
    main()
