"""Accuracy per kind of question on fresh episodes, re-prefilled and with blind maps: `python -m training.measure`.

Blind maps saw no page before them, at the same positions: what blind reuse of their KV gives.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForImageTextToText

from benchmarks.tasks import EPISODE_PLANS, generate
from benchmarks.tasks.world import KINDS
from training.batches import collate
from training.families import RECIPES, Recipe
from training.forward import decode
from training.layout import Setting, build
from training.pictures import tile_pool

SETTINGS = {
    "visible": Setting(slid=0.0),
    "slid": Setting(slid=1.0, hidden=True),
    "blind visible": Setting(slid=0.0, blind=True),
    "blind slid": Setting(slid=1.0, hidden=True, blind=True),
}
Counts = dict[str, dict[str, list[list[int]]]]


@torch.no_grad()
def measure(
    recipe: Recipe,
    model: nn.Module,
    tiles: np.ndarray,
    task: str,
    seed: int,
    items: int,
    opening: int = 10,
    group: int = 8,
) -> Counts:
    """setting -> kind -> [right, asked] of each of `items` fresh episodes of a task.

    tiles: [1, TILE_COUNT, 2, 28, 28, 3], every tile; opening: most random words before the pages; group: episodes a
    batch.
    """
    table: Counts = {}
    episodes = list(generate(task, seed, items))
    for name, setting in SETTINGS.items():
        table[name] = {kind: [] for kind in KINDS}
        shown = replace(setting, opening=opening, frame=recipe.frame)
        for first in range(0, items, group):
            random = np.random.default_rng([seed, first])
            chosen = episodes[first : first + group]
            batch = collate([build(random, episode, shown) for episode in chosen])
            output = decode(recipe, model, tiles, batch)
            row, target, kind, _ = batch.answers.unbind(1)
            right = (output.last[row] @ output.words.T).argmax(-1) == target
            owner = row // batch.table.shape[1]
            for number, kind_name in enumerate(KINDS):
                for index in range(len(chosen)):
                    mine = right[(kind == number) & (owner == index)]
                    table[name][kind_name].append([int(mine.sum()), len(mine)])
    return table


def share(counts: list[list[int]]) -> float:
    """Right answers over questions asked."""
    asked = sum(each[1] for each in counts)
    return sum(each[0] for each in counts) / max(asked, 1)


def interval(counts: list[list[int]], repeats: int = 1000) -> tuple[float, float]:
    """95 % interval of the share, by resampling episodes."""
    held = np.asarray(counts)
    picks = np.random.default_rng(0).integers(len(held), size=(repeats, len(held)))
    sums = held[picks].sum(1)
    low, high = np.percentile(sums[:, 0] / np.maximum(sums[:, 1], 1), (2.5, 97.5))
    return float(low), float(high)


def describe(table: Counts) -> str:
    """One line: every setting with the accuracy of each kind."""
    parts = []
    for name, kinds in table.items():
        parts.append(f"[{name}] " + " ".join(f"{kind} {share(counts):.3f}" for kind, counts in kinds.items()))
    return " ".join(parts)


def summary(table: Counts) -> dict[str, dict[str, dict[str, float]]]:
    """setting -> kind -> accuracy, low, high, questions."""
    return {
        name: {
            kind: {
                "accuracy": round(share(counts), 4),
                "low": round(interval(counts)[0], 4),
                "high": round(interval(counts)[1], 4),
                "questions": sum(each[1] for each in counts),
            }
            for kind, counts in kinds.items()
        }
        for name, kinds in table.items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(RECIPES), default="reference")
    parser.add_argument("--folder", type=Path, help="where its weights lie; the bundled ones if left out")
    parser.add_argument("--task", choices=list(EPISODE_PLANS), default="maps")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    recipe = RECIPES[options.model]
    model = AutoModelForImageTextToText.from_pretrained(options.folder or recipe.folder, dtype=torch.float32)
    tiles = tile_pool(np.random.default_rng(0), 1)
    figures = summary(measure(recipe, model, tiles, options.task, options.seed, options.items))
    for name, kinds in figures.items():
        print(name)
        for kind, held in kinds.items():
            bounds = f"[{held['low']:.3f}, {held['high']:.3f}]"
            print(f"  {kind:8} {held['accuracy']:.3f}  {bounds}  {held['questions']} questions")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
