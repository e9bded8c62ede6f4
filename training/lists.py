"""Train `reference-lists`: `python -m training.lists`, low-rank factors over `reference` that fill in lists.

A part of the batches is what `reference` was trained on, so that it keeps what it can; the others ask for lists
too (`benchmarks.tasks.list_tasks`), of few icons or many. Only the factors learn. Checkpoints go to --work every two
minutes; --resume goes on from the last one. The finished file holds the strongest directions of the factors' products
and goes to --out, with its figures.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization
from tqdm import tqdm
from transformers import AutoModelForImageTextToText

from benchmarks.models.delta import FILE, LISTS, Factors, add_delta, read_delta, write_delta
from benchmarks.tasks import Plan, make_episode
from benchmarks.tasks.list_tasks import LISTED, listing, lists_episode, older_legend
from benchmarks.tasks.tiles import ICON_NAMES
from training.batches import STAGES, Batch, collate, make_batch, setting_for
from training.families import RECIPES, Recipe
from training.families.qwen2_5_vl import Reference
from training.forward import Output, decode
from training.layout import ASKED_KINDS, Setting, build
from training.measure import Counts, measure, share
from training.pictures import tile_pool
from training.train import LAND_IDS
from training.words import INDEX

LIMITS = (("colour", 1), ("land", 2), ("legend", 1), ("count", 1), ("which", 1))
OLD = 0.4
"""Share of the batches that ask no lists."""
PRACTICE = 0.3
"""Share of those that practise count and which; see `training.batches`."""
ICON_IDS = torch.tensor([INDEX[icon] for icon in ICON_NAMES])
WARM_UP = 100
"""Steps in which the learning rate rises."""
MAPS, LISTS_MEASURED = 100, 60
"""Items that a finished file is measured on."""
CARD = Path(__file__).with_name("lists.md").read_text(encoding="utf-8")
MEASURED = {"visible": Setting(slid=0.0), "slid": Setting(slid=1.0, hidden=True)}


class FrozenTower(Reference):
    """`reference` with the features of every tile worked out before: its tower does not learn. Tiles are features."""

    def inputs(self, tiles: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(tiles)

    def cells(self, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        return [inputs]


@torch.no_grad()
def tile_features(model: nn.Module, pool: np.ndarray) -> np.ndarray:
    """Return the features [variants, TILE_COUNT, width] of tiles [variants, TILE_COUNT, 2, 28, 28, 3]."""
    recipe = Reference()
    return np.stack([recipe.cells(model, recipe.inputs(tiles))[0].numpy() for tiles in pool])


class LowRank(nn.Module):
    """Adds the product of two factors to a weight [rows, columns]."""

    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(rows, rank))
        self.right = nn.Parameter(torch.randn(rank, columns) / columns**0.5)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return weight + self.left @ self.right


def attach(model: nn.Module, rank: int) -> dict[str, LowRank]:
    """Freeze a model and put factors beside every matrix of its decoder's layers; returns them by the weight's name."""
    model.requires_grad_(False)
    found: dict[str, LowRank] = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and ".language_model.layers." in f".{name}":
            factors = LowRank(*module.weight.shape, rank)
            register_parametrization(module, "weight", factors)
            found[f"{name}.weight"] = factors
    return found


def lists_plan(random: np.random.Generator) -> Plan:
    """Return one to three legends and one to four maps with two icons or more in all."""
    side = int(random.choice((4, 5, 6, 8), p=(0.1, 0.1, 0.2, 0.6)))
    legends, maps = int(random.choice((1, 2, 3), p=(0.45, 0.45, 0.1))), int(random.integers(1, 5))
    most = min(10, side * side // 2)
    icons = np.zeros(maps, dtype=np.int64)
    for _ in range(int(random.integers(2, min(len(ICON_NAMES), maps * most) + 1))):
        icons[random.choice(np.flatnonzero(icons < most))] += 1
    colours, changed = int(random.integers(max(3, legends), 10)), int(random.random() < 0.2)
    return Plan("L" * legends + "M" * maps, side, tuple(map(int, icons)), colours, LIMITS, changed=changed)


def lists_batch(random: np.random.Generator, recipe: Recipe, tokens: int, variants: int) -> Batch:
    """Return a batch of about `tokens` rows whose episodes ask for both lists and for single answers."""
    plan = lists_plan(random)
    setting = replace(setting_for(random, len(STAGES) - 1, variants, recipe.frame), alone=0.0)
    length = (len(plan.order) + plan.changed) * (plan.side**2 + 2) + 4 * sum(plan.icons) + 110
    rows = []
    for _ in range(int(np.clip(tokens // length, 3, 48))):
        episode = make_episode(random, plan)
        asked = [question for kind in LISTED if (question := listing(random, episode, kind)) is not None]
        episode = replace(episode, questions=(*episode.questions, *asked))
        if not plan.changed and random.random() < 0.2:
            # What a colour stands for may have changed before the maps; then legends are not asked about.
            kept = tuple(question for question in episode.questions if question.kind != "legend")
            older = older_legend(random, episode, plan.side)
            episode = replace(episode, pages=(older, *episode.pages), questions=kept)
        rows.append(build(random, episode, setting))
    return collate(rows, variants)


def loss_of(output: Output, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and for every word of an answer (kind, right).

    Words of lists and single answers weigh as much, each together; to them comes what each cell means.
    """
    hidden, entropy = output.last, nn.functional.cross_entropy
    row, target, kind, _ = batch.answers.unbind(1)
    logits = hidden[row] @ output.words.T
    listed = kind >= len(ASKED_KINDS) - len(LISTED)
    total = torch.zeros(())
    for part in (listed, ~listed):
        if bool(part.any()):
            total = total + entropy(logits[part], target[part])
    end = INDEX["<|im_end|>"]
    ends = row[batch.table.reshape(-1)[row + 2] == end] + 1
    total = total + 0.3 * entropy(hidden[ends] @ output.words.T, torch.full_like(ends, end))
    cells, land, _, _ = batch.visual.unbind(1)
    tied = land >= 0
    if bool(tied.any()):
        total = total + 0.3 * entropy(hidden[cells[tied]] @ output.words[LAND_IDS].T, land[tied])
    return total, torch.stack([kind, (logits.argmax(-1) == target).long()], 1)


@torch.no_grad()
def measure_lists(
    recipe: Recipe, model: nn.Module, tiles: np.ndarray, seed: int, items: int, group: int = 6
) -> dict[str, dict[str, dict[str, float]]]:
    """Return setting -> kind -> share of words and of whole lists that are right, on fresh episodes of the task.

    A word is right where it is the likeliest after the right words before it. Words that go with an icon are asked.
    """
    episodes = [lists_episode(seed, item) for item in range(items)]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, setting in MEASURED.items():
        words, whole = {kind: [0, 0] for kind in LISTED}, {kind: [0, 0] for kind in LISTED}
        for first in range(0, items, group):
            random, shown = np.random.default_rng([seed, first]), replace(setting, frame=recipe.frame)
            laid = [build(random, each, shown) for each in episodes[first : first + group]]
            batch = collate(laid)
            output = decode(recipe, model, tiles, batch)
            row, target, kind, _ = batch.answers.unbind(1)
            right = (output.last[row] @ output.words.T).argmax(-1) == target
            owner, asked = row // batch.table.shape[1], ~torch.isin(target, ICON_IDS)
            for number, name_of_kind in enumerate(LISTED, start=len(ASKED_KINDS) - len(LISTED)):
                for index in range(len(laid)):
                    own = asked & (kind == number) & (owner == index)
                    words[name_of_kind][0] += int(right[own].sum())
                    words[name_of_kind][1] += int(own.sum())
                    whole[name_of_kind][0] += int(bool(right[own].all()))
                    whole[name_of_kind][1] += 1
        found[name] = {
            kind: {
                "words": round(words[kind][0] / max(1, words[kind][1]), 4),
                "lists": round(whole[kind][0] / max(1, whole[kind][1]), 4),
            }
            for kind in LISTED
        }
    return found


def factors_of(held: dict[str, LowRank], rank: int) -> dict[str, Factors]:
    """Return the strongest directions of the factors' products."""
    found = {}
    for name, factors in held.items():
        left, values, right = torch.linalg.svd((factors.left @ factors.right).detach(), full_matrices=False)
        root = values[:rank].sqrt()
        found[name] = (left[:, :rank] * root, root[:, None] * right[:rank])
    return found


def train(options: argparse.Namespace) -> None:
    """Train to the end of the minutes and write the file."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    saved = options.work / "checkpoint.pt"
    recipe = FrozenTower()
    model = AutoModelForImageTextToText.from_pretrained(recipe.folder, dtype=torch.float32)
    pool = tile_features(model, tile_pool(np.random.default_rng(options.seed), 32))
    held = attach(model, options.rank)
    weights = nn.ModuleList(held.values())
    optimiser = torch.optim.AdamW(weights.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    step, earlier = 0, 0.0
    if options.resume and saved.exists():
        state = torch.load(saved, weights_only=True)
        weights.load_state_dict(state["weights"])
        optimiser.load_state_dict(state["optimiser"])
        step, earlier = state["step"], state["seconds"]
    random = np.random.default_rng([options.seed, step])
    right = dict.fromkeys(ASKED_KINDS, 0.0)
    begun = written = time.monotonic()
    seconds, first = earlier, step

    def save() -> None:
        state = {
            "weights": weights.state_dict(),
            "optimiser": optimiser.state_dict(),
            "step": step,
            "seconds": seconds,
        }
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)
        write_delta(factors_of(held, options.keep), options.work)

    bar = tqdm(desc="training", unit="step", initial=step, mininterval=20)
    # A slice ends early, with a checkpoint; the rate falls over the whole.
    while seconds < 60 * options.minutes and time.monotonic() - begun < 60 * options.slice:
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / WARM_UP)
        if random.random() < OLD:
            batch = make_batch(random, len(STAGES) - 1, options.tokens, 2, recipe.frame, PRACTICE)
        else:
            batch = lists_batch(random, recipe, options.tokens, 2)
        tiles = pool[random.choice(len(pool), 2, replace=False)]
        total, outcome = loss_of(decode(recipe, model, tiles, batch), batch)
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(weights.parameters(), 1.0)
        optimiser.step()
        step += 1
        seconds = earlier + time.monotonic() - begun
        for number, kind in enumerate(ASKED_KINDS):
            chosen = outcome[outcome[:, 0] == number, 1]
            if len(chosen):
                right[kind] += max(0.05, 1 / (step - first)) * (float(chosen.float().mean()) - right[kind])
        bar.update()
        bar.set_postfix(loss=f"{float(total.detach()):.2f}", **{kind: f"{part:.2f}" for kind, part in right.items()})
        if step % 100 == 0:
            tqdm.write(f"step {step}, {seconds / 60:.1f} min: {measure_lists(recipe, model, pool[:1], 99, 4)}")
        if time.monotonic() - written > 120:
            save()
            written = time.monotonic()
    save()
    if seconds >= 60 * options.minutes:
        write_delta(factors_of(held, options.keep), options.out)
        report(options.out, step, seconds, options)


def report(folder: Path, steps: int, seconds: float, options: argparse.Namespace) -> None:
    """Measure the file as it is loaded, on lists and on what `reference` could do before; write figures and card."""
    recipe = RECIPES["reference"]
    tiles = tile_pool(np.random.default_rng(0), 1)
    model = AutoModelForImageTextToText.from_pretrained(recipe.folder, dtype=torch.float32)
    before = share_table(measure(recipe, model, tiles, "maps", options.check_seed, MAPS))
    add_delta(model, read_delta(folder))
    found = {
        "training": {"steps": steps, "minutes": round(seconds / 60, 1), "rank": options.keep, "seed": options.seed},
        "seed": options.check_seed,
        "lists": measure_lists(recipe, model, tiles, options.check_seed, LISTS_MEASURED),
        "kept": share_table(measure(recipe, model, tiles, "maps", options.check_seed, MAPS)),
        "before": before,
    }
    (folder / "measured.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(found, (folder / FILE).stat().st_size), encoding="utf-8")


def share_table(counts: Counts) -> dict[str, dict[str, float]]:
    """Return setting -> kind -> share of right answers, re-prefilled."""
    return {setting: {kind: round(share(own), 4) for kind, own in counts[setting].items()} for setting in MEASURED}


def card(found: dict[str, Any], size: int) -> str:
    """Return the README of figures and of a file of so many bytes."""
    trained = found["training"]
    head = ("| setting | list | words | lists |", "|---|---|---|---|")
    lines = [
        f"| {setting} | {kind} | {own['words']:.3f} | {own['lists']:.3f} |"
        for setting, kinds in found["lists"].items()
        for kind, own in kinds.items()
    ]
    kinds = list(found["kept"]["visible"])
    kept = [f"| setting | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for setting, own in found["kept"].items():
        cells = (f"{own[kind]:.3f} ({found['before'][setting][kind]:.3f})" for kind in kinds)
        kept.append(f"| {setting} | {' | '.join(cells)} |")
    return CARD.format(
        megabytes=size / 1e6,
        rank=trained["rank"],
        steps=f"{trained['steps']:,}",
        minutes=trained["minutes"],
        seed=found["seed"],
        items=MAPS,
        lists=f"{LISTS_MEASURED} items of `lists`:\n\n" + "\n".join((*head, *lines)),
        kept="\n".join(kept),
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=18.0, help="of all slices together")
    parser.add_argument("--slice", type=float, default=math.inf, help="stop after so many minutes, to be resumed")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--keep", type=int, default=6, help="directions of each matrix in the finished file")
    parser.add_argument(
        "--tokens", type=int, default=1000, help="rows of a batch at first; three times as many at last"
    )
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=LISTS)
    parser.add_argument("--work", type=Path, default=Path("build") / LISTS.name)
    parser.add_argument("--resume", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
